"""A person predicts with a trained model, corrects two rows in a labelling tool, reads them back, trains on them."""

import csv
import json
import random
import shutil

import pytest
from commands import InThisProcess

from official_bert.data.tabular.tables import TableOptions
from official_bert.tasks.tagging import conll

pytestmark = pytest.mark.slow
TUNE = (
    "python -m official_bert.run_finetuning --cache_dir= --max_seq_length=32 --train_batch_size=16 "
    "--learning_rate=2e-3 "
)
PREDICT = "python -m official_bert.run_predict "
KINDS = {"ferry": "BOAT", "violin": "MUSIC"}


@pytest.fixture
def tuner(tmp_path, golden):
    """Returns a person with a checkpoint in `bert`."""
    shutil.copytree(golden / "tf1_bert", tmp_path / "bert")
    shutil.copy(golden / "vocab_uncased.txt", tmp_path / "bert/vocab.txt")
    return InThisProcess(tmp_path)


def texts(count, seed):
    """Draws texts with one of two words, and its place."""
    draw = random.Random(seed)
    for _ in range(count):
        words = [draw.choice(("the", "while", "it", "in", "three")) for _ in range(6)]
        place = draw.randrange(6)
        words[place] = draw.choice([*KINDS])
        start = len(" ".join(words[:place])) + bool(place)
        yield " ".join(words), start, start + len(words[place]), KINDS[words[place]]


def doccano(path, rows, labelled=True):
    path.write_text(
        "".join(
            json.dumps({"id": number, "text": text, "label": [list(span)] if labelled else []}) + "\n"
            for number, (text, *span) in enumerate(rows)
        ),
        encoding="utf-8",
    )


def label_studio(path, rows, labelled=True):
    path.write_text(
        json.dumps(
            [
                {
                    "id": number,
                    "data": {"text": text},
                    "annotations": [
                        {
                            "result": [
                                {
                                    "type": "labels",
                                    "from_name": "a",
                                    "to_name": "text",
                                    "value": {"start": start, "end": end, "labels": [kind]},
                                }
                            ]
                        }
                    ]
                    * labelled,
                }
                for number, (text, start, end, kind) in enumerate(rows)
            ]
        ),
        encoding="utf-8",
    )


def brat(path, rows, labelled=True):
    """A document of all texts, one a line."""
    text, lines = "", []
    for line, start, end, kind in rows:
        lines.append(f"T{len(lines) + 1}\t{kind} {len(text) + start} {len(text) + end}\t{line[start:end]}\n")
        text += line + "\n"
    path.with_suffix(".txt").write_text(text, encoding="utf-8")
    path.write_text("".join(lines) if labelled else "", encoding="utf-8")


def tags(path):
    """The words and tags of a file, as training reads them."""
    return [(sentence.words, sentence.tags) for sentence in conll.read_sentences(str(path)).sentences]


@pytest.mark.parametrize(
    ("write", "ending", "tool", "old", "new"),
    [
        (doccano, "jsonl", "doccano", '"BOAT"]]', '"SHIP"]]'),
        (label_studio, "json", "Label Studio's JSON", '"BOAT"', '"SHIP"'),
        (brat, "ann", "brat", "BOAT ", "SHIP "),
    ],
)
def test_two_corrected_entities_are_exactly_what_differs_and_training_reads_them(tuner, write, ending, tool, old, new):
    folder = tuner.folder
    rows = list(texts(160, 0))
    write(folder / f"train.{ending}", rows)
    write(folder / f"new.{ending}", list(texts(20, 1)), labelled=False)
    done = tuner.types(
        f"{TUNE} --task=ner --train_file=train.{ending} --init_checkpoint=bert --output_dir=runs/first "
        "--num_train_epochs=10 --set=options.dev_share=0"
    )
    assert "tags: BOAT" in done.out
    done = tuner.types(f"{PREDICT} --model=runs/first --input_file=new.{ending} --output_file=answers.{ending}")
    assert f"answers.{ending}: in the form of --input_file, {tool}" in done.out
    answers = folder / f"answers.{ending}"
    if write is label_studio:  # a person confirms what was predicted
        text = answers.read_text(encoding="utf-8")
        answers.write_text(text.replace('"predictions"', '"annotations"'), encoding="utf-8")
    write(folder / f"gold.{ending}", list(texts(20, 1)))
    before = tags(answers)
    assert before == tags(folder / f"gold.{ending}")
    whole = answers.read_text(encoding="utf-8")
    assert whole.count(old) > 3
    answers.write_text(whole.replace(old, new, 2), encoding="utf-8")
    after = tags(answers)
    differ = [number for number, (one, other) in enumerate(zip(before, after, strict=True)) if one != other]
    boats = [number for number, (_, found) in enumerate(before) if "B-BOAT" in found]
    assert differ == boats[:2] and all("B-SHIP" in after[number][1] for number in differ)
    done = tuner.types(
        f"{TUNE} --task=ner --train_file=answers.{ending} --init_checkpoint=bert --output_dir=runs/second "
        "--num_train_epochs=1 --set=options.dev_share=0"
    )
    assert "SHIP 2" in done.out
    done = tuner.types(
        f"{PREDICT} --model=runs/first --input_file=new.{ending} --output_file=all.rows.jsonl --output_format=outputs"
    )
    written = [json.loads(line) for line in (folder / "all.rows.jsonl").read_text(encoding="utf-8").splitlines()]
    assert [row["types"] for row in written] == [[kind] for _, _, _, kind in texts(20, 1)] and "scores" in written[0]


def test_two_corrected_labels_of_a_table_are_exactly_what_differs_and_training_reads_them(tuner):
    folder = tuner.folder
    for name, count, seed in (("train", 160, 0), ("new", 20, 1)):
        with open(folder / f"{name}.csv", "w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file)
            writer.writerows(
                [
                    ("id", "review", "kind"),
                    *((number, f'{text}, "so\n', kind) for number, (text, _, _, kind) in enumerate(texts(count, seed))),
                ]
            )
    reads = "--set=options.text_column=review --set=options.label_column=kind "
    done = tuner.types(
        f"{TUNE} --task=classification --train_file=train.csv --init_checkpoint=bert --output_dir=runs/first {reads}"
        "--num_train_epochs=10 --set=options.dev_share=0"
    )
    assert "training rows: 160, of the labels BOAT" in done.out
    tuner.types(
        f"{PREDICT} --model=runs/first --input_file=new.csv --keep_columns=id --output_file=answers.csv "
        f"--output_format=csv"
    )
    before = TableOptions().read_table(str(folder / "answers.csv"), ["id", "review", "kind"])
    assert before.columns["kind"] == [kind for *_, kind in texts(20, 1)]
    with open(folder / "answers.csv", encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    for number in (3, 11):
        rows[number]["kind"] = "SHIP"
    with open(folder / "corrected.csv", "w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    after = TableOptions().read_table(str(folder / "corrected.csv"), ["id", "review", "kind"])
    for name in ("id", "review", "kind"):
        differ = [number for number in range(20) if before.columns[name][number] != after.columns[name][number]]
        assert differ == ([3, 11] if name == "kind" else [])
    done = tuner.types(
        f"{TUNE} --task=classification --train_file=corrected.csv --init_checkpoint=bert --output_dir=runs/second "
        f"{reads}--num_train_epochs=1 --set=options.dev_share=0"
    )
    assert "SHIP 2" in done.out
