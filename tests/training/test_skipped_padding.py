"""Trainings whose layers compute real tokens alone: the same as with padding, as often as they are repeated."""

import json

import numpy as np
import pytest
import tensorflow as tf
from made_finetuning import data_files, make_config

from official_bert.layers.speed import real_tokens
from official_bert.layers.speed.computing import computing
from official_bert.runs import whole_run
from official_bert.tasks.loading import load_task
from official_bert.training.machines.cluster import Placement
from official_bert.training.step import skips_padding


@pytest.fixture(scope="module")
def train_file(tmp_path_factory):
    path = tmp_path_factory.mktemp("padding") / "train.csv"
    rows = [f"the {'copper ' * (number % 11)}{word},{word}" for number in range(16) for word in ("atlas", "copper")]
    path.write_text("\n".join(["text,label", *rows]) + "\n")
    return path


@pytest.fixture
def skipped(monkeypatch):
    """The numbers by which counts of tokens are rounded, of each encoder that is traced."""
    made, plain = [], real_tokens.LearningTokens
    monkeypatch.setattr(
        real_tokens, "LearningTokens", lambda mask, multiple: made.append(multiple) or plain(mask, multiple)
    )
    return made


def train(folder, train_file, dropout=0.0, model=None, **training):
    """Returns the losses of a run's steps, and the lines that it printed."""
    said = []
    config = make_config(
        "classification",
        model={"num_hidden_layers": 2, "hidden_dropout_prob": dropout, **(model or {})},
        options={"dev_share": 0.0, "dropout": dropout},
        training={"batch_size": 8, "eval_batch_size": 8, "steps": 6, "log_every": 1, "steps_per_loop": 1, **training},
    )
    whole_run.train(load_task(config), data_files(train_file=train_file), str(folder), Placement(), report=said.append)
    rows = map(json.loads, (folder / "log.jsonl").read_text().splitlines())
    return [row["train/loss"] for row in rows if "train/loss" in row], said


@pytest.mark.slow
def test_a_run_of_real_tokens_alone_trains_as_one_with_padding(tmp_path, train_file, skipped):
    wanted, said = train(tmp_path / "padded", train_file, skip_padding=False)
    assert not skipped and not any("skip_padding" in line for line in said)
    found, said = train(tmp_path / "real", train_file, accumulation_steps=2)
    assert set(skipped) == {1} and "layers skip padding (training.skip_padding)" in said
    assert len(wanted) == 6
    np.testing.assert_allclose(found, wanted, rtol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "training"),
    [
        ({}, {"recompute": True}),
        ({}, {"recompute": "attention", "accumulation_steps": 4}),
        ({"attention": "left_to_right"}, {}),
        ({"bilstm_layers": 1}, {}),
        ({"bilstm_layers": 2}, {"recompute": True}),
        ({"pooling": "mean", "norm": "pre"}, {"recompute": True}),
    ],
)
def test_a_model_of_another_kind_trains_as_with_padding(tmp_path, train_file, skipped, model, training):
    wanted, _ = train(tmp_path / "padded", train_file, model=model, skip_padding=False, **training)
    found, _ = train(tmp_path / "real", train_file, model=model, **training)
    assert skipped and len(wanted) == 6
    np.testing.assert_allclose(found, wanted, rtol=1e-5)


@pytest.mark.slow
def test_a_run_of_real_tokens_alone_resumes_with_the_same_dropout(tmp_path, train_file, skipped, stopped_at):
    wanted, _ = train(tmp_path / "whole", train_file, dropout=0.3)
    with stopped_at(3):
        train(tmp_path / "stopped", train_file, dropout=0.3)
    assert train(tmp_path / "stopped", train_file, dropout=0.3)[0] == wanted
    assert skipped and len(wanted) == 6


def test_texts_without_any_token_are_computed_as_a_whole():
    tokens = real_tokens.RealTokens(np.zeros((2, 3)), 4)
    rows = tf.reshape(tf.range(6.0), (2, 3, 1))
    np.testing.assert_array_equal(tokens.unpad(rows)[0, :, 0], [0, 1, 2, 3, 4, 5, 0, 0])
    np.testing.assert_array_equal(tokens.pad(tokens.unpad(rows)), rows)


def test_padding_stays_where_shapes_must_be_known_beforehand():
    assert skips_padding(make_config("classification").training)
    assert not skips_padding(make_config("classification", training={"xla": True}).training)
    assert not skips_padding(make_config("classification", training={"skip_padding": False}).training)
    with pytest.raises(
        ValueError, match="config.training.skip_padding: expected auto or false with training.xla, .* got true"
    ):
        skips_padding(make_config("classification", training={"xla": True, "skip_padding": True}).training)
    with computing(removes_padding=True):
        # rows of pre-training are all of one length
        assert real_tokens.tokens_of(tf.ones((2, 5)), True) is real_tokens.ALL
