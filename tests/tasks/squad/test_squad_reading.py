"""Questions in rows, as the `datasets` library writes them, and several answers in training."""

import json

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest

from official_bert.data.rows import Rows
from official_bert.tasks.squad import metrics
from official_bert.tasks.squad.reading import read_squad


def write(path, value):
    path.write_text(value if isinstance(value, str) else json.dumps(value), encoding="utf-8")
    return str(path)


@pytest.fixture(scope="module")
def rows(golden):
    articles = json.loads((golden / "squad_v1.json").read_text(encoding="utf-8"))["data"]
    return [
        {
            "id": question["id"],
            "title": "",
            "context": paragraph["context"],
            "question": question["question"],
            "answers": {key: [answer[key] for answer in question["answers"]] for key in ("text", "answer_start")},
        }
        for article in articles
        for paragraph in article["paragraphs"]
        for question in paragraph["qas"]
    ]


@pytest.mark.parametrize(
    "form", ["rows.jsonl", "rows.parquet", "list.json", "data.json", "lines.json", "spread.json", "spread_data"]
)
def test_rows_in_any_file_are_the_questions_of_squads_json(golden, rows, tmp_path, form):
    path = tmp_path / form
    if form == "rows.parquet":
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    else:
        lines = "".join(json.dumps(row) + "\n" for row in rows)
        write(
            path,
            {
                "rows.jsonl": lines,
                "lines.json": lines,
                "list.json": rows,
                "spread.json": "\n" + json.dumps(rows, indent=1),
                "data.json": {"version": "1", "data": rows},
                "spread_data": json.dumps({"data": rows}, indent=1),
            }[form],
        )
    for training in (False, True):
        found, wanted = (read_squad(str(one), training) for one in (path, golden / "squad_v1.json"))
        assert found.examples == wanted.examples and found.unfound == wanted.unfound
        assert str(found.source) == str(path)


ROW = {
    "context": "Ada sat. Ada ran.",
    "question": "Who sat?",
    "answers": {"text": ["Ada", "Ada", "Ada", "Bo"], "answer_start": [0, 9, 0, 0]},
}


@pytest.mark.parametrize(("several", "words"), [("first", [(0, 0)]), ("all", [(0, 0), (2, 2)])])
def test_several_answers_are_the_first_one_or_an_example_each(tmp_path, several, words):
    file = read_squad(write(tmp_path / "train.jsonl", ROW), training=True, several=several)
    assert [(one.start_word, one.end_word) for one in file.examples] == words and {
        one.qas_id for one in file.examples
    } == {"0"}
    assert file.unfound == (("0 ('Bo')",) if several == "all" else ())


def test_answers_that_are_skipped_are_no_skipped_questions(tmp_path):
    def said(several, *answers):
        rows = [
            ROW | {"answers": {"text": list(texts), "answer_start": [0] * len(texts)}} for texts in (("Ada",), *answers)
        ]
        return read_squad(
            write(tmp_path / "a.jsonl", "".join(json.dumps(row) + "\n" for row in rows)), True, several=several
        ).warning()

    told = "answers skipped, which are not in the context, and with them"
    assert said("all", ("Ada", "Bo")).endswith(f"a.jsonl: 1 {told} 0 questions: 1 ('Bo')")
    assert f": 3 {told} 1 questions: 1 ('Bo'); 2" in said("all", ("Ada", "Bo"), ("Bo", "Cy"))
    assert ": 2 questions skipped, whose answer is not in the context: 1 ('Bo'); 2 ('Cy')" in said(
        "first", ("Bo", "Ada"), ("Cy",)
    )
    assert said("all", ("Ada",)) == ""


@pytest.mark.parametrize(
    ("name", "text", "told"),
    [
        (
            "train.jsonl",
            json.dumps(ROW),
            r"train\.jsonl:1 \(0\): expected exactly 1 answer in training data, got 4; .*several_answers",
        ),
        (
            "train.jsonl",
            json.dumps(ROW | {"answers": []}) + "\n",
            r"train\.jsonl:1 \(0\): expected exactly 1 answer .* got 0",
        ),
        ("train.jsonl", "\n" + json.dumps({"context": "a"}), r"train\.jsonl:2: 'question' is missing"),
        ("train.jsonl", '{"question"', r"train\.jsonl:1: not valid JSON"),
        ("train.jsonl", "", r"train\.jsonl: no row in this file"),
        (
            "train.json",
            "[1]",
            r"train\.json\[row 0\]: expected a JSON object, got 1; a file has an object a line, or a list of objects",
        ),
        ("train.json", json.dumps(ROW) + '\n{"context": "a"}\n', r"train\.json:1 \(0\): expected exactly 1 answer"),
        ("train.json", '{"context": "a"}\n{"question"\n', r"train\.json:2: not valid JSON: .* at column 12"),
        ("train.json", '{"data": [{"paragraphs": []}, 3]}', r"train\.json\[row 1\]: expected a JSON object, got 3"),
        ("train.json", '{"version": "1.1"}', r"train\.json:1: 'context' is missing; it has \['version'\]"),
        (
            "train.json",
            json.dumps([ROW | {"id": 7.5}]),
            r"train\.json\[row 0\]\.id: expected str, got '7\.5' \(float\)",
        ),
        ("train.parquet", "no Parquet", r"train\.parquet: not a readable Parquet file"),
    ],
)
def test_mistakes_in_rows_are_named_with_their_line(tmp_path, name, text, told):
    with pytest.raises(ValueError, match=told):
        read_squad(write(tmp_path / name, text), training=True)


BARE = {"context": "Ada sat.", "question": "Who sat?"}


@pytest.mark.parametrize("more", [{}, {"answers": None}, {"answer": {"text": ["Ada"], "answer_start": [0]}}])
@pytest.mark.parametrize("version_2", [False, True])
def test_rows_without_answers_are_a_test_set_and_no_training_data(tmp_path, version_2, more):
    path = write(tmp_path / "test.jsonl", BARE | more)
    assert not metrics.has_gold_answers(read_squad(path).articles, version_2)
    with pytest.raises(ValueError, match=r"test\.jsonl:1: 'answers' is missing"):
        read_squad(path, training=True, version_2=version_2)


@pytest.mark.parametrize(
    "more", [{"answers": {"text": [], "answer_start": []}}, {"answers": []}, {"is_impossible": True}]
)
def test_questions_that_say_that_they_have_no_answer_are_impossible(tmp_path, more):
    path = write(tmp_path / "dev.jsonl", BARE | more)
    assert metrics.has_gold_answers(read_squad(path).articles, version_2=True)
    (example,) = read_squad(path, training=True, version_2=True).examples
    assert example.is_impossible


def test_answers_to_only_some_questions_cannot_be_measured(tmp_path):
    path = write(
        tmp_path / "dev.jsonl",
        "".join(json.dumps(BARE | more) + "\n" for more in ({"answers": []}, {}, {"answers": []})),
    )
    asked = read_squad(path)
    assert len(asked.examples) == 3 and metrics.has_gold_answers(asked.articles, version_2=True)
    with pytest.raises(
        ValueError, match=r"dev\.jsonl: question '1': expected gold answers to evaluate against, got none"
    ):
        metrics.check_answers(asked.articles, version_2=True, where="dev.jsonl")


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize(
    ("answers", "told"),
    [
        ({"text": "Ada", "answer_start": 0}, r"\.answers: expected lists of equal length, .* got .*'Ada'"),
        ({"text": None, "answer_start": [0]}, r"\.answers: expected lists of equal length"),
        ({"text": ["Ada"]}, r"\.answers: expected lists of equal length"),
        ({"text": ["Ada", "Ada sat"], "answer_start": [0]}, r"\.answers: expected lists of equal length"),
        ({"text": ["Ada"], "answer_start": ["0"]}, r"\.answers: .* answer_start with whole numbers, got .*\['0'\]"),
        (["Ada"], r"\.answers\[0\]: expected an object with 'text', got 'Ada'"),
        ([{"answer_start": 0}], r"\.answers\[0\]: 'text' is missing"),
        ("Ada", r"\.answers: expected list, got 'Ada' \(str\)"),
    ],
)
def test_answers_of_another_form_are_refused_when_they_are_read(tmp_path, answers, told, training):
    with pytest.raises(ValueError, match=r"rows\.jsonl:1" + told):
        read_squad(write(tmp_path / "rows.jsonl", BARE | {"answers": answers}), training=training)


def test_ids_may_be_whole_numbers_and_answers_arrays(tmp_path):
    answers = {"text": ["Ada"], "answer_start": [0]}
    arrays = {"text": np.array(["Ada"], object), "answer_start": np.array([0], np.int32)}  # as pandas reads Parquet
    nested = {
        "data": [
            {
                "paragraphs": [
                    {
                        "context": BARE["context"],
                        "qas": [
                            {"id": 5, "question": BARE["question"], "answers": [{"text": "Ada", "answer_start": 0}]}
                        ],
                    }
                ]
            }
        ]
    }
    sources = (
        write(tmp_path / "rows.jsonl", BARE | {"id": 5, "answers": answers}),
        write(tmp_path / "nested.json", nested),
        Rows("rows", [BARE | {"id": 5, "answers": arrays}]),
    )
    for source in sources:
        file = read_squad(source, training=True)
        assert [(one.qas_id, one.answer, one.start_word, one.end_word) for one in file.examples] == [("5", "Ada", 0, 0)]
        assert [row["id"] for row in metrics.questions_of(read_squad(source).articles)] == ["5"]
