"""Rows held out, shares and folds in every family of tasks: nothing stands on both sides, and an evaluation alone holds
out the same.
"""

import json

import numpy as np
import pytest
from made_finetuning import GLUE, make_config, resolve
from made_pretraining import weights_after_two_steps

from official_bert.tasks.data import TRAIN_AND_EVALUATE, Steps

EVALUATE = Steps(train=False)
TAGS = {"labels": ["O", "B-PER", "I-PER"]}
WINDOWS = {"max_query_length": 8, "doc_stride": 8}


def texts_of(task, source):
    """The token ids of each row, as texts."""
    return {row["input_ids"].tobytes() for row in source.examples}


def write_csv(path, count=60):
    path.write_text(
        "text,label\n" + "".join(f"row {number % 50} is here,{'ab'[number % 5 == 0]}\n" for number in range(count))
    )
    return path


def write_conll(path, documents=0):
    lines = []
    for number in range(60):
        if documents and number % (60 // documents) == 0:
            lines += ["-DOCSTART- O", ""]
        lines += [f"Anna{number} {'B-PER' if number % 3 else 'O'}", f"sings{number} O", ""]
    path.write_text("\n".join(lines) + "\n")
    return path


def write_squad(path, articles):
    def paragraph(number, part):
        question = {
            "id": f"{number}.{part}",
            "question": f"Who wrote {part}?",
            "answers": [{"text": "Ada", "answer_start": 0}],
        }
        return {"context": f"Ada {number} wrote {part} it.", "qas": [question]}

    path.write_text(
        json.dumps(
            {
                "data": [
                    {"title": f"t{number}", "paragraphs": [paragraph(number, part) for part in range(4)]}
                    for number in range(articles)
                ]
            }
        )
    )
    return path


def write_pairs(path):
    """Pairs of which each has a text in common with its neighbour of the same ten."""
    rows = [
        f"asked {number // 10} {number % 10 // 2}\tanswer {number // 10} {(number % 10 + 1) // 2}"
        for number in range(200)
    ]
    path.write_text("text\ttext_pair\n" + "\n".join(rows) + "\n")
    return path


TASKS = {
    "classification": ("classification", lambda folder: write_csv(folder / "train.csv"), {"labels": ["a", "b"]}),
    "sentences": ("ner", lambda folder: write_conll(folder / "train.conll"), TAGS),
    "documents": (
        "ner",
        lambda folder: write_conll(folder / "train.conll", documents=12),
        TAGS | {"document_context": True},
    ),
    "articles": ("squad", lambda folder: write_squad(folder / "train.json", 20), WINDOWS),
    "passages": ("squad", lambda folder: write_squad(folder / "train.json", 5), WINDOWS),
    "pairs": ("retrieval", lambda folder: write_pairs(folder / "train.tsv"), {"group_size": 2}),
}


def data_of(folder, name, steps=TRAIN_AND_EVALUATE, **options):
    """Resolves a task with only a training file."""
    task, write, own = TASKS[name]
    config = make_config(task, options=own | options, training={"batch_size": 4, "eval_batch_size": 4})
    return resolve(config, steps, train_file=write(folder))


@pytest.mark.parametrize("name", ["classification", "sentences", "passages", "pairs"])
def test_a_pooler_that_no_head_reads_is_left_as_it_was(tmp_path, name):
    data = data_of(tmp_path, name)
    after = weights_after_two_steps(data)
    same = {
        weight
        for number, (weight, value) in enumerate(after.items())
        if np.array_equal(value, np.random.default_rng(number).normal(0, 0.1, value.shape).astype("float32"))
    }
    # it adds the same to all scores of a query: its gradient is zero but for rounding
    same -= {"layer_0/attention/key/bias"}
    assert same == (set() if name == "classification" else {"pooler/kernel", "pooler/bias"})


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("classification", " of its 60 rows are held out (options.dev_share=0.1)"),
        ("sentences", "6 of its 60 sentences are held out"),
        ("documents", "5 of its 60 sentences of 1 documents are held out"),
        ("articles", "8 of its 80 questions of 2 articles are held out"),
        ("passages", "2 of its 20 questions of 2 passages"),
        ("pairs", " of its 200 rows are held out"),
    ],
)
def test_rows_are_held_out_of_the_training_file(tmp_path, name, said):
    data = data_of(tmp_path, name)
    held_out, trained = data.held_out.source, data.train
    assert not texts_of(data.task, held_out) & texts_of(data.task, trained)
    assert sum(said in note for note in data.notes) == 1
    alone = data_of(tmp_path, name, EVALUATE)
    assert alone.train is None and alone.held_out.source.content == held_out.content
    half = data_of(tmp_path, name, train_share=0.5)
    assert half.held_out.source.content == held_out.content and texts_of(half.task, half.train) < texts_of(
        data.task, trained
    )
    whole = data_of(tmp_path, name, Steps(evaluate=False))
    assert "held out" not in " ".join(whole.notes)
    assert len(whole.train.examples) == len(trained.examples) + len(held_out.examples)
    assert data_of(tmp_path, name, dev_share=0.0).held_out is None
    seen = [
        texts_of(part.task, part.held_out.source)
        for part in (data_of(tmp_path, name, folds=4, fold=fold) for fold in range(4))
    ]
    assert set.union(*seen) == texts_of(whole.task, whole.train) and sum(map(len, seen)) == len(set.union(*seen))


def test_glue_is_cross_validated_on_its_training_file_alone():
    data = resolve(make_config("glue", options={"dataset": "mrpc", "folds": 2, "fold": 1}), data_dir=GLUE)
    whole = resolve(make_config("glue", options={"dataset": "mrpc"}), data_dir=GLUE)
    assert len(data.train.examples) + len(data.held_out.source.examples) == len(whole.train.examples)
    assert whole.notes == () and "fold 2 of 2" in data.notes[0]


@pytest.mark.parametrize("name", ["classification", "sentences", "articles", "pairs"])
def test_folds_refuse_an_evaluation_file(tmp_path, name):
    with pytest.raises(ValueError, match="--eval_file: expected none beside options.folds"):
        data = data_of(tmp_path, name, folds=2)
        file = {"classification": "csv", "sentences": "conll", "articles": "json", "pairs": "tsv"}[name]
        path = tmp_path / f"train.{file}"
        resolve(data.task.config, train_file=path, eval_file=path)


def test_features_of_a_part_are_not_those_of_the_whole(tmp_path):
    path = write_squad(tmp_path / "train.json", 20)
    options = {"max_query_length": 8, "doc_stride": 8, "dev_share": 0.0}
    sizes = [
        len(
            resolve(
                make_config("squad", options=options | {"train_share": share}),
                Steps(evaluate=False),
                train_file=path,
                cache_dir=tmp_path / "cache",
            ).train.examples
        )
        for share in (1.0, 0.5, 1.0)
    ]
    assert sizes == [80, 40, 80]
