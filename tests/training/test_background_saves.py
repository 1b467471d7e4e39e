"""Checkpoints that are written while the next steps run."""

import json
import shutil
import threading
import types

import numpy as np
import pytest
import tensorflow as tf
from made_pretraining import data_files, make_config, resolve, write_records

from official_bert.runs import whole_run
from official_bert.tasks.loading import load_task
from official_bert.training.checkpointing import CheckpointFolder
from official_bert.training.logs.run_log import Watcher
from official_bert.training.machines.cluster import Placement
from official_bert.training.trainer import Trainer

CONFIG = make_config(training={"steps": 6, "log_every": 1, "save_every": 2, "steps_per_loop": 1, "keep_checkpoints": 9})


@pytest.fixture(scope="module")
def records(tmp_path_factory):
    return write_records(tmp_path_factory.mktemp("records") / "train.tfrecord", 100)


def train(records, folder):
    whole_run.train(load_task(CONFIG), data_files(records), str(folder), Placement(), report=lambda _: None)
    return [json.loads(line)["train/loss"] for line in (folder / "log.jsonl").read_text().splitlines()]


def values_of(prefix):
    reader = tf.train.load_checkpoint(str(prefix))
    return {
        name: reader.get_tensor(name) for name in reader.get_variable_to_shape_map() if name.endswith("VARIABLE_VALUE")
    }


def assert_same(one, other):
    assert one.keys() == other.keys() and len(one) > 50
    for name, value in one.items():
        np.testing.assert_array_equal(value, other[name], err_msg=name)


def test_steps_after_a_snapshot_do_not_change_it(records, tmp_path):
    resolved = resolve(CONFIG, records)
    trainer = Trainer(resolved.recipe, tf.distribute.get_strategy(), 6)
    batches = iter(resolved.train.dataset())
    trainer.run_steps(batches, tf.constant(2))
    trainer.checkpoint.write(str(tmp_path / "at_once"))
    snapshot = trainer.snapshot()
    trainer.run_steps(batches, tf.constant(2))
    snapshot.write(str(tmp_path / "later"))
    assert_same(values_of(tmp_path / "later"), values_of(tmp_path / "at_once"))
    trainer.checkpoint.read(str(tmp_path / "later")).assert_consumed()
    assert trainer.steps_done == 2


@pytest.mark.slow
def test_a_run_goes_on_while_a_checkpoint_is_written_and_ends_with_whole_ones(records, tmp_path, monkeypatch):
    losses = train(records, tmp_path / "fast")
    log, four_done, waited = Watcher.training, threading.Event(), []
    write = CheckpointFolder._write

    def logged(watcher, step, *metrics):
        log(watcher, step, *metrics)
        if step == 4:
            four_done.set()

    def slow(folder, checkpoint, step):
        if step == 2:
            waited.append(four_done.wait(60))
        return write(folder, checkpoint, step)

    monkeypatch.setattr(Watcher, "training", logged)
    monkeypatch.setattr(CheckpointFolder, "_write", slow)
    assert train(records, tmp_path / "slow") == losses
    assert waited == [True]  # step 4 was reached before the checkpoint of step 2
    for step in (2, 4, 6):
        assert_same(values_of(tmp_path / f"slow/ckpt-{step}"), values_of(tmp_path / f"fast/ckpt-{step}"))


def test_a_checkpoint_that_cannot_be_written_in_the_background_stops_the_run(
    records, tmp_path, monkeypatch, eager_steps
):
    write = tf.train.Checkpoint.write

    def full(checkpoint, prefix, *more):
        if prefix.endswith("ckpt-4"):
            raise OSError("No space left on device")
        return write(checkpoint, prefix, *more)

    monkeypatch.setattr(tf.train.Checkpoint, "write", full)
    with pytest.raises(
        OSError, match="the checkpoint of step 4 could not be written, those before it are intact: No space left"
    ):
        train(records, tmp_path)
    assert sorted(path.name for path in tmp_path.glob("ckpt-*.index")) == ["ckpt-2.index"]
    assert "ckpt-2" in (tmp_path / "checkpoint").read_text()


def test_a_disk_without_room_for_a_checkpoint_is_told_before_the_first_step(records, tmp_path, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda path: types.SimpleNamespace(free=1000))
    with pytest.raises(ValueError, match=r"run: about .* kB are needed for a checkpoint, 1.0 kB are free"):
        train(records, tmp_path / "run")
    assert not (tmp_path / "run").exists()
