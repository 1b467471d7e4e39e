"""Evaluation without training: of one checkpoint, of a running run."""

import contextlib
import dataclasses
import os
import time
from collections.abc import Callable, Iterator

from official_bert.models import checkpoints, parameter_groups
from official_bert.models.adaptation import adapt_to_base
from official_bert.models.interchange.prefixes import local_checkpoint
from official_bert.run_folder import BOARD_FOLDER, EVAL_LOG_FILE, WITHOUT_WEIGHTS, RunFolder, not_a_run, step_of
from official_bert.runs.beginning.announcement import few_held_out
from official_bert.runs.beginning.phases import task_at, total_steps
from official_bert.runs.checks import guards, origins
from official_bert.tasks.answering import take_all
from official_bert.tasks.answers import Measured
from official_bert.tasks.data import DataFiles, Steps
from official_bert.tasks.task import TaskBase
from official_bert.training import checkpointing
from official_bert.training.checkpointing import BestCheckpoint, CheckpointFolder
from official_bert.training.logs.run_log import Watcher
from official_bert.training.machines import distribution
from official_bert.training.machines.cluster import Placement
from official_bert.training.trainer import Trainer

POLL_SECONDS = 2.0
NO_RUN = RunFolder("")
DIVISION = ("options.dev_share", "options.train_share", "options.split_seed", "options.fold")  # of a training file
# of the outputs
MEANING = ("model.", "options.labels", "options.objective", "options.sentence_task", "options.sentence_loss")


@distribution.own_precision()
def measure(
    task: TaskBase,
    files: DataFiles,
    output_dir: str,
    placement: Placement,
    init_checkpoint: str = "",
    report: Callable[[str], None] = print,
    best: bool = False,
) -> Measured:
    """Evaluates the newest readable checkpoint of a run's folder, its `best` one, or `init_checkpoint`, on the
    evaluation data.

    Raises ValueError if there is no evaluation data or no checkpoint, or if it lacks a weight of the model or has other
    classes.
    """
    run, _ = RunFolder.working(output_dir)
    digests = task.data.digests(files)
    start = RunFolder.around(local_checkpoint(init_checkpoint)) if init_checkpoint else NO_RUN
    folds = bool(getattr(task.options, "folds", 0))
    for place in {run, start} - {NO_RUN}:
        origins.check_held_out_part(digests, place, folds)
        if "eval" not in digests or folds:
            origins.check_same_run(task.config, place, DIVISION, task.Options)
        if origins.evaluates_on_training_file(digests, place):
            report("the run was trained on the file that it is evaluated on; the results say nothing about other data")
    trainer = _prepare(task, run, placement, init_checkpoint)
    if init_checkpoint:
        take_all(task, trainer.model, init_checkpoint, report)
        measured = _measure(trainer, task, files, report, start)
        return dataclasses.replace(
            measured, metrics={name: value for name, value in measured.metrics.items() if name != "step"}
        )
    best_checkpoint = BestCheckpoint(run, task.answers.best_metric())
    if best and best_checkpoint.record:
        best_checkpoint.restore(trainer.checkpoint)
    elif CheckpointFolder(trainer.checkpoint, run).restore_newest() is None:
        raise not_a_run(f"--output_dir={output_dir}", WITHOUT_WEIGHTS)
    return _measure(trainer, task, files, report, run)


def evaluate_continuously(
    task: TaskBase,
    files: DataFiles,
    output_dir: str,
    placement: Placement,
    idle_seconds: float = 3600.0,
    report: Callable[[str], None] = print,
) -> dict[str, float]:
    """Evaluates each checkpoint that a concurrent run writes, in order, up to its last step; returns the last metrics.

    Writes only `eval_log.jsonl` and TensorBoard's `eval` folder; started again, it continues after the last step in its
    log. Also ends if no new checkpoint comes for `idle_seconds`.
    """
    run, work = RunFolder.working(output_dir)
    trainer = _prepare(task, run, placement)
    total = total_steps(task.config)
    run.make()
    metrics = run.last_followed()
    with contextlib.closing(
        Watcher(run, total, log_file=EVAL_LOG_FILE, board_folder=os.path.join(BOARD_FOLDER, "eval"))
    ) as watcher:
        for prefix in _new_checkpoints(run, work.pull, int(metrics.get("step", -1)), total, idle_seconds):
            if not checkpointing.restore(trainer.checkpoint, prefix):
                continue  # removed or damaged meanwhile; a warning has been given
            metrics = _measure(trainer, task, files).metrics
            watcher.evaluation(int(metrics["step"]), {name: value for name, value in metrics.items() if name != "step"})
            work.push()
    if not metrics:
        raise ValueError(f"--output_dir={output_dir}: no new checkpoint within {idle_seconds:.0f} s")
    report(f"followed {output_dir} to step {metrics['step']:.0f}")
    return metrics


def _prepare(task: TaskBase, run: RunFolder, placement: Placement, init_checkpoint: str = "") -> Trainer:
    changed = origins.check_same_run(task.config, run, MEANING, task.Options)
    frozen = next((change.before for change in changed if change.key == "training.freeze"), task.config.training.freeze)
    guards.check_vocabulary(task.config, run, init_checkpoint)
    strategy = distribution.make_strategy(placement)
    distribution.set_precision(task.config.training.precision, task.config.training.tf32)
    with strategy.scope():
        model = task.build_model()
        if task.config.training.adapters and not init_checkpoint:
            settings = task.config.training.adapters
            base, _ = adapt_to_base(model, settings, run, "", task.reads_pooler(model))
            checkpoints.initialize_from(model, base["path"], task.answers.classes)
        else:
            parameter_groups.freeze(model, frozen)  # the run's checkpoints have no moments of frozen weights
    return Trainer(task.recipe(model), strategy, max(total_steps(task.config), 1))


def _measure(
    trainer: Trainer,
    task: TaskBase,
    files: DataFiles,
    report: Callable[[str], None] = lambda _: None,
    run: RunFolder = NO_RUN,
) -> Measured:
    """Measures the restored weights on the data of their step's phase; reports the notes about these, and whether the
    run in the folder was trained on them.
    """
    step = trainer.steps_done
    with trainer.strategy.scope():
        resolved = task_at(task, step).data.resolve(files, Steps(train=False), trainer.model)
    for line in (*resolved.notes, *few_held_out(resolved)):
        report(line)
    held_out = resolved.held_out
    assert held_out is not None
    if trained_on := origins.trained_on(held_out.source.content, run):
        report(
            f"{', '.join(trained_on[:3])}: the run was trained on these data; the results say nothing about other data"
        )
    metrics, rows = trainer.evaluate(held_out.source, task.config.training.eval_steps)
    return Measured({"step": float(step)} | metrics | held_out.evaluate(rows), resolved, rows)


def _new_checkpoints(
    run: RunFolder, pull: Callable[[], None], after: int, total: int, idle_seconds: float
) -> Iterator[str]:
    """Yields the prefixes of checkpoints after step `after` as they come, up to `total` (0: unknown) or until idle."""
    changed = time.monotonic()
    while time.monotonic() - changed < idle_seconds and (not total or after < total):
        pull()
        for prefix in reversed(run.checkpoints()):
            if (step := step_of(prefix)) > after:
                yield prefix
                after, changed = step, time.monotonic()
        time.sleep(POLL_SECONDS)
