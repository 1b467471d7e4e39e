"""Answers in the forms that training reads: predicted, corrected by a person, read back."""

import json

import pytest
from made_finetuning import make_config

from official_bert.data.tabular.tables import TableOptions
from official_bert.data.tagged import span_forms
from official_bert.interface.output_files import (
    OUTPUT_FORMATS,
    check_format,
    check_name,
    ends_alike,
    files_of,
    write_answers,
)
from official_bert.tasks.tagging import conll

TEXTS = ["Ada lived in Rome.", "Nobody.", "Big Ben rings"]
ENTITIES = [
    {"entities": ["Ada", "Rome"], "types": ["PER", "LOC"], "starts": [0, 13], "ends": [3, 17]},
    {"entities": [], "types": [], "starts": [], "ends": []},
    {"entities": ["Big Ben"], "types": ["LOC"], "starts": [0], "ends": [7]},
]


@pytest.mark.parametrize("form", ["csv", "jsonl", "parquet"])
def test_two_corrected_rows_are_exactly_what_differs_when_answers_are_read_back(tmp_path, form):
    config = make_config(
        "classification", options={"text_column": "review", "label_column": "stars", "labels": ["bad", "good"]}
    )
    rows = [{"id": number, "text": f'text, "{number}"\nagain'} for number in range(6)]
    answers = [{"label": ("good", "bad")[number % 2], "probabilities": [0.5, 0.5]} for number in range(6)]
    path = str(tmp_path / f"answers.{form}")
    write_answers(path, form, rows, answers, config)
    before = TableOptions().read_table(path, ["review", "stars", "id"])
    assert before.columns["review"] == [row["text"] for row in rows] and before.columns["stars"] == [
        answer["label"] for answer in answers
    ]
    corrected = [answer | {"label": "bad"} if number in (0, 4) else answer for number, answer in enumerate(answers)]
    write_answers(path, form, rows, corrected, config)
    after = TableOptions().read_table(path, ["review", "stars"])
    assert [number for number in range(6) if before.columns["stars"][number] != after.columns["stars"][number]] == [
        0,
        4,
    ]


@pytest.mark.parametrize("form", [form for form in OUTPUT_FORMATS if form not in ("csv", "outputs")])
def test_entities_in_every_form_are_read_back_by_training(tmp_path, form):
    suffix = {"jsonl": form, "parquet": form, "conll": form, "brat": "ann"}.get(
        form, "json" if form in span_forms.LISTS else "jsonl"
    )
    path = str(tmp_path / f"answers.{suffix}")
    write_answers(path, form, [{"text": text} for text in TEXTS], ENTITIES, None)
    if form == "label_studio":  # a person confirms what was predicted
        text = (tmp_path / "answers.json").read_text()
        (tmp_path / "answers.json").write_text(text.replace('"predictions"', '"annotations"'))
    sentences = conll.read_sentences(path).sentences
    assert [sentence.tags for sentence in sentences] == [
        ("B-PER", "O", "O", "B-LOC", "O"),
        ("O", "O"),
        ("B-LOC", "I-LOC", "O"),
    ]


def test_the_form_of_the_input_is_that_of_the_output_if_their_names_end_alike(tmp_path):
    for one, other, alike in (
        ("a.jsonl", "b.jsonl", True),
        ("a.jsonl.gz", "b.jsonl", True),
        ("a.json", "b.jsonl", False),
        ("in", "out/", True),
    ):
        assert ends_alike(one, other) is alike
    (tmp_path / "in.ann").write_text("")
    source = str(tmp_path / "in.ann")
    assert files_of("b.ann", "", source) == files_of("b.txt", "brat", "") == ["b.txt", "b.ann"]
    assert files_of("b.jsonl", "", source) == files_of("b.jsonl", "outputs", source) == ["b.jsonl"]
    with pytest.raises(ValueError, match="--output_file=b.jsonl: expected NAME.ann for a document of brat"):
        files_of("b.jsonl", "brat", source)
    with pytest.raises(ValueError, match="--output_file=.*: expected a new or empty folder"):
        files_of(str(tmp_path), "brat", source)


def test_lists_in_lines_are_written_as_lines(tmp_path):
    originals = [[text, {"entities": [], "cats": {"a": 1}}] for text in TEXTS]
    for name, count in (("a.jsonl", 3), ("a.json", 1)):
        write_answers(str(tmp_path / name), "spacy", [{"text": text} for text in TEXTS], ENTITIES, None, originals)
        text = (tmp_path / name).read_text()
        rows = [json.loads(line) for line in text.splitlines()] if count == 3 else json.loads(text)
        assert (
            rows[0] == [TEXTS[0], {"entities": [[0, 3, "PER"], [13, 17, "LOC"]], "cats": {"a": 1}}] and len(rows) == 3
        )


def test_forms_that_cannot_hold_the_answers_are_refused():
    for form, outputs, message in (
        ("csv", ["entities", "types"], "a text has several entities"),
        ("conll", ["label"], "expected one of csv, jsonl, parquet"),
        ("csv", ["embedding"], "expected none"),
    ):
        with pytest.raises(ValueError, match=message):
            check_format(form, outputs)
    check_format("doccano", ["entities"])
    check_format("csv", ["label", "probabilities"])


def test_several_labels_and_scores_are_written_as_training_reads_them(tmp_path):
    config = make_config(
        "classification", options={"kind": "multi_label", "labels": ["a", "b"], "label_separator": "|"}
    )
    write_answers(str(tmp_path / "a.csv"), "csv", [{"text": "x"}], [{"labels": ["b", "a"]}], config)
    assert (tmp_path / "a.csv").read_text() == "text,label\nx,b|a\n"
    write_answers(str(tmp_path / "a.jsonl"), "jsonl", [{"text": "x"}], [{"score": 1.5}], None)
    assert json.loads((tmp_path / "a.jsonl").read_text()) == {"text": "x", "label": 1.5}


@pytest.mark.parametrize("name", ["answers.jsonl.gz", "answers.JSONL.GZ@8", "answers.csv.zst", "a@b.xz"])
def test_names_of_packed_files_are_refused(name):
    with pytest.raises(
        ValueError, match=r"--output_file=a.*: expected a name without \.(gz|zst|xz): answers are written unpacked"
    ):
        check_name(name)
    for plain in ("", "answers", "answers.gz.jsonl", "answers.jsonl@8", "answers.gz/part@8"):
        check_name(plain)
