"""The encoding and the header of files: every task reads them, or refuses them with the reason."""

import json

import made_finetuning
import pytest

from official_bert.tasks.data import Steps
from official_bert.tasks.loading import load_task

QUESTION = {"question": "Wer?", "context": "Es war schön.", "answers": {"text": ["schön"], "answer_start": [7]}}
PAIRS = {"text_column": "c1", "text_pair_column": "c2"}
# Task, options, the file's name and text, and how many rows are trained on.
READ = [
    ("classification", {"header": False, "text_column": "c1", "label_column": "c2"}, "a.csv", "schön,1\nbäd,0\n", 2),
    (
        "swag",
        {
            "header": False,
            "text_column": "c1",
            "begin_column": "",
            "choice_columns": ["c2", "c3"],
            "label_column": "c4",
        },
        "a.csv",
        "schön,a,b,0\nx,a,b,1\n",
        2,
    ),
    ("retrieval", {"header": False, **PAIRS, "group_size": 2}, "a.tsv", "schön\tja\nbäd\tnein\n", 2),
    ("splade", {"header": False, **PAIRS, "group_size": 2}, "a.tsv", "schön\tja\nbäd\tnein\n", 2),
    ("reranking", {"header": False, **PAIRS, "negative_columns": ["c3"]}, "a.csv", "schön,ja,nein\nx,y,z\n", 2),
    ("squad", {"max_query_length": 16}, "a.json", json.dumps([QUESTION], ensure_ascii=False), 1),
    ("ner", {}, "a.conll", "schön O\nMünchen B-LOC\n\nx O\n", 2),
    ("ner", {"word_column": 1, "tag_column": 3}, "a.conllu", "1\tschön\t_\tO\n2\tMünchen\t_\tB-LOC\n", 1),
    ("ner", {}, "a.jsonl", json.dumps({"text": "schön München", "label": [[6, 13, "LOC"]]}, ensure_ascii=False), 1),
]


@pytest.mark.parametrize(("task", "options", "name", "text", "rows"), READ, ids=[f"{row[0]} {row[2]}" for row in READ])
def test_files_in_other_encodings_and_without_names_are_read(tmp_path, task, options, name, text, rows):
    (tmp_path / name).write_bytes(text.encode("cp1252"))

    def resolve(**more):
        config = made_finetuning.make_config(
            task, options={"dev_share": 0.0, **options, **more}, training={"batch_size": 2}
        )
        return load_task(config).data.resolve(
            made_finetuning.data_files(train_file=tmp_path / name), Steps(evaluate=False)
        )

    assert len(resolve(encoding="cp1252").train.examples) == rows
    assert len(resolve().train.examples) == rows


@pytest.mark.parametrize(
    ("task", "options", "reason"),
    [
        (
            "glue",
            {"encoding": "cp1252"},
            "config.options.encoding: expected none for this task: it reads the published files",
        ),
        ("glue", {"header": False}, "config.options.header: .*--task=classification reads others"),
        (
            "squad",
            {"header": False},
            "config.options.header: expected none for this task: the files are JSON or Parquet",
        ),
        (
            "ner",
            {"header": False},
            "config.options.header: expected none for this task: columns of words and tags are numbers",
        ),
    ],
)
def test_options_without_meaning_are_refused_with_the_reason(task, options, reason):
    with pytest.raises(ValueError, match=reason):
        load_task(made_finetuning.make_config(task, options=options))


def test_a_collection_has_a_header_and_may_have_another_encoding(tmp_path):
    (tmp_path / "qrels").mkdir()
    (tmp_path / "qrels" / "train.tsv").write_text("query-id\tcorpus-id\tscore\nq\tp\t1\nr\to\t1\n")
    for name, ids in (("queries", "qr"), ("corpus", "po")):
        text = "".join(json.dumps({"_id": one, "text": f"schön {one}"}, ensure_ascii=False) + "\n" for one in ids)
        (tmp_path / f"{name}.jsonl").write_bytes(text.encode("utf-16"))

    def resolve(**more):
        task = load_task(made_finetuning.make_config("retrieval", options={"group_size": 2, "dev_share": 0.0, **more}))
        return task.data.resolve(
            made_finetuning.data_files(train_file=tmp_path / "qrels" / "train.tsv"), Steps(evaluate=False)
        )

    assert len(resolve().train.examples) == 2
    with pytest.raises(ValueError, match=r"config\.options\.header: false: expected none beside a collection"):
        resolve(header=False)


@pytest.mark.parametrize(
    ("task", "options", "name", "text", "told"),
    [
        (
            "classification",
            {"kind": "multi_label"},
            "a.csv",
            'text,label\nx,"a,b"\ny,a\n',
            "training rows: 2, of the labels a 2, b 1",
        ),
        (
            "glue",
            {"dataset": "rte"},
            "a.tsv",
            "sentence1\tsentence2\tlabel\na\tb\tentailment\nc\td\tentailment\n",
            "training rows: 2, of the labels entailment 2, not_entailment 0",
        ),
        (
            "glue",
            {"dataset": "stsb"},
            "a.tsv",
            "sentence1\tsentence2\tscore\na\tb\t2.5\nc\td\t0\n",
            "training rows: 2, scores from 0 to 2.5",
        ),
        (
            "swag",
            {"choices_column": "c", "text_column": "t", "begin_column": ""},
            "a.jsonl",
            '{"t": "x", "c": ["a", "b", "d"], "label": 1}\n{"t": "y", "c": ["a", "b"], "label": 1}\n',
            "training rows: 2, by the number of the right choice 0: 0, 1: 2, 2: 0",
        ),
        (
            "squad",
            {"max_query_length": 16, "version_2_with_negative": True},
            "a.json",
            json.dumps([QUESTION, QUESTION | {"answers": []}]),
            "training rows: 2, questions with an answer 1, without 1",
        ),
        (
            "retrieval",
            {"group_size": 2},
            "a.tsv",
            "text\ttext_pair\na\tb\na\tc\n",
            "training rows: 2, of 1 different first texts, with 0 negatives",
        ),
        (
            "reranking",
            {"negative_columns": ["n"]},
            "a.csv",
            "text,text_pair,n\na,b,c\n",
            "training rows: 1, of 1 different first texts, with 1 negatives",
        ),
    ],
)
def test_the_labels_of_the_training_rows_are_told(tmp_path, task, options, name, text, told):
    (tmp_path / name).write_text(text)
    config = made_finetuning.make_config(task, options={"dev_share": 0.0, **options}, training={"batch_size": 2})
    assert (
        load_task(config)
        .data.resolve(made_finetuning.data_files(train_file=tmp_path / name), Steps(evaluate=False))
        .training_rows
        == told
    )


@pytest.mark.parametrize(
    ("task", "name"),
    [
        ("classification", "a.csv"),
        ("glue", "a.tsv"),
        ("swag", "a.csv"),
        ("retrieval", "a.tsv"),
        ("splade", "a.tsv"),
        ("reranking", "a.csv"),
        ("squad", "a.json"),
        ("ner", "a.conll"),
    ],
)
def test_errors_of_a_file_point_to_the_tool_that_shows_it(tmp_path, task, name):
    path = tmp_path / name
    path.write_text("{}\n" if task == "squad" else "nothing of it\n")
    named = "mrpc" if task == "glue" else task
    more = {"reranking": {"negative_columns": ["n"]}, "retrieval": {"group_size": 2}, "splade": {"group_size": 2}}
    with pytest.raises(
        ValueError,
        match=rf"{name}.*; (python tools/inspect_data\.py {path} --task={named} shows what is read"
        r"|expected --set options.scheme=plain)",
    ):
        task = load_task(made_finetuning.make_config(task, options=more.get(task, {})))
        task.data.resolve(made_finetuning.data_files(train_file=path), Steps(evaluate=False))
    with pytest.raises(ValueError) as told:
        task.data.resolve(made_finetuning.data_files(train_file=tmp_path / "missing.csv"), Steps(evaluate=False))
    assert "inspect_data" not in str(told.value)
