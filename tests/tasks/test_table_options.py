"""The encoding and the header of files: every task reads them, or refuses them with the reason."""

import json

import made_finetuning
import pytest

from official_bert.tasks.loading import load_task
from official_bert.training.task import Steps

QUESTION = {"question": "Wer?", "context": "Es war schön.", "answers": {"text": ["schön"], "answer_start": [7]}}
PAIRS = {"text_column": "c1", "text_pair_column": "c2"}
# Task, options, the file's name and text, and how many rows are trained on.
READ = [
    ("classification", {"header": False, "text_column": "c1", "label_column": "c2"}, "a.csv", "schön,1\nbäd,0\n", 2),
    ("swag", {"header": False, "text_column": "c1", "begin_column": "", "choice_columns": ["c2", "c3"], "label_column": "c4"}, "a.csv",
     "schön,a,b,0\nx,a,b,1\n", 2),
    ("retrieval", {"header": False, **PAIRS, "group_size": 2}, "a.tsv", "schön\tja\nbäd\tnein\n", 2),
    ("splade", {"header": False, **PAIRS, "group_size": 2}, "a.tsv", "schön\tja\nbäd\tnein\n", 2),
    ("reranking", {"header": False, **PAIRS, "negative_columns": ["c3"]}, "a.csv", "schön,ja,nein\nx,y,z\n", 2),
    ("squad", {"max_query_length": 16}, "a.json", json.dumps([QUESTION], ensure_ascii=False), 1),
    ("ner", {}, "a.conll", "schön O\nMünchen B-LOC\n\nx O\n", 2), ("ner", {"word_column": 1, "tag_column": 3}, "a.conllu",
                                                                "1\tschön\t_\tO\n2\tMünchen\t_\tB-LOC\n", 1),
    ("ner", {}, "a.jsonl", json.dumps({"text": "schön München", "label": [[6, 13, "LOC"]]}, ensure_ascii=False), 1)]


@pytest.mark.parametrize(("task", "options", "name", "text", "rows"), READ, ids=[f"{row[0]} {row[2]}" for row in READ])
def test_files_in_other_encodings_and_without_names_are_read(tmp_path, task, options, name, text, rows):
    (tmp_path / name).write_bytes(text.encode("cp1252"))
    def resolve(**more):
        config = made_finetuning.make_config(task, options={"dev_share": 0.0, **options, **more}, training={"batch_size": 2})
        return load_task(config).resolve(made_finetuning.data_files(train_file=tmp_path / name), Steps(evaluate=False))
    assert len(resolve(encoding="cp1252").train.examples) == rows
    with pytest.raises(ValueError, match=rf"{name}:\d+: not valid UTF-8.*it may be cp1252 .*--encoding=cp1252 reads it"):
        resolve()


@pytest.mark.parametrize(("task", "options", "reason"), [
    ("glue", {"encoding": "cp1252"}, "config.options.encoding: expected none for this task: it reads the published files"),
    ("glue", {"header": False}, "config.options.header: .*--task=classification reads others"),
    ("squad", {"header": False}, "config.options.header: expected none for this task: the files are JSON or Parquet"),
    ("ner", {"header": False}, "config.options.header: expected none for this task: columns of words and tags are numbers")])
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
        return task.resolve(made_finetuning.data_files(train_file=tmp_path / "qrels" / "train.tsv"), Steps(evaluate=False))
    with pytest.raises(ValueError, match=r"queries\.jsonl.*it is UTF-16: --encoding=utf-16 reads it"):
        resolve()
    with pytest.raises(ValueError, match=r"config\.options\.header: false: expected none beside a collection"):
        resolve(header=False)
