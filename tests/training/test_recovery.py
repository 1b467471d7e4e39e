"""Runs that end because of their numbers, and leave their checkpoints intact."""

import json
import types

import numpy as np
import pytest
from made_pretraining import data_files, make_config, write_records

from official_bert.run_folder import REWINDS_FILE, RunFolder
from official_bert.runs import whole_run
from official_bert.tasks.loading import load_task
from official_bert.training import loop
from official_bert.training.machines.cluster import Placement
from official_bert.training.machines.distribution import own_precision
from official_bert.training.stops.clock import NoClock
from official_bert.training.stops.recovery import Recovery
from official_bert.training.trainer import Trainer


def train(path, folder, phases=(), **training):
    config = make_config(
        training={"steps": 36, "log_every": 1, "save_every": 6, "keep_checkpoints": 9} | training, phases=list(phases)
    )
    with own_precision():
        whole_run.train(load_task(config), data_files(path), str(folder), Placement(), report=lambda _: None)


def test_the_host_looks_at_the_clock_after_the_steps_of_ten_seconds():
    run = types.SimpleNamespace(
        settings=make_config(training={"log_every": 50, "steps_per_loop": 100}).training,
        profile=types.SimpleNamespace(edges=()),
        evaluations=types.SimpleNamespace(next_due=lambda _: 100),
        clock=NoClock(),
    )
    assert [loop.Run.steps_until_next_event(run, 40, 100, seconds) for seconds in (0.0, 2.4, 2.6, 1e-3)] == [
        1,
        4,
        3,
        10,
    ]


def test_a_run_that_has_skipped_data_because_of_its_loss_is_not_continued(tmp_path):
    run = RunFolder(str(tmp_path))
    (tmp_path / REWINDS_FILE).write_text('{"rewinds": [], "means": {"24": [2.0, 24]}}')
    Recovery(None, run)  # it looked for spikes, and there were none
    (tmp_path / REWINDS_FILE).write_text('{"rewinds": [{"step": 24, "batches": 4}]}')
    with pytest.raises(ValueError, match=rf"^{tmp_path}/{REWINDS_FILE}: the run has skipped data .* seed$"):
        Recovery(None, run)
    (tmp_path / REWINDS_FILE).write_text("[1]")
    with pytest.raises(ValueError, match=rf"^{tmp_path}/{REWINDS_FILE}: expected a mapping"):
        Recovery(None, run)


def test_workers_restore_the_same_checkpoint_once_the_first_one_has_written_it():
    done = []
    folder = types.SimpleNamespace(
        folder="run",
        wait=lambda: done.append("written"),
        newest=lambda: done.append("looked") or "ckpt-6",
        restore_newest=lambda: done.append("restored") or "ckpt-6",
    )
    trainer = types.SimpleNamespace(
        any_worker=lambda _: done.append("all have written"),
        newest=lambda _: Trainer.newest(trainer, folder),
        steps_agree=lambda: done.count("restored") < 2,
    )
    assert Trainer.restore_newest(trainer, folder) == "ckpt-6"
    assert done == ["written", "all have written", "looked", "restored"]
    with pytest.raises(
        ValueError, match="--output_dir=run: expected a folder that all workers share, found different checkpoints"
    ):
        Trainer.restore_newest(trainer, folder)


@pytest.mark.slow
def test_steps_that_are_skipped_one_after_the_other_stop_the_run(tmp_path):
    path = write_records(tmp_path / "r.tfrecord", 100)
    with pytest.raises(ValueError, match="step 5: 5 steps were skipped one after the other"):
        train(path, tmp_path / "run", skip_gradient_norm=1e-6, max_skipped_in_a_row=5)
    assert not list((tmp_path / "run").glob("ckpt-*"))


@pytest.mark.slow
def test_float16_that_stays_not_finite_stops_and_leaves_the_checkpoints(tmp_path, monkeypatch):
    path = write_records(tmp_path / "r.tfrecord", 100)
    train(path, tmp_path / "run", steps=6, precision="float16")
    monkeypatch.setattr(
        loop.Run, "enter", lambda run, _: run.trainer.model.next_sentence.output_bias.assign([np.nan, 0.0])
    )
    before = sorted(path.name for path in (tmp_path / "run").glob("ckpt-*"))
    with pytest.raises(
        ValueError, match=r"step \d+: weight .*output_bias is not finite; the checkpoints before it are intact"
    ):
        train(path, tmp_path / "run", precision="float16", save_every=100, log_every=3)
    assert sorted(path.name for path in (tmp_path / "run").glob("ckpt-*")) == before
    for line in (tmp_path / "run" / "log.jsonl").read_text().splitlines():
        json.loads(line, parse_constant=pytest.fail)
