"""Options of the tasks of search beside each other: each pair of them trains, or one line says why not."""

import dataclasses
import itertools

import numpy as np
import pytest
import tensorflow as tf
from made_finetuning import make_config

from official_bert.config import Config, build, merge, parse_override, to_dict
from official_bert.tasks.data import DataFiles, Steps
from official_bert.tasks.loading import load_task, task_class

WORDS = ("air", "water", "road", "family", "school", "church", "city", "river")
# Values that a person gives, of all options but those of how a table is read.
GIVEN = {
    "loss": ["triplet", "kl", "margin_mse", "contrastive_both", "cosent", "cosine", "pairwise", "pointwise"],
    "train_on": ["scores", "texts"],
    "negative_columns": ["[other]", "[other, more]"],
    "most_negatives": ["1"],
    "label_column": ["score"],
    "teacher_columns": ["[scores]"],
    "score_column": ["score"],
    "score_range": ["[0, 5]"],
    "group_size": ["2", "3"],
    "texts_at_once": ["2"],
    "temperature": ["0.1"],
    "margin": ["0.5"],
    "matryoshka": ["[16, 8]"],
    "pooling": ["cls"],
    "normalize": ["true"],
    "dimensions": ["8"],
    "vector_layers": ["[{kind: dense, units: 4}]"],
    "include_prompt": ["false"],
    "default_prompt": ["'a '"],
    "query_prompt": ["'the '"],
    "passage_prompt": ["'a '"],
    "more_prompts": ["{title: 'a '}"],
    "unknown_ids": ["skip"],
    "empty_text": ["skip"],
    "query_penalty": ["0.0"],
    "passage_penalty": ["0.0"],
    "penalty_steps": ["5"],
    "candidates": ["5"],
    "dropout": ["0.0"],
    "text_pair_column": ["other"],
    "max_seq_length": ["8"],
    "buckets": ["[8, 32]"],
    "dev_share": ["0.5"],
    "train_share": ["0.5"],
    "folds": ["2"],
}


def loss_of(task, batch):
    """The loss of outputs that are drawn at random."""
    rng = np.random.default_rng(0)
    rows, texts = batch["input_ids"].shape[:2]
    vectors = tf.math.l2_normalize(rng.normal(size=(rows, texts, 16)), axis=-1)
    outputs = {
        "embedding": tf.cast(vectors, tf.float32),
        "weights": tf.nn.relu(tf.cast(vectors, tf.float32)),
        "logits": tf.constant(rng.normal(size=(rows, texts)), tf.float32),
    }
    return sum(float(total) / float(weight) for total, weight in task.objective.losses(outputs, batch).values())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("task", "options"),
    [
        ("retrieval", {"group_size": 4}),
        ("retrieval", {"loss": "kl", "negative_columns": ["more"], "teacher_columns": ["scores"]}),
        ("retrieval", {"train_on": "scores", "score_column": "score", "score_range": [0.0, 5.0]}),
        ("splade", {"group_size": 4}),
        ("reranking", {"negative_columns": ["other"]}),
    ],
)
def test_each_pair_of_options_trains_or_is_refused_in_one_line(tmp_path, task, options):
    for part, first in (("train", "the"), ("dev", "her")):
        rows = [
            f'{first} {word}\t{word} {first}\t{number % 2}\tno {word}\t["more {word}", "a"]\t[3, 1, {number}, 0]'
            for number, word in enumerate(WORDS)
        ]
        (tmp_path / f"{part}.tsv").write_text("\n".join(["text\ttext_pair\tscore\tother\tmore\tscores", *rows]) + "\n")
    base = to_dict(
        make_config(
            task,
            options={"max_seq_length": 32, **options},
            training={"batch_size": 4, "eval_batch_size": 4},
            model={"hidden_dropout_prob": 0.1},
        )
    )
    names = {field.name for field in dataclasses.fields(task_class(task, "task").Options)}
    given = [(name, value) for name, values in GIVEN.items() if name in names for value in values]
    of_tables = {"file_format", "encoding", "delimiter", "decimal", "sheet", "header", "header_row"}
    assert names - set(GIVEN) == {"text_column", "fold", "split_seed"} | of_tables
    trained, wrong = 0, []
    for both in itertools.combinations(given, 2):
        values = base
        for name, value in both:
            values = merge(values, parse_override(f"options.{name}={value}"))
        try:
            files = DataFiles(
                train_file=str(tmp_path / "train.tsv"),
                eval_file="" if "folds" in dict(both) else str(tmp_path / "dev.tsv"),
            )
            resolved = load_task(build(Config, values)).data.resolve(files, Steps(), model="any")
            loss = loss_of(resolved.task, resolved.train.batch(0))
        except ValueError as error:
            told = len(str(error).splitlines()) == 1 and ("options." in str(error) or "train.tsv:" in str(error))
            wrong += [] if told else [(both, error)]
            continue
        wrong += [] if np.isfinite(loss) else [(both, loss)]
        trained += 1
    assert trained > 50 and not wrong, wrong
