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
    (tmp_path / "a.csv").write_text(
        "text,label\nthe atlas,1\nher neighbour rained,0\nthe atlas,1\n" + "the " * 200 + ",0\n"
    )
    (tmp_path / "b.csv").write_text("text,label\nthe atlas,1\nnew,0\n")
    said = inspect(
        tmp_path / "a.csv",
        "--task=classification",
        f"--vocab_file={golden}/vocab_uncased.txt",
        f"--eval_file={tmp_path}/b.csv",
    )
    for told in (
        "a.csv: 4 rows",
        "labels: 0 2, 1 2",
        "lengths in tokens: ",
        " to 202, mean ",
        "25.0% beyond options.max_seq_length=128",
        "duplicates: 1 rows",
        "b.csv: 1 of its 2 rows are in",
        "  the atlas\n",
        "options: none are needed",
    ):
        assert told in said


def test_tags_and_choices_are_shown_too(inspect, tmp_path):
    (tmp_path / "a.jsonl").write_text(json.dumps({"text": "Ada sang.", "label": [[0, 3, "PER"]]}) + "\n")
    said = inspect(tmp_path / "a.jsonl", "--task=ner")
    assert "IOB2 tags: PER 1" in said and "  Ada/B-PER sang/O ./O" in said and "lengths in words: 5 to 5" in said
    (tmp_path / "b.jsonl").write_text(json.dumps({"q": "x", "a": ["y", "z"], "k": "B"}) + "\n")
    said = inspect(
        tmp_path / "b.jsonl",
        "--task=swag",
        "--set=options.text_column=q",
        "--set=options.begin_column=",
        "--set=options.choices_column=a",
        "--set=options.label_column=k",
    )
    assert "labels: 0 0, 1 1" in said and "  x | y | z" in said and "--set options.label_column=k" in said


def test_rows_that_nobody_accepted_are_counted(inspect, tmp_path):
    rows = [{"text": f"t{number}", "label": "AB"[number % 2], "answer": "accept"} for number in range(4)]
    rows += [{"text": "x", "label": "C", "answer": "reject"}, {"text": "y", "answer": "ignore"}]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    said = inspect(tmp_path / "a.jsonl", "--task=classification")
    assert "a.jsonl: 4 rows\n2 rows that people rejected or skipped left out\nlabels: A 2, B 2\n" in said


def test_questions_and_pairs_of_search_are_shown_too(inspect, golden, tmp_path):
    said = inspect(
        golden / "squad_v2.json",
        "--task=squad",
        "--set=options.version_2_with_negative=true",
        f"--eval_file={golden}/squad_v2.json",
        f"--vocab_file={golden}/vocab_uncased.txt",
    )
    assert (
        "labels: with an answer " in said
        and "lengths in tokens: " in said
        and " rows are in " in said
        and " | -> " in said
    )
    write = (tmp_path / "a.jsonl").write_text
    rows = [{"text": "a b", "text_pair": "c", "bad": ["d e f", "g"]}, {"text": "a b", "text_pair": "c", "bad": []}]
    write("\n".join(map(json.dumps, rows)))
    (tmp_path / "b.jsonl").write_text(json.dumps({"text": "a b", "text_pair": "c"}) + "\n")
    said = inspect(
        tmp_path / "a.jsonl",
        "--task=retrieval",
        "--set=options.negative_columns=[bad]",
        f"--eval_file={tmp_path}/b.jsonl",
    )
    for told in (
        "2 rows",
        "labels: pairs 2, negatives 2",
        "lengths in words: 3 to 5",
        "duplicates: 1 rows",
        "1 of its 1 rows",
        "  a b | c | d e f | g\n",
    ):
        assert told in said
    write(json.dumps({"text": "a b", "text_pair": "c", "bad": ["d e f", "g"]}) + "\n")
    said = inspect(tmp_path / "a.jsonl", "--task=reranking", "--set=options.negative_columns=[bad]")
    assert (
        "training rows: 1, of 1 different first texts, with 2 negatives" in said and "lengths in words: 6 to 8" in said
    )
    (tmp_path / "s.csv").write_text("text,text_pair,score\na,b,1.5\nc,d,4\n")
    scored = ["--set=options.train_on=scores", "--set=options.score_column=score", "--set=options.score_range=[0,5]"]
    assert "scores from 1.5 to 4" in inspect(tmp_path / "s.csv", "--task=retrieval", *scored)


@pytest.mark.parametrize(
    ("name", "content", "arguments", "message"),
    [
        ("pos.txt", "The DT\ncat NN\n", ["--task=ner"], "; expected --set options.scheme=plain$"),
        (
            "a.csv",
            "text,label\nx,1\n,0\ny,\nz,0\n",
            ["--task=classification"],
            r"a\.csv:4: .* expected a label, .*expected --set options.missing_label=skip "
            r"--set options.empty_text=skip$",
        ),
        (
            "a.csv",
            "body,team,grade\nhello you,de,a\nno never,fr,b\nfine by me,de,b\nno no no,fr,a\n",
            ["--task=classification"],
            "several columns may be the text and the label; expected --set "
            "options.text_column=body --set options.label_column=team or --set options.text_column=body",
        ),
        (
            "a.json",
            '[{"question": "q", "context": "c d", "answers": []}]',
            ["--task=squad"],
            "; expected --set options.version_2_with_negative=true",
        ),
        (
            "a.csv",
            "q\n",
            ["--task=pretraining"],
            "--task=pretraining: expected classification, swag, ner, squad, .*tools/inspect_records.py",
        ),
    ],
)
def test_the_options_that_help_are_named_not_the_tool_itself(inspect, tmp_path, name, content, arguments, message):
    (tmp_path / name).write_bytes(content.encode("latin-1"))
    with pytest.raises(ValueError, match=message) as told:
        inspect(tmp_path / name, *arguments)
    assert "inspect_data" not in str(told.value)


@pytest.mark.parametrize(
    ("content", "arguments", "told"),
    [
        (
            "pos,good\nneg,bad\n",
            ["--set=options.text_column=c2", "--set=options.label_column=c1"],
            "--set options.header=false",
        ),
        ("text,label\nsehr sch\xf6n f\xfcr uns,1\nx,0\n", [], "--set options.encoding=cp1252"),
        (
            "3,T,good fish in here\n1,U,bad fish\n3,V,good dog\n1,W,a dog it is\n",
            [],
            "--set options.header=false --set options.text_column=c3 --set options.label_column=c1",
        ),
        (
            "id,review,stars\n7,good fish in here,5\n8,bad fish,1\n9,so so,5\n",
            [],
            "--set options.text_column=review --set options.label_column=stars",
        ),
    ],
)
def test_what_a_table_shows_by_itself_is_told_with_the_options_that_fix_it(inspect, tmp_path, content, arguments, told):
    (tmp_path / "a.csv").write_bytes(content.encode("latin-1"))
    assert f"{tmp_path}/a.csv: read with {told}\n" in inspect(tmp_path / "a.csv", "--task=classification", *arguments)
