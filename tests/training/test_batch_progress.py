"""How far a training is, as masks made on the fly and objectives read it: values by hand, stops, replicas."""

import dataclasses
import importlib.util
import json
import os
import pathlib
import shutil
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf
import yaml
from made_pretraining import S, data_files, make_config, write_records, write_unmasked_records, write_vocab

from official_bert.config import to_dict
from official_bert.data.batches.sources import ExampleSource, Progress
from official_bert.data.pretraining.masking import MaskingConfig, VocabularyFacts
from official_bert.models.interchange import formats
from official_bert.objectives.objective import Objective, Sum
from official_bert.runs import whole_run
from official_bert.tasks.data import TRAIN_AND_EVALUATE, Steps
from official_bert.tasks.pretraining import task as pretraining
from official_bert.training import loop
from official_bert.training.machines.cluster import Placement

OWN = pathlib.Path(__file__).parents[2] / "docs/own"
FALLING = {"max_seq_length": S, "max_predictions_per_seq": 5, "masking": {"rate": 0.3}}


class Records(pretraining.RecordData):
    reads_progress = True


@dataclasses.dataclass(frozen=True)
class Told(Objective):
    """Learns nothing; logs the progress of the rows."""

    names = ()
    counter_names = ("progress",)

    def losses(self, outputs, batch):
        return {}

    def counters(self, outputs, batch):
        rows = batch["example_weights"]
        return {"progress": (tf.reduce_sum(batch["progress"] * rows), tf.reduce_sum(rows))}


class Task(pretraining.Task):
    data = property(Records)

    @property
    def objective(self):
        return Sum((*self.kind.objective.parts, Told()))


@pytest.fixture(scope="module")
def falling_rate():
    spec = importlib.util.spec_from_file_location("falling_rate", OWN / "falling_rate.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def logged(folder, name):
    rows = map(json.loads, (folder / "log.jsonl").read_text().splitlines())
    return {row["step"]: row[name] for row in rows if name in row}


def train(task, files, folder):
    return whole_run.train(task, files, str(folder), Placement(), report=lambda _: None)


def test_a_batch_has_the_share_of_the_steps_before_it():
    column = Progress(total=8, before=-2).column(tf.constant(4, tf.int64), 3)
    np.testing.assert_array_equal(column["progress"], np.full(3, 0.25, np.float32))
    assert Progress().column(tf.constant(4, tf.int64), 3) == {}
    source = ExampleSource([{"input_ids": np.arange(n)} for n in range(3, 9)], 2)
    assert "progress" not in next(iter(source.dataset()))
    source.progress = Progress(total=10, before=1)
    halves = [next(iter(source.dataset(4, 2, shard)))["progress"].numpy().tolist() for shard in range(2)]
    assert halves == [[0.5], [0.5]]


@pytest.mark.slow
@pytest.mark.parametrize("pack", [False, True])
def test_phases_micro_batches_and_loops_of_steps_read_the_step(tmp_path, eager_steps, pack):
    lengths = [write_records(tmp_path / f"{length}", 50, max_seq_length=length) for length in (12, S)]
    config = make_config(
        options={"pack": pack},
        training={"steps": 0, "log_every": 3, "steps_per_loop": 3, "accumulation_steps": 2, "eval_batch_size": 16},
        phases=[{"steps": 6, "options": {"max_seq_length": 12}}, {"steps": 3, "batch_size": 16}, {"steps": 3}],
    )
    train(Task(config), data_files(",".join(lengths), ",".join(lengths)), tmp_path / "run")
    # three steps each, of 12: the mean of 0, 1, 2, of 3, 4, 5, ...
    found = logged(tmp_path / "run", "train/progress")
    assert found == pytest.approx({3: 1 / 12, 6: 4 / 12, 9: 7 / 12, 12: 10 / 12}, abs=1e-6)
    assert {*logged(tmp_path / "run", "eval/progress").values()} == {1.0}


def test_the_rate_of_the_guide_falls_from_30_to_15_percent(falling_rate, tmp_path):
    facts = VocabularyFacts.of(falling_rate.Task(settings(tmp_path)).tokenizer)
    masking = falling_rate.FallingRate(MaskingConfig(rate=0.3), facts, 40, 12, seed=0)
    masks = tf.constant([[1] * 40, [1] * 20 + [0] * 20])
    for progress, wanted in ((0.0, [12, 6]), (0.5, [9, 4]), (1.0, [6, 3])):  # 30, 22.5 and 15 %; 4.5 becomes 4
        counts = masking.count_predictions({"input_mask": masks, "progress": tf.fill([2], progress)})
        assert counts.numpy().tolist() == wanted


def settings(folder, **training):
    values = {"steps": 5, "log_every": 1, "save_every": 100, "steps_per_loop": 1} | training
    vocab = write_vocab(folder / "vocab.txt")
    return make_config(options=FALLING, training=values, tokenizer={"vocab_file": vocab})


@pytest.mark.slow
def test_a_falling_rate_that_is_stopped_goes_on_to_the_bits_of_an_undisturbed_run(
    falling_rate, tmp_path, stopped_at, eager_steps
):
    task = falling_rate.Task(settings(tmp_path))
    files = data_files(write_unmasked_records(tmp_path / "records", 64))
    source = task.data.resolve(files, Steps(evaluate=False)).train
    source.progress = Progress(total=3)
    counts = [float(tf.reduce_sum(batch["masked_lm_weights"])) for batch in source.dataset().take(3)]
    assert counts == sorted(counts, reverse=True) and counts[2] < 0.75 * counts[0]
    train(task, files, tmp_path / "whole")
    with stopped_at(2) as status:
        train(task, files, tmp_path / "stopped")
    assert status.value.code == loop.STOPPED
    train(task, files, tmp_path / "stopped")
    losses = logged(tmp_path / "whole", "train/loss")
    assert logged(tmp_path / "stopped", "train/loss") == losses and len(losses) == 5
    whole, other = (formats.read(str(tmp_path / name)).weights for name in ("whole", "stopped"))
    assert all(np.array_equal(weight, other[name]) for name, weight in whole.items())


def test_a_training_of_some_hours_is_refused(tmp_path):
    config = make_config(training={"hours": 1.0, "steps": 0})
    with pytest.raises(ValueError, match=r'config.training.hours: expected steps or epochs .*"progress".* got 1 hours'):
        Task(config).data.check(TRAIN_AND_EVALUATE)
    pretraining.Task(config).data.check(TRAIN_AND_EVALUATE)


@pytest.mark.slow
def test_replicas_and_micro_batches_mask_as_one_device_does(tmp_path):
    shutil.copytree(OWN, tmp_path / "my_project")
    write_unmasked_records(tmp_path / "records", 200)
    config = to_dict(dataclasses.replace(settings(tmp_path), task="my_project.falling_rate"))
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(config))
    for name, flags in {
        "one": (),
        "two": ("--strategy=mirrored", "--num_cpu_devices=2", "--set=training.accumulation_steps=2"),
    }.items():
        command = ["-m", "official_bert.run_pretraining", "--config=run.yaml", "--input_file=records"]
        more = ["--set=model.hidden_dropout_prob=0.0", "--set=model.attention_probs_dropout_prob=0.0"]
        done = subprocess.run(
            [sys.executable, *command, *more, f"--output_dir={name}", *flags],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(OWN.parents[1])},
            check=False,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
    one, two = (logged(tmp_path / name, "train/loss") for name in ("one", "two"))
    assert one == pytest.approx(two, abs=1e-5) and len(one) == 5
