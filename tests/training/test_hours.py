"""Trainings that end with their time: the rate by the share that has passed, the last checkpoint in time, kills."""

import itertools

import numpy as np
import pytest
import tensorflow as tf
from commands import run_here
from made_pretraining import data_files, make_config, write_records

from official_bert.config import OptimizerConfig
from official_bert.run_folder import RunFolder
from official_bert.runs import whole_run
from official_bert.storage.files import read_log
from official_bert.tasks.loading import load_task
from official_bert.training import loop
from official_bert.training.learning_rate import rate_at_share
from official_bert.training.machines.cluster import Placement
from official_bert.training.stops import clock

SECONDS = 30.0
SCHEDULE = {"warmup_proportion": 0.25, "learning_rate": 1e-2}


@pytest.mark.parametrize(
    ("config", "wanted"),
    [
        ({"schedule": "linear", "warmup_proportion": 0.5}, [0.0, 0.5, 0.5, 0.25, 0.0]),
        ({"schedule": "linear", "end_learning_rate": 0.2}, [1.0, 0.8, 0.6, 0.4, 0.2]),
        ({"schedule": "constant", "warmup_proportion": 0.25}, [0.0, 1.0, 1.0, 1.0, 1.0]),
        ({"schedule": "polynomial", "power": 2.0}, [1.0, 0.5625, 0.25, 0.0625, 0.0]),
        (
            {"schedule": "warmup_stable_decay", "warmup_proportion": 0.5, "decay_proportion": 0.5},
            [0.0, 0.5, 1.0, 0.5, 0.0],
        ),
        (
            {"schedule": "warmup_stable_decay", "decay_proportion": 0.25, "decay_shape": "one_minus_sqrt"},
            [1.0, 1.0, 1.0, 1.0, 0.0],
        ),
    ],
)
def test_the_rate_is_a_function_of_the_share_of_the_time(config, wanted):
    rates = [
        float(rate_at_share(OptimizerConfig(**({"learning_rate": 1.0} | config)), tf.constant(share)))
        for share in (0.0, 0.25, 0.5, 0.75, 1.0)
    ]
    np.testing.assert_allclose(rates, wanted, atol=1e-6)


@pytest.fixture(scope="module")
def records(tmp_path_factory):
    return write_records(tmp_path_factory.mktemp("records") / "r.tfrecord", 64)


@pytest.fixture
def ticking(monkeypatch):
    """A clock that moves on by half a second whenever somebody looks at it."""
    seconds = itertools.count(0.0, 0.5)
    monkeypatch.setattr(clock, "now", lambda: next(seconds))


def config_of(**training):
    settings = {"hours": SECONDS / 3600, "steps": 0, "save_every": 5, "log_every": 5, "batch_size": 16} | training
    return make_config(optimizer=SCHEDULE, training=settings)


def train(folder, records, **training):
    """Trains into a folder; returns the rows of its log."""
    whole_run.train(
        load_task(config_of(**training)), data_files(records), str(folder), Placement(), report=lambda _: None
    )
    return list(read_log(str(folder / "log.jsonl")))


def shares_of(rows):
    return [(row["step"], row["share"]) for row in rows if "share" in row]


@pytest.mark.slow
def test_a_training_of_some_hours_ends_in_time(records, tmp_path, ticking):
    rows = train(tmp_path / "first", records)
    shares = shares_of(rows)
    steps, parts = zip(*shares)
    assert (
        list(steps) == sorted(steps)
        and steps[0] == 0
        and 0.0 < parts[0] < 0.2
        and 0.75 < parts[-1] < 1.0
        and len(shares) > 5
    )
    assert (
        list(parts) == sorted(parts)
        and rows[-1]["time_over"] == f"after {SECONDS / 3600:g} hours, at step {rows[-1]['step']}"
    )
    assert RunFolder(str(tmp_path / "first")).steps_done == rows[-1]["step"]
    logged = {row["step"]: row["train/learning_rate"] for row in rows if "train/learning_rate" in row}
    for step, rate in logged.items():
        share = max((known, part) for known, part in shares if known < step)[1]
        assert rate == pytest.approx(1e-2 * (share / 0.25 if share < 0.25 else 1 - share), rel=1e-4)
    again = train(tmp_path / "first", records)
    assert shares_of(again) == shares  # the same command does nothing more


@pytest.mark.slow
def test_a_stopped_training_goes_on_with_its_time(records, tmp_path, ticking, monkeypatch):
    after_step = loop.Run.after_step

    def killed(run, phase, step):
        after_step(run, phase, step)
        if step > 12:  # behind the checkpoint of step 10 and a look at the clock, before the checkpoint of step 15
            run.folder.wait()
            raise ZeroDivisionError

    with monkeypatch.context() as patch:
        patch.setattr(loop.Run, "after_step", killed)
        with pytest.raises(ZeroDivisionError):
            train(tmp_path / "first", records, steps_per_loop=2)
    before = shares_of(read_log(str(tmp_path / "first" / "log.jsonl")))
    assert before[-1][0] > 10
    rows = train(tmp_path / "first", records, steps_per_loop=2)
    shares = shares_of(rows)[len(before) :]
    known = max(part for step, part in before if step < 10)
    # from the checkpoint of step 10, with the time that it knows
    assert shares[0][0] == 10 and known < shares[0][1] < 1.0


@pytest.mark.parametrize(
    ("training", "optimizer", "wrong"),
    [
        ({"hours": -1.0}, {}, "config.training.hours: expected at least 0"),
        (
            {},
            {"warmup_steps": 5},
            "config.optimizer.warmup_steps: expected 0 and a warmup_proportion beside training.hours",
        ),
        ({}, {"schedule": "warmup_stable_decay", "decay_proportion": 0.9}, "of at most 1 together, got 0.25 and 0.9"),
    ],
)
def test_what_does_not_fit_a_time_is_told_before_the_first_step(records, tmp_path, training, optimizer, wrong):
    with pytest.raises(ValueError, match=wrong):
        settings = {"hours": 1.0, "steps": 0} | training
        config = make_config(optimizer=SCHEDULE | optimizer, training=settings)
        whole_run.train(
            load_task(config), data_files(records), str(tmp_path / "run"), Placement(), report=lambda _: None
        )
    assert not RunFolder(str(tmp_path / "run")).has_begun


@pytest.mark.slow
@pytest.mark.parametrize(
    ("flags", "wrong"),
    [
        (["--hours=0"], "error: --hours: expected a time above 0, got 0"),
        (
            ["--hours=1", "--num_train_steps=5"],
            "error: config.training.steps: expected config.training.hours 0 (not 1.0) with it",
        ),
        (["--hours=1", "--set=phases=[{steps: 3}]"], "error: config.phases: expected none beside training.hours"),
    ],
)
def test_the_flag_for_hours_is_refused_in_one_line(records, tmp_path, flags, wrong):
    run = tmp_path / "run"
    done = run_here(
        "-m",
        "official_bert.run_pretraining",
        f"--input_file={records}",
        f"--output_dir={run}",
        "--config=model/tiny",
        "--set=options.max_seq_length=16",
        "--set=options.max_predictions_per_seq=3",
        *flags,
    )
    assert done.returncode == 1 and wrong in done.stderr and len(done.stderr.splitlines()) == 1
