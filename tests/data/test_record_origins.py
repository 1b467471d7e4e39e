"""What records were made with stands beside them, and only as long as they are the same."""

import glob
import json

import pytest

from official_bert.data.record_origins import origin_file, read_origin, write_origin


def test_facts_are_kept_beside_records_and_forgotten_when_these_change(tmp_path):
    path = tmp_path / "train-0"
    path.write_bytes(b"records")
    assert read_origin(str(path)) == {}
    write_origin(str(path), {"sentence_task": "sop", "masking": None})
    beside = tmp_path / ".train-0.made_with.json"
    assert json.loads(beside.read_text()) == {"file_bytes": 7, "sentence_task": "sop", "masking": None}
    assert read_origin(str(path)) == json.loads(beside.read_text())
    assert glob.glob(str(tmp_path / "*")) == [str(path)] and origin_file("train") == ".train.made_with.json"
    path.write_bytes(b"other records")
    assert read_origin(str(path)) == {}


@pytest.mark.parametrize("text, message", [("{", "not valid JSON"), ("[1]", r"expected a mapping, got \[1\]")])
def test_a_damaged_file_is_refused_by_name(tmp_path, text, message):
    (tmp_path / "a").write_bytes(b"")
    (tmp_path / ".a.made_with.json").write_text(text)
    with pytest.raises(ValueError, match=rf"\.a\.made_with\.json: {message}"):
        read_origin(str(tmp_path / "a"))
