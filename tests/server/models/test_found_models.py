"""`serve --models=FOLDER`: which folders are models, under which names, and what is refused."""

import pytest
from commands import imported_tool

from official_bert.server.models.version_folders import find_models


def make_versions(root, *folders):
    """Makes folders of versions as far as the search looks at them; returns the root's path."""
    for folder in folders:
        (root / folder).mkdir(parents=True)
        (root / folder / "saved_model.pb").write_bytes(b"")
    return str(root)


def test_every_export_below_a_folder_is_found_under_the_name_of_its_folder(tmp_path):
    root = make_versions(
        tmp_path,
        "ner/text/1",
        "ner/text/2",
        "ner/ids/1",
        "search/deep/small/text/7",
        "other/1",
        "none/text",
        "ner/text/1/assets.extra",
        "half.tmp.12.0123abcd/text/1",
    )
    assert find_models(root) == {
        "ner": f"{root}/ner/text",
        "ner_ids": f"{root}/ner/ids",
        "other": f"{root}/other",
        "small": f"{root}/search/deep/small/text",
    }
    assert find_models(f"{root}/ner/") == {"ner": f"{root}/ner/text", "ner_ids": f"{root}/ner/ids"}


def test_the_folder_may_be_the_export_itself_or_the_current_one(tmp_path, monkeypatch):
    make_versions(tmp_path, "ner/text/1")
    monkeypatch.chdir(tmp_path / "ner")
    assert find_models(".") == {"ner": "./text"} and find_models("text") == {"ner": "text"}


@pytest.mark.parametrize(
    ("folders", "told"),
    [
        ((), "expected exported models below it, as run_export writes them (NAME/text/1/saved_model.pb), got none"),
        (
            ("a/ner/text/1", "b/ner/text/1"),
            "expected different names of models, got ner twice: {root}/a/ner/text and {root}/b/ner/text",
        ),
        (("ner/ids/1", "ner_ids/text/1"), "got ner_ids twice"),
        (("a:b/text/1",), "{root}/a:b/text: expected a folder name without a colon"),
    ],
)
def test_nothing_found_and_doubled_names_are_refused(tmp_path, folders, told):
    root = make_versions(tmp_path, *folders)
    with pytest.raises(ValueError) as refused:
        find_models(root)
    assert str(refused.value).startswith(f"--models={root}: ") and told.format(root=root) in str(refused.value)


def test_it_stands_alone(tmp_path):
    root = make_versions(tmp_path, "ner/text/1", "small/text/1")
    with imported_tool("serve", "official_bert/commands") as serve:
        assert [(model.name, model.base_path) for model in serve.read_served("default", "", "", "small", root)] == [
            ("ner", f"{root}/ner/text"),
            ("small", f"{root}/small/text"),
        ]
        for given, told in (
            (("default", f"{root}/ner/text", "", "", root), "expected one of .*, got --model_base_path and --models"),
            (("default", "", "x", "", root), "got --models and --model_config_file"),
            (("default", "", ""), "got none"),
            (("default", "", "", "else", root), "--default_model: expected one of ner, small, got 'else'"),
            (("default", "", "", "", f"{root}/nowhere"), "--models=.*nowhere: no such folder"),
        ):
            with pytest.raises(ValueError, match=told):
                serve.read_served(*given)
