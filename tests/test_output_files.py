"""Answers in the forms that training reads: predicted, corrected by a person, read back."""

import json

import pytest
from made_finetuning import make_config

from official_bert.data.tables import read_table, rows_of
from official_bert.data.tagged import span_forms
from official_bert.interface.output_files import OUTPUT_FORMATS, check_format, write_answers
from official_bert.tasks.tagging import conll

TEXTS = ["Ada lived in Rome.", "Nobody.", "Big Ben rings"]
ENTITIES = [{"entities": ["Ada", "Rome"], "types": ["PER", "LOC"], "starts": [0, 13], "ends": [3, 17]},
            {"entities": [], "types": [], "starts": [], "ends": []},
            {"entities": ["Big Ben"], "types": ["LOC"], "starts": [0], "ends": [7]}]


@pytest.mark.parametrize("form", ["csv", "jsonl", "parquet"])
def test_two_corrected_rows_are_exactly_what_differs_when_answers_are_read_back(tmp_path, form):
    config = make_config("classification", options={"text_column": "review", "label_column": "stars", "labels": ["bad", "good"]})
    rows = [{"id": number, "text": f"text, \"{number}\"\nagain"} for number in range(6)]
    answers = [{"label": ("good", "bad")[number % 2], "probabilities": [0.5, 0.5]} for number in range(6)]
    path = str(tmp_path / f"answers.{form}")
    write_answers(path, form, rows, answers, config)
    before = read_table(path, ["review", "stars", "id"])
    assert before.columns["review"] == [row["text"] for row in rows] and before.columns["stars"] == [answer["label"] for answer in answers]
    corrected = [answer | {"label": "bad"} if number in (0, 4) else answer for number, answer in enumerate(answers)]
    write_answers(path, form, rows, corrected, config)
    after = read_table(path, ["review", "stars"])
    assert [number for number in range(6) if before.columns["stars"][number] != after.columns["stars"][number]] == [0, 4]


@pytest.mark.parametrize("form", [form for form in OUTPUT_FORMATS if form != "csv"])
def test_entities_in_every_form_are_read_back_by_training(tmp_path, form):
    suffix = form if form in ("jsonl", "parquet", "conll") else "json" if form in span_forms.LISTS else "jsonl"
    path = str(tmp_path / f"answers.{suffix}")
    write_answers(path, form, [{"text": text} for text in TEXTS], ENTITIES, None)
    sentences = conll.read_sentences(path if form == "conll" or span_forms.span_rows(path) else rows_of(path))
    assert [sentence.tags for sentence in sentences] == [("B-PER", "O", "O", "B-LOC", "O"), ("O", "O"), ("B-LOC", "I-LOC", "O")]


def test_forms_that_cannot_hold_the_answers_are_refused():
    for form, outputs, message in (("csv", ["entities", "types"], "a text has several entities"),
                                   ("conll", ["label"], "expected one of csv, jsonl, parquet"), ("csv", ["embedding"], "expected none")):
        with pytest.raises(ValueError, match=message):
            check_format(form, outputs)
    check_format("doccano", ["entities"])
    check_format("csv", ["label", "probabilities"])


def test_several_labels_and_scores_are_written_as_training_reads_them(tmp_path):
    config = make_config("classification", options={"kind": "multi_label", "labels": ["a", "b"], "label_separator": "|"})
    write_answers(str(tmp_path / "a.csv"), "csv", [{"text": "x"}], [{"labels": ["b", "a"]}], config)
    assert (tmp_path / "a.csv").read_text() == "text,label\nx,b|a\n"
    write_answers(str(tmp_path / "a.jsonl"), "jsonl", [{"text": "x"}], [{"score": 1.5}], None)
    assert json.loads((tmp_path / "a.jsonl").read_text()) == {"text": "x", "label": 1.5}
