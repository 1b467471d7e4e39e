"""The page of forms: the line of every row reads a small file in that form, as a command would."""

import gzip
import json
import pathlib
import re
import shlex

import made_finetuning
import pyarrow
import pyarrow.parquet
import pytest

from official_bert.config import build
from official_bert.tasks.data import Steps
from official_bert.tasks.loading import load_task

PAGE = pathlib.Path(__file__).parent.parent / "docs/data_formats.md"
LINES = [
    tuple(cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1])
    for line in PAGE.read_text(encoding="utf-8").splitlines()
    if line.startswith("| ") and "---" not in line and not line.startswith("| form ")
]
TEXT = "Ada Lovelace lived in London."
PER = [[0, 12, "PER"], [22, 28, "LOC"]]
OBJECTS = [{"start": 0, "end": 12, "label": "PER"}, {"start": 22, "end": 28, "label": "LOC"}]
NLI = [
    {"sentence1": "a", "sentence2": "b", "gold_label": "entailment"},
    {"sentence1": "c", "sentence2": "d", "gold_label": "-"},
    {"sentence1": "e", "sentence2": "f", "gold_label": "neutral"},
]
CSV = "text,label\ngood,1\nbad,0\n"
TSV = "ham\tgood\t1\nspam\tbad\t0\n"


def lines(*rows):
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


def workbook(path):
    openpyxl = pytest.importorskip("openpyxl")
    book = openpyxl.Workbook()
    for row in (["text", "label"], ["good", 1], ["bad", 0]):
        book.active.append(row)
    book.save(path)


def parquet(rows):
    return lambda path: pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)


def brat(path):
    path.write_text("T1\tPER 0 12\tAda Lovelace\nT2\tLOC 22 28\tLondon\n")
    path.with_suffix(".txt").write_text(TEXT)


def two_files(path):
    path.write_text("good\nbad\n")
    path.with_name("train_labels.txt").write_text("1\n0\n")


def piqa(path):
    path.write_text(lines(*[{"goal": "g", "sol1": "a", "sol2": "b"}] * 2))
    path.with_name("train-labels.lst").write_text("1\n0\n")


GROUPS = [{"query": "q", "pos": ["a"], "neg": ["b"]}, {"query": "r", "pos": ["c"], "neg": ["d"]}]
STUDIO = [
    {
        "from_name": "label",
        "to_name": "text",
        "type": "labels",
        "value": {"start": one["start"], "end": one["end"], "labels": [one["label"]]},
    }
    for one in OBJECTS
]
# What each row's file holds, by the beginning of its first two cells, and what the command must say or how many rows it
# must train on.
FILES = {
    "CSV or TSV with names": (CSV, 2),
    "CSV or TSV without": ("1,title,good\n0,title,bad\n", 2),
    "the same, between tabs": (TSV, 2),
    "scores without": ("1.5\ta\tb\n0\tc\td\n", 2),
    "texts in": (two_files, 2),
    "`__label__NAME": ("__label__a good\n__label__b bad\n", 2),
    "the same, some": ("__label__a good\nso so\n__label__b bad\n", 2),
    '`{"text": ..., "label": ..., "answer"': (
        lines(
            {"text": "a", "label": 1, "answer": "accept"},
            {"text": "b", "answer": "ignore"},
            {"text": "c", "label": 2, "answer": "accept"},
        ),
        2,
    ),
    "JSON lines or": (lines({"text": "good", "label": 1}, {"text": "bad", "label": 0}), 2),
    "keys within": (json.dumps([{"title": "a", "labels": {"label": 1}}, {"title": "b", "labels": {"label": 2}}]), 2),
    "another encoding": ("text,label\nschön,1\nbäd,0\n".encode("cp1252"), 2),
    "`.xlsx`": (workbook, 2),
    "packed": (gzip.compress(CSV.encode()), 2),
    "`-` in": (lines(*NLI), 2),
    "`DataFrame.to_json()`": ('{"text":{"0":"a","1":"b"},"label":{"0":1,"1":0}}', 2),
    "numbers of classes": (parquet([{"text": "a", "label": 1}, {"text": "b", "label": 0}]), 2),
    "cells in quotation": ('text\tlabel\n"a ""b"" c"\t1\nbad\t0\n', 2),
    "Parquet": (parquet([{"text": "a", "label": 1}, {"text": "b", "label": 0}]), 2),
    "a beginning and four": (
        "sent1,sent2,ending0,ending1,ending2,ending3,label\nIt rained.,It,a,b,c,d,3\nx,y,a,b,c,d,0\n",
        2,
    ),
    "a column for each": (
        lines(*({"question": "q", **{f"choice{n}": f"c{n}" for n in range(5)}, "label": n} for n in (0, 4))),
        2,
    ),
    "two columns, and": (piqa, 2),
    "questions with": (
        lines(
            *(
                {
                    "question": {
                        "stem": "q",
                        "choices": [{"text": "a", "label": keys[0]}, {"text": "b", "label": keys[1]}],
                    },
                    "answerKey": keys[1],
                }
                for keys in ("AB", "12")
            )
        ),
        2,
    ),
    '`{"query": ..., "pos"': (lines(*GROUPS), 2),
    '`{"query": ..., "positive_passages"': (
        lines(
            *(
                {
                    "query": one["query"],
                    "positive_passages": [{"title": "", "text": one["pos"][0]}],
                    "negative_passages": [],
                }
                for one in GROUPS
            )
        ),
        2,
    ),
    '`[{"question"': (
        json.dumps(
            [
                {
                    "question": one["query"],
                    "positive_ctxs": [{"title": "t", "text": one["pos"][0]}],
                    "hard_negative_ctxs": [{"title": "t", "text": one["neg"][0]}],
                }
                for one in GROUPS
            ]
        ),
        2,
    ),
    "two columns, a goal": (lines(*({"goal": "g", "sol1": "a", "sol2": "b", "label": n} for n in (0, 1))), 2),
    "two columns, a premise": (
        lines(*({"premise": "p", "question": "cause", "choice1": "a", "choice2": "b", "label": n} for n in (0, 1))),
        2,
    ),
    "numbers from 1": (
        lines(*({"sentence": "p _", "option1": "a", "option2": "b", "answer": n} for n in ("1", "2"))),
        2,
    ),
    "lists, keys": (
        lines(
            *(
                {"question": "q", "choices": {"text": ["a", "b"], "label": keys}, "answerKey": keys[1]}
                for keys in (["A", "B"], ["1", "2"])
            )
        ),
        2,
    ),
    "lists, letters": (
        lines(*({"article": "t", "question": "q", "options": ["a", "b"], "answer": one} for one in "AB")),
        2,
    ),
    "columns, IOB1": ("Ada B-PER\nL. I-PER\n\nx O\n", "IOB2 tags: PER 1"),
    "`B-`, `M-`": ("科 B-PER\n全 M-PER\n德 E-PER\n好 O\n", "tags: PER 1"),
    "letters alone": ("a\tO\nb\tB\nc\tI\n", "IOB2 tags: entity 1"),
    "letters behind": ("a\tO\nb\tPER-B\nc\tPER-I\n", "IOB2 tags: PER 1"),
    "a table of words": (
        "Sentence #,Word,POS,Tag\nSentence: 1,In,IN,O\n,Rome,NNP,B-geo\nSentence: 2,Né,JJ,O\n".encode("cp1252"),
        "2 sentences, IOB2 tags: geo 1",
    ),
    "types alone": ("It\tO\nHicks\tperson-actor\n", "IO tags: person-actor 1"),
    "comments with `#`": (
        "#\thttp://x.org [2009]\n1\tAufgrund\tO\tO\n2\tKorfmann\tB-PER\tO\n",
        "1 comment lines left out",
    ),
    "comments with `##`": ("##klue-1\t<강릉:LC>\n강\tB-LC\n \tI-LC\n릉\tI-LC\n고\tO\n", "LC 1"),
    "CoNLL-U": ("# text = Do so\n1\tDo\tdo\tAUX\t_\n2\tso\tso\tADV\t_\n\n", "2 different tags"),
    "rows with `tokens`": (
        parquet([{"tokens": ["Ada", "x"], "ner_tags": [1, -100]}, {"tokens": ["y"], "ner_tags": [0]}]),
        "PER 1",
    ),
    '`{"text": ..., "label": [[0': (lines({"text": TEXT, "label": PER}), "LOC 1, PER 1"),
    '`{"text": ..., "entities"': (
        lines(
            {
                "text": TEXT,
                "entities": [
                    {"label": one["label"], "start_offset": one["start"], "end_offset": one["end"]} for one in OBJECTS
                ],
            }
        ),
        "LOC 1, PER 1",
    ),
    '`[{"data"': (json.dumps([{"data": {"text": TEXT}, "annotations": [{"result": STUDIO}]}]), "LOC 1, PER 1"),
    '`[{"text": ..., "label": [{': (
        json.dumps([{"text": TEXT, "label": [one["value"] for one in STUDIO]}]),
        "LOC 1, PER 1",
    ),
    '`[["text"': (json.dumps([[TEXT, {"entities": PER}]]), "LOC 1, PER 1"),
    '`{"text": ..., "ents"': (lines({"text": TEXT, "ents": OBJECTS}), "LOC 1, PER 1"),
    '`{"text": ..., "spans"': (
        lines({"text": TEXT, "spans": OBJECTS, "answer": "accept"}, {"text": "x", "spans": [], "answer": "reject"}),
        "1 rows that people rejected",
    ),
    '`{"text": ..., "annotations"': (
        lines(
            {
                "text": TEXT,
                "annotations": [{"label": 7, "start_offset": 0, "end_offset": 12}],
                "annotation_approver": None,
            }
        ),
        "7 1",
    ),
    '`{"text": ..., "label": {': (lines({"text": "彭小军认为", "label": {"name": {"彭小军": [[0, 2]]}}}), "name 1"),
    "`NAME.txt` beside": (brat, "LOC 1, PER 1"),
    '`{"data": ..., "label"': (lines({"data": TEXT, "label": PER}), "LOC 1, PER 1"),
}


@pytest.mark.parametrize("row", LINES, ids=[f"{row[0][:24]} {row[1][:20]}" for row in LINES])
def test_the_line_of_a_row_of_the_page_reads_its_form(golden, tmp_path, row):
    content, wanted = next(value for beginning, value in FILES.items() if row[0].startswith(beginning))
    words = shlex.split(row[2].strip("`").partition("`,")[0])
    flags = dict(word.removeprefix("--").split("=", 1) for word in words if word.startswith("--") and word != "--set")
    path = tmp_path / flags["train_file"]
    if callable(content):
        content(path)
    else:
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    config = made_finetuning.make_config(
        flags.get("task", "classification"),
        tokenizer={"vocab_file": str(golden / "vocab_cased.txt"), "do_lower_case": False},
        options={"max_seq_length": 32, "dev_share": 0.0},
        training={"batch_size": 32},
    )
    changes = [word for word, before in zip(words[1:], words) if before == "--set"]
    changes += [f"options.encoding={flags['encoding']}"] if "encoding" in flags else []
    config = build(type(config), config_with(config, changes), "config")
    resolved = load_task(config).data.resolve(made_finetuning.data_files(train_file=str(path)), Steps(evaluate=False))
    if isinstance(wanted, int):
        assert len(resolved.train.examples) == wanted
        assert resolved.training_rows.startswith("training rows: 2, ")
    else:
        assert wanted in " ".join(resolved.notes)


def config_with(config, changes):
    from official_bert.config import merge, parse_override, to_dict

    values = to_dict(config)
    for change in changes:
        values = merge(values, parse_override(change))
    return values


def test_every_form_has_a_row():
    assert len(LINES) >= len(FILES) and all(any(row[0].startswith(beginning) for row in LINES) for beginning in FILES)
