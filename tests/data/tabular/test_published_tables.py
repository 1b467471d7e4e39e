"""Forms in which libraries and tools write tables, beside a row a line."""

import gzip
import json

import pandas
import pyarrow
import pyarrow.parquet
import pytest
from made_finetuning import make_config

from official_bert.data.tabular.tables import Rows, TableOptions
from official_bert.data.tagged import span_forms
from official_bert.data.tagged.column_files import read_columns
from official_bert.fields import OptionsNeededError
from official_bert.search.collections import read_collection
from official_bert.tasks.data import DataFiles
from official_bert.tasks.loading import load_task

FRAME = pandas.DataFrame({"text": ["one river", "two rivers", "a bridge"], "label": [1, 0, 1]})


@pytest.mark.parametrize("orient", ["columns", "index", "split", "records", "table"])
def test_the_json_of_pandas_is_read(tmp_path, orient):
    (tmp_path / "a.json").write_text(FRAME.to_json(orient=orient))
    table = TableOptions().read_table(str(tmp_path / "a.json"), ["text", "label"])
    assert table.columns == {"text": list(FRAME.text), "label": list(FRAME.label)}
    if orient == "columns":  # an index of names
        (tmp_path / "a.json").write_text(FRAME.set_index(pandas.Index(["r1", "r2", "r3"])).to_json())
        assert TableOptions().read_table(str(tmp_path / "a.json"), ["text"]).columns == {"text": list(FRAME.text)}


def test_names_of_classes_in_parquet_take_the_place_of_numbers(tmp_path):
    names = {"names": ["neg", "pos"], "_type": "ClassLabel"}
    features = {"label": names, "tags": {"feature": names, "_type": "Sequence"}, "text": {"dtype": "string"}}
    table = pyarrow.Table.from_pydict({"text": ["a", "b", "c"], "label": [1, 0, -1], "tags": [[0, 1], [], [1]]})
    metadata = {b"huggingface": json.dumps({"info": {"features": features}}).encode()}
    pyarrow.parquet.write_table(table.replace_schema_metadata(metadata), tmp_path / "a.parquet")
    read = TableOptions().read_table(str(tmp_path / "a.parquet"), ["text", "label", "tags"])
    assert read.columns["label"] == ["pos", "neg", None] and read.columns["tags"] == [["neg", "pos"], [], ["pos"]]


def test_beir_may_be_packed_and_trec_judges_in_four_columns(tmp_path):
    (tmp_path / "qrels").mkdir()
    for name, rows in (("corpus", "ab"), ("queries", "q")):
        lines = "".join(json.dumps({"_id": one, "text": f"text of {one}"}) + "\n" for one in rows)
        (tmp_path / f"{name}.jsonl.gz").write_bytes(gzip.compress(lines.encode()))
    for content in (
        "query-id\tcorpus-id\tscore\nq\ta\t1.0\nq\tb\t0\n",
        "q 0 a 1\nq 0 b 0\n",
        "q\t0\ta\t1\nq\tQ0\tb\t0\n",
    ):
        (tmp_path / "qrels/train.tsv").write_text(content)
        collection = read_collection(str(tmp_path / "qrels/train.tsv"), "refuse", pytest.fail)
        assert collection.relevant == [{0: 1}] and collection.passages == ["text of a", "text of b"]
    (tmp_path / "qrels/train.tsv").write_text("query-id\tcorpus-id\tscore\nq\ta\t0.5\n")
    with pytest.raises(ValueError, match="column 'score': expected a whole number, got '0.5'"):
        read_collection(str(tmp_path / "qrels/train.tsv"), "refuse", pytest.fail)


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        (
            "multiconer.conll",
            "# id 4e7a-1\tdomain=en\nAnna _ _ B-PER\nlives _ _ O\n\n# id 4e7a-2\tdomain=en\nRome _ _ B-LOC\n",
            ["Anna", "lives", "Rome"],
        ),
        ("wikiann.txt", "en:Anna\tB-PER\nen:lives\tO\n\nen:Rome\tB-LOC\n", ["Anna", "lives", "Rome"]),
        ("words.csv", "token;label\nAnna;B-PER\nlives;O\n;\nRome;B-LOC\n", ["Anna", "lives", "Rome"]),
        ("times.txt", "12:30 O\nRome B-LOC\n", ["12:30", "Rome"]),
    ],
)
def test_published_files_of_words(tmp_path, name, content, words):
    (tmp_path / name).write_text(content)
    file = read_columns(str(tmp_path / name), 0, -1, "", "")
    assert [line.cells[file.word] for line in file.lines] == words


def test_whole_sentences_in_cells_are_refused_with_the_way_to_write_them(tmp_path):
    (tmp_path / "a.csv").write_text("text,labels\nAnna lives in Rome,B-PER O O B-LOC\n")
    with pytest.raises(ValueError, match=r"a\.csv: .*got whole sentences in cells: write a word and its tag a line"):
        read_columns(str(tmp_path / "a.csv"), 0, -1, "", "")
    (tmp_path / "a.csv").write_text("Anna;B-PER\nlives;O\n")
    with pytest.raises(ValueError, match=r"options\.separator=; reads columns"):
        read_columns(str(tmp_path / "a.csv"), 0, -1, "", "")


def prodigy(**more):
    return {"text": "Anna lives in Rome", "answer": "accept", **more}


def test_prodigys_rows_without_spans_have_no_entity_and_its_binary_answers_are_refused():
    marked = {"spans": [{"start": 0, "end": 4, "label": "PER"}]}
    rows = [prodigy(**marked), prodigy()]
    assert [len(record[1]) for _, record in span_forms.records(Rows("train", rows))] == [1, 0]
    for binary in ({"_view_id": "ner"}, {"_is_binary": True}):
        with pytest.raises(ValueError, match=r"train: .*Prodigy's answers to one entity each"):
            list(span_forms.records(Rows("train", [prodigy(**binary, **marked)])))
    rows = [
        {"text": f"text {number}", "label": "GOOD", "answer": ["accept", "reject"][number % 2]} for number in range(6)
    ]
    task = load_task(make_config("classification"))
    with pytest.raises(OptionsNeededError, match="Prodigy's binary rows") as told:
        task.data.read_train(DataFiles(train_file=Rows("train", rows)))
    read, _ = task.data.with_given(told.value.readings[0]).read_train(DataFiles(train_file=Rows("train", rows)))
    assert read.options.labels == ("accept", "reject")


def test_label_studios_rejected_annotations_are_left_out_and_urls_refused():
    result = [{"type": "labels", "to_name": "text", "value": {"start": 0, "end": 4, "text": "Anna", "labels": ["PER"]}}]
    tasks = [
        {"data": {"text": "Anna lives"}, "annotations": [{"result": result, "reviews": [{"accepted": accepted}]}]}
        for accepted in (True, False)
    ]
    assert [record and len(record[1]) for _, record in span_forms.records(Rows("train", tasks))] == [1, None]
    with pytest.raises(ValueError, match=r"expected a text under 'text', got the url of one, 's3://bucket/a\.txt'"):
        list(
            span_forms.records(
                Rows("train", [{"data": {"text": "s3://bucket/a.txt"}, "annotations": [{"result": []}]}])
            )
        )
