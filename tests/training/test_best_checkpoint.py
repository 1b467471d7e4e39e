"""The best checkpoint of a fine-tuning: when it is measured, what ends the training, what a kill leaves, and who
answers with it.
"""

import contextlib
import io
import json
import os
import shutil
import types

import numpy as np
import pytest
import tensorflow as tf
import yaml
from made_finetuning import make_config

from official_bert.config import AS_IN_2018, build, merge, to_dict
from official_bert.config import Config as RunConfig
from official_bert.data.rows import Rows
from official_bert.models.interchange import formats
from official_bert.reports.metric_text import metric_lines
from official_bert.run_folder import RunFolder
from official_bert.runs import evaluation
from official_bert.runs.configuration import run_config
from official_bert.runs.fine_tuning import FineTuning
from official_bert.tasks.data import DataFiles, Steps
from official_bert.tasks.loading import load_task, restore_for_inference
from official_bert.training import checkpointing, loop
from official_bert.training.checkpointing import BestCheckpoint
from official_bert.training.evaluations import Evaluations
from official_bert.training.logs import run_log
from official_bert.training.logs.run_log import Watcher
from official_bert.training.machines.cluster import Placement
from official_bert.training.phase import PhasePlan, evaluation_steps

WORDS = ("the atlas", "it rained", "in Brno", "a bridge", "under water", "old maps", "on the way", "we sing")
ROWS = [
    {"text": f"{first} {second}", "label": "named" if "Brno" in (first + second) else "unnamed"}
    for first in WORDS
    for second in WORDS
    if first != second
]
FILES = {"train": Rows("train", ROWS[:32]), "dev": Rows("dev", ROWS[32:48]), "new": Rows("new", ROWS[48:])}
# Accuracies of the evaluations after each of 8 epochs of 4 steps. The second is the best; patience 3 ends the training
# after the fifth.
SCRIPT = {4: 0.5, 8: 0.9, 12: 0.7, 16: 0.9, 20: 0.8, 24: 0.95, 28: 0.1, 32: 0.2}


def config(**training):
    return make_config(
        "classification",
        options={"dev_share": 0.0},
        training=run_config.DEFAULTS["training"]
        | {
            "batch_size": 8,
            "eval_batch_size": 8,
            "epochs": 8.0,
            "save_every": 3,
            "log_every": 1,
            "steps_per_loop": 1,
            "report": False,
        }
        | training,
    )


def files(**given):
    return DataFiles(train_file=FILES["train"], **given)


def tune(output, given=None, lines=None, predict=False, **training):
    """Trains, evaluates, and answers if that is asked for; returns the metrics."""
    given = given or files(eval_file=FILES["dev"], **({"predict_file": FILES["new"]} if predict else {}))
    report = (lines if lines is not None else []).append
    run = RunFolder(str(output))
    return FineTuning(
        load_task(config(**training)), given, run, Placement(), steps=Steps(predict=predict), report=report
    ).carry_out()


def script(patch):
    """Replaces the accuracy of each evaluation by that of the script."""
    measure = Evaluations.measure

    def measured(evaluations, phase):
        return measure(evaluations, phase) | {"accuracy": SCRIPT[evaluations.trainer.steps_done], "loss": 0.5}

    patch.setattr(Evaluations, "measure", measured)


@pytest.fixture
def scripted(monkeypatch):
    """Scripts the runs of a test."""
    script(monkeypatch)


@pytest.fixture(scope="module")
def patient_run(tmp_path_factory):
    """A scripted run that only its patience has ended: its folder, its metrics, what it printed."""
    folder, printed = tmp_path_factory.mktemp("unbroken"), io.StringIO()
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(printed):
        script(patch)
        metrics = tune(folder, patience=3)
    return folder, metrics, printed.getvalue()


@pytest.fixture
def unbroken(patient_run):
    """The folder of that run."""
    return patient_run[0]


def logged(folder, name):
    rows = map(json.loads, (folder / "log.jsonl").read_text().splitlines())
    return {row["step"]: row[name] for row in rows if name in row}


def weights(prefix):
    reader = tf.train.load_checkpoint(str(prefix))
    return {name: reader.get_tensor(name) for name in reader.get_variable_to_shape_map() if name.startswith("weights/")}


def same(one, other):
    return set(one) == set(other) and all(np.array_equal(one[name], other[name]) for name in one)


def test_training_ends_when_patience_does_and_the_best_answers(patient_run):
    folder, metrics, said = patient_run
    assert logged(folder, "eval/accuracy") == {step: SCRIPT[step] for step in (4, 8, 12, 16, 20)}
    assert metrics["accuracy"] == 0.9 and json.loads((folder / "best/metric.json").read_text()) == {
        "metric": "accuracy",
        "value": 0.9,
        "step": 8,
        "batches": 0,
        "loss": 0.5,
    }
    assert (
        "best checkpoint: by accuracy (higher is better) of 8 evaluations; training stops after 3 without a better "
        "value; the best checkpoint is used"
    ) in said
    assert "stopped early: at step 20 of 32: 3 evaluations without a better accuracy (training.patience)" in said
    assert "the best checkpoint is used: accuracy 90.00 % at step 8, saved in best/" in said
    assert list(logged(folder, "best_checkpoint")) == [0] and list(logged(folder, "stopped_early")) == [20]
    assert "accuracy = 0.9\n" in (folder / "eval_results.txt").read_text()
    assert sorted(path.name for path in folder.glob("**/*.index")) == ["ckpt-20.index", "ckpt-8.index"]
    assert formats.find_prefix(str(folder)) == str(folder / "best" / "ckpt-8")
    assert formats.find_prefix(str(folder / "ckpt-20")) == str(folder / "ckpt-20")
    # As run_predict, run_export and the facade load it.
    run, best, last = (
        restore_for_inference(str(path))[1].get_weights()
        for path in (folder, folder / "best/ckpt-8", folder / "ckpt-20")
    )
    assert all(map(np.array_equal, run, best)) and not all(map(np.array_equal, run, last))


def test_of_equal_metrics_the_lower_loss_is_better(tmp_path):
    best, checkpoint = BestCheckpoint(RunFolder(str(tmp_path)), "accuracy"), tf.train.Checkpoint(step=tf.Variable(0))
    evaluations = [(17, 1.0, 0.21), (34, 1.0, 0.21), (51, 1.0, 0.027), (68, 0.9, 0.001), (85, 1.0, float("nan"))]
    kept = [
        best.keep_if_better(checkpoint, step, {"accuracy": accuracy, "loss": loss})
        for step, accuracy, loss in evaluations
    ]
    assert kept == [True, False, True, False, False] and best.record["step"] == 51


@pytest.mark.slow
def test_a_run_out_of_patience_goes_on_only_with_more_of_it(scripted, tmp_path):
    tune(tmp_path, patience=3)
    assert tune(tmp_path, patience=3)["accuracy"] == 0.9 and max(logged(tmp_path, "train/loss")) == 20
    assert tune(tmp_path, patience=4)["accuracy"] == 0.95 and max(logged(tmp_path, "train/loss")) == 32


@pytest.mark.parametrize("step", [8, 10, 17, 20])
@pytest.mark.slow
def test_a_kill_changes_neither_the_best_nor_the_patience(scripted, unbroken, tmp_path, monkeypatch, step):
    class Killed(BaseException):
        pass

    after_step = loop.Run.after_step

    def killed(run, phase, now):
        after_step(run, phase, now)
        if now == step:
            raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(loop.Run, "after_step", killed)
        with pytest.raises(Killed):
            tune(tmp_path, patience=3)
    metrics = tune(tmp_path, patience=3)
    assert metrics["accuracy"] == 0.9
    for name in ("eval/accuracy", "eval/loss", "train/loss"):
        assert logged(tmp_path, name) == logged(unbroken, name), name
    assert (tmp_path / "best/metric.json").read_text() == (unbroken / "best/metric.json").read_text()
    assert same(weights(tmp_path / "best/ckpt-8"), weights(unbroken / "best/ckpt-8"))
    assert same(weights(tmp_path / "ckpt-20"), weights(unbroken / "ckpt-20"))


@pytest.mark.slow
def test_a_best_checkpoint_of_another_run_or_of_other_data_gives_way(scripted, unbroken, tmp_path, eager_steps):
    shutil.copytree(unbroken / "best", tmp_path / "best")  # of a run that was killed before its first checkpoint
    (tmp_path / "best/metric.json").write_text('{"metric": "accuracy", "value": 2.0, "step": 8, "batches": 0}')
    assert tune(tmp_path, epochs=2.0)["accuracy"] == 0.9
    best = json.loads((tmp_path / "best/metric.json").read_text())
    assert best == {"metric": "accuracy", "value": 0.9, "step": 8, "batches": 0, "loss": 0.5}
    other = files(eval_file=FILES["new"], allow_changed_data=True)
    (tmp_path / "best/metric.json").write_text('{"metric": "accuracy", "value": 2.0, "step": 8, "batches": 0}')
    # step 8 is measured anew, on the other data
    assert tune(tmp_path, other, epochs=3.0, patience=2)["accuracy"] == 0.9
    assert json.loads((tmp_path / "best/metric.json").read_text()) == best
    rows = map(json.loads, (tmp_path / "log.jsonl").read_text().splitlines())
    assert [row["step"] for row in rows if "eval/accuracy" in row] == [4, 8, 8, 12]


@pytest.mark.slow
def test_the_best_is_predicted_with_and_measured_unless_the_last_is_wanted(scripted, tmp_path):
    lines = []
    tune(tmp_path, predict=True, lines=lines, patience=3)
    assert f"answers come from {tmp_path}/best/ckpt-8" in lines
    best = (tmp_path / "predictions.tsv").read_text()
    stored = RunFolder(str(tmp_path)).config()
    assert stored.training.answer_with == "best" and stored.training.patience == 3
    given = DataFiles(predict_file=FILES["new"], eval_file=FILES["dev"])
    alone, lines = Steps(train=False, evaluate=False, predict=True), []
    FineTuning(
        load_task(stored), given, RunFolder(str(tmp_path)), Placement(), steps=alone, best=False, report=lines.append
    ).carry_out()
    assert f"answers come from {tmp_path}/ckpt-20" in lines and (tmp_path / "predictions.tsv").read_text() != best
    FineTuning(load_task(stored), given, RunFolder(str(tmp_path)), Placement(), steps=alone).carry_out()
    assert (tmp_path / "predictions.tsv").read_text() == best
    task = load_task(stored)
    for best, step, weights in ((True, 8, "best/ckpt-8"), (False, 20, "ckpt-20")):
        measured = evaluation.measure(task, given, str(tmp_path), Placement(), best=best).metrics
        named = evaluation.measure(task, given, "", Placement(), str(tmp_path / weights)).metrics
        assert measured["step"] == step and measured["loss"] == pytest.approx(named["loss"], abs=1e-6)


@pytest.mark.slow
def test_checkpoints_of_the_same_step_share_their_bytes(tmp_path):
    tune(tmp_path, epochs=2.0, save_every=4, keep_checkpoints=2)
    (best,) = (tmp_path / "best").glob("*.data*")
    assert (tmp_path / best.name).stat().st_ino == best.stat().st_ino
    (tmp_path / best.name).unlink()
    assert weights(str(best).partition(".data")[0])


@pytest.mark.slow
def test_evaluations_trace_the_model_once(tmp_path, monkeypatch):
    counts, evaluate = [], loop.Trainer.evaluate

    def counted(trainer, *given):
        found = evaluate(trainer, *given)
        counts.append(
            (
                trainer.run_evaluation.experimental_get_tracing_count(),
                trainer.run_steps.experimental_get_tracing_count(),
            )
        )
        return found

    monkeypatch.setattr(loop.Trainer, "evaluate", counted)
    tune(tmp_path / "measured", epochs=3.0)
    assert len(counts) >= 3 and len(set(counts)) == 1


def test_without_evaluation_data_the_last_checkpoint_answers(tmp_path, capsys, eager_steps):
    assert tune(tmp_path / "unmeasured", files(), epochs=1.0) == {}
    said = capsys.readouterr().out
    assert "best checkpoint: none, because there is no evaluation data: the last checkpoint is used" in said
    assert formats.find_prefix(str(tmp_path / "unmeasured")) == str(tmp_path / "unmeasured" / "ckpt-4")


@pytest.mark.parametrize(
    ("given", "training", "told"),
    [
        ({}, {}, "there is no evaluation data"),
        ({"eval_file": FILES["dev"]}, {"eval_epochs": 0.0}, "only the last weights are measured"),
    ],
)
def test_patience_that_nothing_can_try_is_refused_before_training(tmp_path, given, training, told):
    with pytest.raises(
        ValueError, match=f"config.training.patience: expected 0, got 2: it counts evaluations, and {told}"
    ):
        tune(tmp_path, files(**given), patience=2, **training)
    assert not list(tmp_path.glob("*ckpt*")) and not (tmp_path / "log.jsonl").exists()


@pytest.mark.parametrize(
    ("training", "last", "wanted"),
    [
        ({"eval_epochs": 1.0}, 11, [3, 6, 9, 11]),  # 10 rows: 3 batches of 4, the last one short
        ({"eval_epochs": 0.5}, 4, [1, 3, 4]),
        ({"eval_epochs": 1.0, "epoch_rounding": "down"}, 8, [2, 5, 7, 8]),  # 2.5 batches an epoch
        ({"eval_epochs": 1.0, "eval_every": 4}, 11, [4, 8, 11]),  # steps count
        ({"eval_epochs": 1e-9}, 3, [1, 2, 3]),
        ({}, 11, [11]),
    ],
)
def test_evaluations_are_due_at_the_ends_of_epochs(training, last, wanted):
    one = config(**{"batch_size": 4, "eval_epochs": 0.0} | training)
    source = types.SimpleNamespace(batches_per_epoch=3, batch_size=4, rows=10)
    assert (
        evaluation_steps(PhasePlan(last=last, recipe=types.SimpleNamespace(training=one.training), source=source))
        == wanted
    )


def test_runs_of_2018s_commands_and_earlier_runs_answer_with_their_last_checkpoint(tmp_path):
    of_2018 = build(RunConfig, merge(merge(run_config.DEFAULTS, AS_IN_2018), {"task": "glue"}))
    assert (of_2018.training.answer_with, of_2018.training.eval_epochs, of_2018.training.patience) == ("last", 0.0, 0)
    earlier = to_dict(config())
    for key in ("answer_with", "eval_epochs", "patience"):
        del earlier["training"][key]
    value = tf.train.Checkpoint(step=tf.Variable(1))
    for place, step in ((tmp_path, 9), (tmp_path / "best", 5)):
        value.write(os.path.join(place, f"ckpt-{step}"))
    (tmp_path / "best/metric.json").write_text('{"metric": "accuracy", "value": 0.5, "step": 5}')
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(earlier))
    assert formats.find_prefix(str(tmp_path)) == str(tmp_path / "ckpt-9")
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(merge(earlier, {"training": {"answer_with": "best"}})))
    assert formats.find_prefix(str(tmp_path)) == str(tmp_path / "best" / "ckpt-5")


def test_the_screen_shows_a_line_of_training_a_minute_and_the_newest_before_a_message(tmp_path, capsys, monkeypatch):
    now = 0.0
    monkeypatch.setattr(run_log.time, "monotonic", lambda: now)
    metrics = {"loss": 1.0, "learning_rate": 0.1, "gradient_norm": 1.0, "skipped": 0.0, "tokens_per_second": 7.0}
    with contextlib.closing(Watcher(RunFolder(str(tmp_path)), 9)) as watcher:
        for step, now in enumerate((0.0, 30.0, 59.0, 60.0, 61.0, 62.0), 1):  # noqa: B007 (the clock reads `now`)
            watcher.training(step, metrics, 1.0)
        watcher.evaluation(6, {"loss": 0.5}, ("best so far",))
        watcher.say("saved ckpt-6")
        watcher.training(7, metrics, 1.0)
    lines = capsys.readouterr().out.splitlines()[1:]
    assert [line.partition("  ")[0] for line in lines] == [
        "step 1/9",
        "step 4/9",
        "step 6/9",
        "evaluation at step 6:",
        "saved ckpt-6",
        "step 7/9",
    ]
    assert lines[3].endswith("(best so far)") and sorted(logged(tmp_path, "train/loss")) == [1, 2, 3, 4, 5, 6, 7]


def test_an_undefined_metric_chooses_no_checkpoint_and_is_printed_as_such(tmp_path, capsys):
    best = checkpointing.BestCheckpoint(RunFolder(str(tmp_path)), "pearson")
    assert not best.keep_if_better(tf.train.Checkpoint(), 1, {"pearson": float("nan")}) and not best.record
    with contextlib.closing(Watcher(RunFolder(str(tmp_path)), 1)) as watcher:
        watcher.evaluation(1, {"pearson": float("nan"), "loss": 0.5})
    assert "pearson undefined  loss 0.5000" in capsys.readouterr().out
    assert metric_lines({"pearson": float("nan"), "loss": 0.5}) == "pearson = undefined\nloss = 0.50000"
    RunFolder(str(tmp_path)).write_results({"pearson": float("nan"), "loss": 0.5})
    assert (tmp_path / "eval_results.txt").read_text() == "loss = 0.5\npearson = undefined\n"
