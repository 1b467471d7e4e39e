"""What records were made with stands beside them as long as they are the same; files that do not belong together are
noticed.
"""

import glob
import json

import pytest

from official_bert.long_work.provenance import changed_keys, doubts, origin_file, read_origin, write_origin


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


def test_a_key_has_changed_if_another_value_was_recorded():
    assert changed_keys({"a": 1, "b": [2], "c": None}, {"a": 1, "b": [3], "c": 0, "new": 4}) == ["b", "c"]


def test_shards_of_two_generations_are_noticed_and_parts_of_one_are_not():
    old, new = ([f"a/train-{number:05}-of-{count:05}" for number in range(count)] for count in (4, 2))
    assert (
        doubts(old)
        == doubts(new[1:])
        == doubts([*new, "a/other-00000-of-00004", "b/train-00000-of-00004", "a/train"])
        == []
    )
    assert doubts([*old, *new]) == [
        "a/train: files of 2 and of 4 are read together (-of-00002 and -of-00004); are those of an earlier "
        "command among them?"
    ]


def test_held_out_documents_among_the_others_are_noticed():
    told = ["a/held_out-corpus.txt: documents that were held out are read together with the others"]
    assert (
        doubts(["a/corpus.txt", "a/held_out-corpus.txt"])
        == doubts(["a/held_out-corpus.txt", "a/corpus.txt-00000-of-00001"])
        == told
    )
    assert doubts(["a/held_out-corpus.txt"]) == doubts(["b/corpus.txt", "a/held_out-corpus.txt"]) == []
