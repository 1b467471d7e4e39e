"""Questions in rows, as the `datasets` library writes them, and several answers in training."""

import json

import pyarrow
import pyarrow.parquet
import pytest

from official_bert.tasks.squad.reading import read_squad


def write(path, value):
    path.write_text(value if isinstance(value, str) else json.dumps(value), encoding="utf-8")
    return str(path)


@pytest.fixture(scope="module")
def rows(golden):
    articles = json.loads((golden / "squad_v1.json").read_text(encoding="utf-8"))["data"]
    return [{"id": question["id"], "title": "", "context": paragraph["context"], "question": question["question"],
             "answers": {key: [answer[key] for answer in question["answers"]] for key in ("text", "answer_start")}}
            for article in articles for paragraph in article["paragraphs"] for question in paragraph["qas"]]


@pytest.mark.parametrize("form", ["rows.jsonl", "rows.parquet", "list.json", "data.json"])
def test_rows_in_any_file_are_the_questions_of_squads_json(golden, rows, tmp_path, form):
    path = tmp_path / form
    if form == "rows.parquet":
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    else:
        write(path, "".join(json.dumps(row) + "\n" for row in rows) if form == "rows.jsonl" else rows if form == "list.json" else
              {"version": "1", "data": rows})
    for training in (False, True):
        found, wanted = (read_squad(str(one), training) for one in (path, golden / "squad_v1.json"))
        assert found.examples == wanted.examples and found.unfound == wanted.unfound
        assert str(found.source) == str(path)


ROW = {"context": "Ada sat. Ada ran.", "question": "Who sat?",
       "answers": {"text": ["Ada", "Ada", "Ada", "Bo"], "answer_start": [0, 9, 0, 0]}}


@pytest.mark.parametrize(("several", "words"), [("first", [(0, 0)]), ("all", [(0, 0), (2, 2)])])
def test_several_answers_are_the_first_one_or_an_example_each(tmp_path, several, words):
    file = read_squad(write(tmp_path / "train.jsonl", ROW), training=True, several=several)
    assert [(one.start_word, one.end_word) for one in file.examples] == words and {one.qas_id for one in file.examples} == {"0"}
    assert file.unfound == (("0 ('Bo')",) if several == "all" else ())


@pytest.mark.parametrize(("name", "text", "told"), [
    ("train.jsonl", json.dumps(ROW), r"train\.jsonl:1 \(0\): expected exactly 1 answer in training data, got 4; .*several_answers"),
    ("train.jsonl", json.dumps(ROW | {"answers": []}) + "\n", r"train\.jsonl:1 \(0\): expected exactly 1 answer .* got 0"),
    ("train.jsonl", "\n" + json.dumps({"context": "a"}), r"train\.jsonl:2: 'question' is missing"),
    ("train.jsonl", '{"question"', r"train\.jsonl:1: not valid JSON"),
    ("train.jsonl", "", r"train\.jsonl: no row in this file"),
    ("train.json", "[1]", r"train\.json: data\[0\]: expected an object with 'paragraphs', got '1'"),
    ("train.json", json.dumps([ROW | {"id": 7}]), r"train\.json\[row 0\]\.id: expected str, got '7'"),
    ("train.parquet", "no Parquet", r"train\.parquet: not a readable Parquet file")])
def test_mistakes_in_rows_are_named_with_their_line(tmp_path, name, text, told):
    with pytest.raises(ValueError, match=told):
        read_squad(write(tmp_path / name, text), training=True)
