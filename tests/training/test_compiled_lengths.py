"""Trainings whose pieces are compiled for every length of their batches: which ones, and that they train the same."""

import json

import numpy as np
import pytest
from made_finetuning import data_files, make_config

from official_bert.config import Config, ModelConfig, TrainingConfig
from official_bert.layers.speed import fused
from official_bert.runs import whole_run
from official_bert.tasks.loading import load_task
from official_bert.training import step
from official_bert.training.machines import distribution
from official_bert.training.machines.cluster import Placement


def config_of(precision="bfloat16", width=384, layers=6, batch_size=32, **training):
    return Config(
        model=ModelConfig(hidden_size=width, num_hidden_layers=layers, num_attention_heads=4),
        training=TrainingConfig(precision=precision, batch_size=batch_size, steps=1, **training),
    )


def compiles(config, steps):
    return step.compiles_every_length(config.model, config.training, steps)


def test_long_trainings_in_bfloat16_are_compiled_for_every_length():
    # By hand: 2^29 numbers are 227.6 steps of 32 rows of 32 tokens through 6 layers of 384.
    assert compiles(config_of(), 228) and not compiles(config_of(), 227)
    assert not compiles(config_of("float32"), 10**6)
    assert not compiles(config_of(xla=True), 10**6)
    assert not compiles(config_of(width=16, layers=2, batch_size=8), 500)


@pytest.fixture(scope="module")
def train_file(tmp_path_factory):
    path = tmp_path_factory.mktemp("lengths") / "train.csv"
    rows = [f"the {'copper ' * (number % 11)}{word},{word}" for number in range(16) for word in ("atlas", "copper")]
    path.write_text("\n".join(["text,label", *rows]) + "\n")
    return path


def losses(folder, train_file, accumulation_steps):
    config = make_config(
        "classification",
        model={"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0},
        options={"dev_share": 0.0, "dropout": 0.0},
        training={
            "batch_size": 8,
            "eval_batch_size": 8,
            "steps": 8,
            "log_every": 1,
            "precision": "bfloat16",
            "accumulation_steps": accumulation_steps,
        },
    )
    try:
        whole_run.train(
            load_task(config), data_files(train_file=train_file), str(folder), Placement(), report=lambda _: None
        )
    finally:
        distribution.set_precision("float32")
    rows = map(json.loads, (folder / "log.jsonl").read_text().splitlines())
    return [row["train/loss"] for row in rows if "train/loss" in row]


@pytest.mark.slow  # layers/test_fused.py compiles the pieces for several lengths
@pytest.mark.parametrize("accumulation_steps", [1, 2])
def test_a_run_compiled_for_every_length_trains_as_another(tmp_path, monkeypatch, train_file, accumulation_steps):
    wanted = losses(tmp_path / "plain", train_file, accumulation_steps)
    compiled = []
    monkeypatch.setattr(step, "MANY_NUMBERS", 1)
    plain = fused.run_compiled
    monkeypatch.setattr(
        fused,
        "run_compiled",
        lambda function, *rest, **more: compiled.append(function) or plain(function, *rest, **more),
    )
    found = losses(tmp_path / "compiled", train_file, accumulation_steps)
    assert len(wanted) == 8 and {fused._apply, fused._normalize, fused.softmax_gradient} <= set(compiled)
    np.testing.assert_allclose(found, wanted, rtol=0.02)
    assert found != wanted
