"""What a kill or a loss of power leaves in a run's folder: nothing that was saved is lost, and nothing that was due is
left out.
"""

import contextlib
import itertools
import json
import os
import re
import shutil
import signal

import numpy as np
import pytest
import tensorflow as tf
from made_pretraining import data_files, make_config, write_records

from official_bert.models.interchange import formats
from official_bert.run_folder import RunFolder
from official_bert.runs import evaluation, whole_run
from official_bert.runs.beginning import phases
from official_bert.tasks.data import TRAIN_AND_EVALUATE
from official_bert.tasks.loading import load_task, restore_for_inference
from official_bert.training.checkpointing import BestCheckpoint, CheckpointFolder
from official_bert.training.evaluations import Evaluations
from official_bert.training.logs import run_log
from official_bert.training.logs.run_log import Watcher
from official_bert.training.machines.cluster import Placement

BIAS = "next_sentence.Soutput_bias"
CONFIG = make_config(
    training={
        "steps": 12,
        "log_every": 1,
        "save_every": 4,
        "eval_every": 4,
        "eval_batch_size": 8,
        "keep_checkpoints": 9,
    }
)


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("records")
    return data_files(
        write_records(folder / "train.tfrecord", 100), write_records(folder / "held_out.tfrecord", 20, seed=1)
    )


def train(files, folder, config=CONFIG):
    said = []
    whole_run.train(load_task(config), files, str(folder), Placement(), report=said.append)
    return said[0]


def logged(folder, name):
    """Returns the values of a metric by step; a step that was done twice must have the same value."""
    found = {}
    for row in map(json.loads, (folder / "log.jsonl").read_text().splitlines()):
        if name in row:
            assert found.setdefault(row["step"], row[name]) == row[name], row
    return found


@pytest.fixture(scope="module")
def whole(files, tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "whole"
    train(files, folder)
    return folder


@pytest.fixture
def saved(tmp_path):
    """Returns a folder with checkpoints of steps 8, 9, 10 and 11, each of the value of its step."""
    value = tf.Variable(0.0)
    folder = CheckpointFolder(tf.train.Checkpoint(value=value), RunFolder(str(tmp_path)), keep=4)
    for step in range(6, 12):
        value.assign(step)
        folder.save(step)
    assert sorted(path.name for path in tmp_path.glob("*.index")) == [
        "ckpt-10.index",
        "ckpt-11.index",
        "ckpt-8.index",
        "ckpt-9.index",
    ]
    assert tf.train.latest_checkpoint(str(tmp_path)) == str(tmp_path / "ckpt-11")
    return folder, value


STATES = {
    "missing": lambda path: path.unlink(),
    "empty": lambda path: path.write_bytes(b""),
    "zeroed": lambda path: path.write_bytes(bytes(100)),
    "stale": lambda path: path.write_text('model_checkpoint_path: "ckpt-8"\nall_model_checkpoint_paths: "ckpt-8"\n'),
}


@pytest.mark.parametrize("state", STATES)
def test_the_newest_checkpoint_counts_whatever_the_state_file_says(saved, tmp_path, state):
    folder, value = saved
    value.assign(0)
    STATES[state](tmp_path / "checkpoint")
    assert formats.find_prefix(str(tmp_path)) == str(tmp_path / "ckpt-11")
    assert folder.restore_newest() == str(tmp_path / "ckpt-11") and float(value) == 11


def cut(path):
    path.write_bytes(path.read_bytes()[:-3])


@pytest.mark.parametrize(
    "harm",
    [
        lambda folder: cut(folder / "ckpt-11.data-00000-of-00001"),
        lambda folder: cut(folder / "ckpt-11.index"),
        lambda folder: (folder / "ckpt-11.data-00000-of-00001").unlink(),
    ],
    ids=["data", "index", "no data"],
)
def test_a_truncated_checkpoint_gives_way_and_is_removed_once_the_run_has_gone_on(saved, tmp_path, harm):
    folder, value = saved
    harm(tmp_path)
    assert formats.find_prefix(str(tmp_path)) == str(tmp_path / "ckpt-10")
    assert folder.restore_newest() == str(tmp_path / "ckpt-10") and float(value) == 10
    shutil.rmtree(tmp_path / "best", ignore_errors=True)
    CheckpointFolder(folder.checkpoint, RunFolder(str(tmp_path)), keep=2).save(10)
    assert sorted(os.listdir(tmp_path)) == [
        "checkpoint",
        *(f"ckpt-{step}.{part}" for step in (10, 9) for part in ("data-00000-of-00001", "index")),
    ]


def test_what_a_killed_write_left_goes_with_its_checkpoint(saved, tmp_path):
    folder, _ = saved
    (tmp_path / "ckpt-8_temp").mkdir()
    (tmp_path / "ckpt-8_temp/part-00000-of-00001.index").write_bytes(b"half")
    folder.save(12)  # ckpt-8 is one too many now
    assert sorted(int(path.stem[5:]) for path in tmp_path.glob("*.index")) == [9, 10, 11, 12] and not list(
        tmp_path.glob("ckpt-8*")
    )


def test_a_folder_with_checkpoints_of_several_names_is_decided_by_its_state_file(saved, tmp_path):
    (tmp_path / "checkpoint").unlink()
    for path in tmp_path.glob("ckpt-11.*"):
        path.rename(tmp_path / path.name.replace("ckpt-11", "model.ckpt-7"))
    assert formats.find_prefix(str(tmp_path)) == str(tmp_path / "ckpt-10")
    (tmp_path / "checkpoint").write_text('model_checkpoint_path: "model.ckpt-7"\n')
    assert formats.find_prefix(str(tmp_path)) == str(tmp_path / "model.ckpt-7")


def test_a_kill_within_an_evaluation_leaves_no_threshold_of_other_weights_with_the_best(tmp_path, monkeypatch):
    checkpoint, evaluations, dump = (
        tf.train.Checkpoint(value=tf.Variable(0.0)),
        [(1, 0.5, 0.3), (2, 0.9, 0.7)],
        json.dumps,
    )
    kept = [tmp_path / "best" / name for name in ("metric.json", "tuned.json")]

    def evaluate(step, value, threshold):  # as after a resume
        best = BestCheckpoint(RunFolder(str(tmp_path)), "f1")
        return best.keep_if_better(checkpoint, step, {"f1": value}, tuned={"threshold": threshold})

    assert evaluate(*evaluations[0])
    for number in itertools.count():
        writes = itertools.count()

        def killed(*given, writes=writes, number=number, **options):
            if next(writes) == number:
                raise KeyboardInterrupt
            return dump(*given, **options)

        with monkeypatch.context() as patch, contextlib.suppress(KeyboardInterrupt):
            patch.setattr(json, "dumps", killed)
            evaluate(*evaluations[1])
            break
        evaluate(*evaluations[1])
        assert [json.loads(path.read_text()) for path in kept] == [
            {"metric": "f1", "value": 0.9, "step": 2, "batches": 0},
            {"steps": {"2": {"threshold": 0.7}}},
        ]
        shutil.rmtree(tmp_path / "best")
        evaluate(*evaluations[0])
    assert number == 2


@pytest.mark.slow
def test_every_command_takes_the_checkpoint_before_a_truncated_one(files, whole, tmp_path, caplog):
    folder = tmp_path / "run"
    shutil.copytree(whole, folder)
    data = folder / "ckpt-12.data-00000-of-00001"
    data.write_bytes(data.read_bytes()[:300])
    _, model = restore_for_inference(str(folder))  # as prediction, the server and export do
    reader = tf.train.load_checkpoint(str(whole / "ckpt-8"))
    np.testing.assert_array_equal(
        model.next_sentence.output_bias, reader.get_tensor(f"weights/{BIAS}/.ATTRIBUTES/VARIABLE_VALUE")
    )
    assert "ckpt-12 cannot be read" in caplog.text
    measured = evaluation.measure(load_task(CONFIG), files, str(folder), Placement()).metrics
    assert measured["step"] == 8 and measured["loss"] == pytest.approx(logged(whole, "eval/loss")[8], abs=1e-6)
    (folder / "checkpoint").write_bytes(b"")
    assert "ckpt-8 at step 8 of 12" in train(files, folder)
    assert logged(folder, "train/loss") == logged(whole, "train/loss") and logged(folder, "eval/loss") == logged(
        whole, "eval/loss"
    )


@pytest.mark.slow
@pytest.mark.parametrize("when", ["before it", "while the best weights are written"])
def test_an_evaluation_due_at_the_moment_of_a_kill_is_made_up(files, whole, tmp_path, monkeypatch, when):
    class Killed(BaseException):
        pass

    def killed(*_):
        raise Killed

    evaluate = Evaluations.evaluate

    def evaluated(evaluations, phase, step):
        if step == 8 and when == "before it":
            killed()
        if step == 8:
            patch.setattr(BestCheckpoint, "keep_if_better", killed)
        return evaluate(evaluations, phase, step)

    with monkeypatch.context() as patch:
        patch.setattr(Evaluations, "evaluate", evaluated)
        with pytest.raises(Killed):
            train(files, tmp_path / "run")
    with open(tmp_path / "run" / "log.jsonl", "a") as log:
        log.write('{"step": 9, "train/lo')  # a line that the kill left unfinished
    assert "at step 8 of 12" in train(files, tmp_path / "run")
    assert logged(tmp_path / "run", "eval/loss") == logged(whole, "eval/loss")
    assert logged(tmp_path / "run", "train/loss") == logged(whole, "train/loss")
    best = [json.loads((folder / "best/metric.json").read_text()) for folder in (tmp_path / "run", whole)]
    assert best[0] == best[1]


@pytest.mark.slow
def test_fewer_steps_than_done_are_refused(files, whole):
    before = sorted((path.name, path.stat().st_mtime_ns) for path in whole.iterdir() if path.name != ".lock")
    fewer = make_config(training={"steps": 11, "log_every": 1, "save_every": 4, "eval_every": 4, "eval_batch_size": 8})
    with pytest.raises(ValueError, match="expected at least the 12 steps that the run has done, got a training of 11"):
        train(files, whole, fewer)
    assert sorted((path.name, path.stat().st_mtime_ns) for path in whole.iterdir() if path.name != ".lock") == before


@pytest.mark.parametrize("text", ["", '{"step": 1}', '{"step": 1}\n{"st', '{"step": 1}\n' + "\0" * 5000, "\0" * 9000])
def test_an_unfinished_line_of_the_log_is_removed(tmp_path, text):
    (tmp_path / "log.jsonl").write_text(text)
    watcher = run_log.Watcher(RunFolder(str(tmp_path)), 10)
    watcher.evaluation(2, {"loss": float("nan"), "accuracy": 0.5})
    watcher.close()
    rows = list(map(json.loads, (tmp_path / "log.jsonl").read_text().splitlines()))
    assert [row["step"] for row in rows] == ([1, 2] if "\n" in text else [2])
    assert rows[-1]["eval/loss"] is None and rows[-1]["eval/accuracy"] == 0.5


@pytest.mark.parametrize("sizes", [(32, 32), (30, 7), (7, 30)])
def test_phases_on_the_same_records_go_on_in_the_data(files, tmp_path, sizes):
    other = write_records(tmp_path / "short.tfrecord", 40, max_seq_length=12)
    config = make_config(
        training={"steps": 0},
        phases=[
            {"steps": 2, "batch_size": sizes[0]},
            {"steps": 1, "batch_size": 8, "options": {"max_seq_length": 12}},
            {"steps": 100 // sizes[1], "batch_size": sizes[1]},
        ],
    )
    planned, _ = phases.plan(load_task(config), data_files(f"{files.train_file},{other}"), TRAIN_AND_EVALUATE)
    assert planned[1].first_batch == 0

    def rows(phase):
        phase.source.parse = lambda serialized, indices: {"index": indices}
        batches = phase.source.dataset(phase.batch_number(phase.first)).take(phase.last - phase.first)
        return [batch["index"].numpy().tolist() for batch in batches]

    first, last = rows(planned[0]), rows(planned[2])
    left = planned[2].source.batches_per_epoch - planned[2].first_batch
    assert left > 0 and not set(itertools.chain(*first)) & set(itertools.chain(*last[:left]))
    assert planned[2].first_batch * sizes[1] - 2 * sizes[0] in range(sizes[1])
    assert min(itertools.chain(*last[left:])) >= 100  # the next epoch


def test_milestones_stay(tmp_path):
    folder = CheckpointFolder(
        tf.train.Checkpoint(value=tf.Variable(0.0)), RunFolder(str(tmp_path)), keep=2, keep_every=4
    )
    for step in range(1, 11):
        folder.save(step)
    assert sorted(int(path.stem[5:]) for path in tmp_path.glob("*.index")) == [4, 8, 9, 10]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "ends"), [(signal.SIGUSR1, None), (signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, SystemExit)]
)
def test_a_signal_saves_and_the_losses_stay_the_same(files, whole, tmp_path, monkeypatch, capsys, number, ends):
    log = Watcher.training

    def signalled(watcher, step, *metrics):
        log(watcher, step, *metrics)
        if step == 5:
            os.kill(os.getpid(), number)

    with monkeypatch.context() as patch, pytest.raises(ends) if ends else contextlib.nullcontext():
        patch.setattr(Watcher, "training", signalled)
        train(files, tmp_path / "run")
    saved = re.findall(r"saved (?:at step |ckpt-)(\d+)", capsys.readouterr().out)
    # A signal that comes while a step is logged is seen after the next one.
    assert set(saved) & {"5", "6"} and bool(ends) == ("12" not in saved)
    if ends:
        train(files, tmp_path / "run")
    assert logged(tmp_path / "run", "train/loss") == logged(whole, "train/loss")


def test_weights_alone_are_no_run_to_go_on_from(tmp_path):
    weights = {"a": tf.Variable(1.0)}
    tf.train.Checkpoint(weights=weights).save(str(tmp_path / "ckpt"))
    folder = CheckpointFolder(tf.train.Checkpoint(weights=weights, step=tf.Variable(0)), RunFolder(str(tmp_path)))
    with pytest.raises(
        ValueError, match="expected the folder of a run, got weights alone.*--init_checkpoint takes them"
    ):
        folder.restore_newest()


def test_the_next_run_removes_what_killed_ones_left_and_nothing_else(tmp_path):
    kept = ["ckpt-4.index", "ckpt-4.data-00000-of-00001", "log.jsonl", "notes.tmp.txt", "ckpt-best"]
    left = ["log.jsonl.tmp.12.0123abcd", "ckpt-2.data-00000-of-00001", "ckpt-6.data-00000-of-00001.tempstate12"]
    (tmp_path / "ckpt-8_temp").mkdir()
    (tmp_path / "best").mkdir()
    for name in (
        *kept,
        *left,
        "best/ckpt-2.data-00000-of-00001",
        "best/metric.json.tmp.12.0123abcd",
        "best/metric.json",
    ):
        (tmp_path / name).write_text("{}")
    with RunFolder(str(tmp_path)).locked():
        pass
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([*kept, "best", ".lock"])
    assert [path.name for path in (tmp_path / "best").iterdir()] == ["metric.json"]
