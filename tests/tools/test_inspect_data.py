"""The tool that shows what would be read."""

import json

import pytest
from absl import flags
from commands import imported_tool


@pytest.fixture
def inspect(capsys):
    with imported_tool("inspect_data") as tool:
        def run(path, *arguments):
            for name in tool.own_flags:
                flags.FLAGS[name].unparse()
            tool.main(flags.FLAGS(["inspect_data.py", str(path), *map(str, arguments)]))
            return capsys.readouterr().out
        yield run


def test_rows_labels_lengths_duplicates_overlap_and_examples_are_shown(inspect, golden, tmp_path):
    (tmp_path / "a.csv").write_text("text,label\nthe atlas,1\nher neighbour rained,0\nthe atlas,1\n" + "the " * 200 + ",0\n")
    (tmp_path / "b.csv").write_text("text,label\nthe atlas,1\nnew,0\n")
    said = inspect(tmp_path / "a.csv", "--task=classification", f"--vocab_file={golden}/vocab_uncased.txt", f"--eval_file={tmp_path}/b.csv")
    for told in ("a.csv: 4 rows", "labels: 0 2, 1 2", "lengths in tokens: ", " to 202, mean ", "25.0% beyond options.max_seq_length=128",
                 "duplicates: 1 rows", "b.csv: 1 of its 2 rows are in", "  the atlas\n", "options: none are needed"):
        assert told in said


def test_tags_and_choices_are_shown_too(inspect, tmp_path):
    (tmp_path / "a.jsonl").write_text(json.dumps({"text": "Ada sang.", "label": [[0, 3, "PER"]]}) + "\n")
    said = inspect(tmp_path / "a.jsonl", "--task=ner")
    assert "IOB2 tags: PER 1" in said and "  Ada/B-PER sang/O ./O" in said and "lengths in words: 5 to 5" in said
    (tmp_path / "b.jsonl").write_text(json.dumps({"q": "x", "a": ["y", "z"], "k": "B"}) + "\n")
    said = inspect(tmp_path / "b.jsonl", "--task=swag", "--set=options.text_column=q", "--set=options.begin_column=",
                   "--set=options.choices_column=a", "--set=options.label_column=k")
    assert "labels: 0 0, 1 1" in said and "  x | y | z" in said and "--set options.label_column=k" in said


@pytest.mark.parametrize(("name", "content", "arguments", "message"), [
    ("a.csv", "pos,good\nneg,bad\n", ["--task=classification", "--set=options.text_column=c2", "--set=options.label_column=c1"],
     "expected a column 'c2', .* it can be read with --set options.header=false"),
    ("a.csv", "text,label\nsch\xf6n,1\nx,0\n", ["--task=classification"], "it can be read with --set options.encoding=cp1252"),
    ("pos.txt", "The DT\ncat NN\n", ["--task=ner"], "it can be read with --set options.scheme=plain"),
    ("a.csv", "q\n", ["--task=squad"], "--task=squad: expected classification, swag, ner")])
def test_the_option_that_helps_is_named(inspect, tmp_path, name, content, arguments, message):
    (tmp_path / name).write_bytes(content.encode("latin-1"))
    with pytest.raises(ValueError, match=message):
        inspect(tmp_path / name, *arguments)
