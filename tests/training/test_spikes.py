"""Spikes of the loss: what is one, and the run that goes back behind it, killed or not."""

import json
import types

import numpy as np
import pytest
from made_pretraining import data_files, make_config, write_records

from official_bert.models.run_folder import RunFolder
from official_bert.tasks.loading import load_task
from official_bert.training import loop
from official_bert.training.running.clock import NoClock
from official_bert.training.running.cluster import Placement
from official_bert.training.spikes import MOST_REWINDS, REWINDS_FILE, Rewind, Spikes
from official_bert.training.trainer import Trainer


def steady(count, loss=2.0):
    return [loss] * count, [False] * count


def test_a_spike_is_a_multiple_of_the_mean_before_it_or_no_number(tmp_path):
    spikes = Spikes(RunFolder(str(tmp_path)), 2.0, 0)
    assert spikes.first([9.0, 1.0, 9.0], [False] * 3) is None  # too early to tell
    spikes = Spikes(RunFolder(str(tmp_path)), 2.0, 0)
    assert spikes.first(*steady(30)) is None and spikes.mean == pytest.approx(2)
    assert spikes.first([2.0, 3.9, 4.2], [False] * 3) == 2
    assert spikes.first([float("nan"), 2.0], [False] * 2) is None  # float16's overflow, which the step has skipped
    assert spikes.first([float("nan"), 2.0], [True, False]) == 0
    assert Spikes(RunFolder(str(tmp_path)), 0.0, 0).first([1.0, float("nan")], [False, True]) is None
    assert not list(tmp_path.iterdir())


def test_the_mean_and_the_rewinds_are_those_of_the_checkpoint_that_a_run_resumes_from(tmp_path):
    through = Spikes(RunFolder(str(tmp_path)), 2.0, 0)
    losses = np.random.default_rng(0).uniform(1, 2, 60).tolist()
    assert through.first(losses[:40], [False] * 40) is None
    through.saving(40)
    resumed = Spikes(RunFolder(str(tmp_path)), 2.0, 40)
    assert through.first(losses[40:], [False] * 20) is None and resumed.first(losses[40:], [False] * 20) is None
    assert resumed.mean == through.mean and resumed.count == through.count == 60
    through.go_back(40, 13)
    assert (through.mean, through.count) == through.means[40]
    again = Spikes(RunFolder(str(tmp_path)), 0.0, 40)  # switched off, what was skipped stays skipped
    assert again.rewinds == [Rewind(40, 13)] and [again.skipped(step) for step in (0, 39, 40, 99)] == [0, 0, 13, 13]
    for _ in range(MOST_REWINDS - 1):
        assert through.may_go_back_to(40)
        through.go_back(40, 1)
    assert not through.may_go_back_to(40) and through.may_go_back_to(39)


def train(path, folder, phases=(), **training):
    config = make_config(
        training={"steps": 36, "log_every": 1, "save_every": 6, "keep_checkpoints": 9} | training, phases=list(phases)
    )
    loop.train(load_task(config), data_files(path), str(folder), Placement(), report=lambda _: None)


def logged(folder):
    rows = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    return {row["step"]: row["train/loss"] for row in rows if "train/loss" in row}, [
        row for row in rows if "rewind/loss" in row
    ]


@pytest.fixture
def bad_batch(monkeypatch):
    """Makes the loss of batch 27 look like that of bad data; returns the numbers of the batches as they are taken."""
    take, taken = loop.Run.take_steps, []

    def spiking(run, phase, batches, step, count):
        rows = take(run, phase, batches, step, count).copy()
        numbers = [run.recovery.batch_number(phase, step + index) for index in range(len(rows))]
        taken.extend(numbers)
        rows[:, 0] *= np.where(np.array(numbers) == 27, 9, 1)
        return rows

    monkeypatch.setattr(loop.Run, "take_steps", spiking)
    return taken


@pytest.mark.slow
def test_a_run_goes_back_behind_the_data_of_a_spike_and_a_kill_changes_nothing(tmp_path, bad_batch, monkeypatch):
    path = write_records(tmp_path / "r.tfrecord", 100)
    train(path, tmp_path / "whole", rewind_on_spike=3.0)
    losses, rewinds = logged(tmp_path / "whole")
    assert bad_batch[:24] == list(range(24)) and 27 in bad_batch and bad_batch[-12:] == list(range(28, 40))
    assert [(row["step"], row["rewind/from_step"], row["rewind/skipped_batches"]) for row in rewinds] == [(24, 28, 4)]
    assert len(losses) == 36 and max(losses.values()) < 6
    # The same as a run to which nothing happened on data without these four batches.
    monkeypatch.undo()
    (tmp_path / "without").mkdir()
    (tmp_path / "without" / REWINDS_FILE).write_text('{"rewinds": [{"step": 24, "batches": 4}]}')
    train(path, tmp_path / "without")
    assert logged(tmp_path / "without") == (losses, [])
    # And as one that is killed after it went back, before its next checkpoint.
    save = loop.Run.save

    def killed(run):
        if run.trainer.steps_done == 30:
            raise KeyboardInterrupt
        save(run)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(loop.Run, "save", killed)
        train(path, tmp_path / "killed", rewind_on_spike=3.0)
    (tmp_path / "killed" / REWINDS_FILE).write_text((tmp_path / "whole" / REWINDS_FILE).read_text())
    train(path, tmp_path / "killed", rewind_on_spike=3.0)
    assert logged(tmp_path / "killed")[0] == losses


@pytest.mark.slow
def test_the_data_of_another_phase_begin_with_their_first_batch(tmp_path, monkeypatch, eager_steps):
    paths = [write_records(tmp_path / f"{length}.tfrecord", 100, max_seq_length=length) for length in (12, 16)]
    begins, distribute = [], loop.distribution.distribute
    monkeypatch.setattr(
        loop.distribution,
        "distribute",
        lambda source, strategy, start, stop: begins.append(start) or distribute(source, strategy, start, stop),
    )
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / REWINDS_FILE).write_text('{"rewinds": [{"step": 2, "batches": 3}]}')
    short = {"max_seq_length": 12}
    train(
        ",".join(paths),
        tmp_path / "run",
        steps=0,
        phases=[{"steps": 3, "options": short}, {"steps": 1}, {"steps": 1, "options": short}],
    )
    assert begins == [0, 5, 0, 6]  # the third phase goes on in the records of the first


def test_several_workers_look_for_a_spike_after_each_step_because_each_measures_its_own_seconds():
    def steps(several_workers, rewind_on_spike, seconds):
        run = types.SimpleNamespace(
            settings=make_config(
                training={"rewind_on_spike": rewind_on_spike, "log_every": 50, "steps_per_loop": 100}
            ).training,
            trainer=types.SimpleNamespace(several_workers=several_workers),
            profile=types.SimpleNamespace(edges=()),
            recovery=types.SimpleNamespace(spikes=types.SimpleNamespace(edges=[])),
            evaluations=types.SimpleNamespace(next_due=lambda _: 100),
            clock=NoClock(),
        )
        return loop.Run.steps_until_next_event(run, 40, 100, seconds)

    assert [steps(True, 2.0, seconds) for seconds in (2.4, 2.6)] == [1, 1]
    assert [steps(*alone, seconds) for alone in ((False, 2.0), (True, 0.0)) for seconds in (2.4, 2.6)] == [4, 3, 4, 3]


def test_workers_go_back_to_the_same_checkpoint_once_the_first_one_has_written_it():
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
