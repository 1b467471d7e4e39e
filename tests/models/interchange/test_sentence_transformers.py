"""The modules of a sentence-transformers folder."""

import json

import pytest

from official_bert.models.interchange.projects import hugging_face


@pytest.mark.parametrize("path", ["/etc", "../other", "C:\\x", "1_Pooling\0", "out", 3, None])
def test_modules_lie_in_the_folder(tmp_path, path):
    (tmp_path / "out").symlink_to("/etc")
    (tmp_path / "modules.json").write_text(json.dumps([{"type": "sentence_transformers.models.Pooling", "path": path}]))
    for read in (hugging_face.read_pooling, hugging_face.read_settings):
        with pytest.raises(ValueError, match=f"^{tmp_path}/modules.json: path: expected the name of a file inside the folder, got "):
            read(str(tmp_path))
