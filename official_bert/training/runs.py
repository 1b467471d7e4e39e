"""One fine-tuning: training, evaluation and prediction, shared by the fine-tuning commands."""

import contextlib
import dataclasses
import os
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

from tensorflow.python.framework import ops

from official_bert.config import differences, to_dict
from official_bert.copies import original_paths
from official_bert.data.sources import BatchSource, ExampleSource
from official_bert.models.checkpoints import checkpoint_at, last_weights, trained_weights
from official_bert.models.run_folder import CARD_FILE, LOG_FILE, RunFolder, step_of, tuned_for, write_tuned
from official_bert.reports.comparison import ComparableAnswers
from official_bert.reports.sections import Section
from official_bert.training import evaluation, loop, run_config
from official_bert.training.distribution import Placement, answering_scope, is_first_worker, set_precision
from official_bert.training.reporting.announcement import cut_rows
from official_bert.training.task import (
    TRAIN_AND_EVALUATE,
    Comparable,
    ConstantAnswers,
    DataFiles,
    Examined,
    Predictions,
    Resolved,
    Steps,
    TaskBase,
)


@contextlib.contextmanager
def _forgotten_gradients() -> Iterator[None]:
    """Forgets the gradients that graphs made meanwhile have registered, once nothing trains any more.

    TensorFlow registers each use of `tf.custom_gradient` in a graph for good, and with it the graph and its variables: a search of twenty
    runs would hold the weights and moments of all.
    """
    registered = ops.gradient_registry._registry
    before = set(registered)
    try:
        yield
    finally:
        for name in registered.keys() - before:
            if name.startswith("CustomGradient-"):
                del registered[name]


@_forgotten_gradients()
def run(task: TaskBase, files: DataFiles, output_dir: str, placement: Placement, init_checkpoint: str = "",
        steps: Steps = TRAIN_AND_EVALUATE, best: bool | None = None, report: Callable[[str], None] = print,
        opened: Steps | None = None, given: Collection[str] = ()) -> dict[str, float]:
    """Trains, evaluates and predicts as `steps` say, and returns the metrics.

    `best` says whether the best checkpoint answers, or the last one; by default `training.answer_with` does. The data of the steps
    `opened` (by default of `steps`) are opened and checked before training. Without training, the folder's checkpoint counts, or
    `init_checkpoint` if the folder has none. `given` are the keys that the user gives: what an evaluation tunes yields to them. Of several
    workers all train and evaluate, and the first one alone predicts and writes.
    """
    run_config.require_vocabulary(task.config)
    if steps.predict:
        files.check_not_answers(output_dir)
    best = task.config.training.answer_with == "best" if best is None else best
    folder, first = RunFolder(output_dir), is_first_worker(placement)
    if first and (constant := task.constant_answers(files, steps)):
        return _write_constant(constant, folder, report)
    metrics: dict[str, float] = {}
    if steps.train and (kept := folder.best_of_search):
        raise ValueError(f"--output_dir={output_dir} holds a search, whose best run {kept.path} answers for it; give another folder")
    resolved = None
    examined: list[tuple[Resolved, Predictions]] = []
    if steps.train:
        opened = opened or steps
        begun_with = last_weights(folder)
        trained = loop.train(task, files, output_dir, placement, init_checkpoint, report=report,
                             steps=dataclasses.replace(opened, predict=opened.predict and first))
        metrics, resolved = trained.metrics, trained.resolved
        if first:
            forget_tuned_for(begun_with, metrics, folder, report)
        examined.append((resolved, trained.predictions))
    elif steps.evaluate:
        asked, task = task, task.measured_with(tuned_at(trained_weights(folder, init_checkpoint, best)))
        _tell_tuned(asked, task, "measured with what an earlier evaluation tuned", report)
        elsewhere = "" if folder.has_weights(best) else trained_weights(folder, init_checkpoint)
        metrics = evaluation.evaluate(task, files, output_dir, placement, elsewhere, report, best, lambda *found: examined.append(found))
    if first and steps.evaluate and metrics:
        folder.write_results(metrics)
        if not steps.train:
            store_tuned(task, metrics, folder, best, report)
    if first and steps.predict:
        weights = trained_weights(folder, init_checkpoint, best)
        report(original_paths(f"answers come from {weights}"))
        asked = resolved.task if resolved else task
        measured = {} if steps.train else task.tuned_options(metrics)  # of weights elsewhere, beside which nothing is written
        tuned = with_tuned(asked, measured or tuned_at(weights), given)
        changed = _tell_tuned(asked, tuned, "tuned in evaluation", report)
        resolved = resolved if resolved and not changed else resolve_answers(tuned, files, placement)
        assert resolved.tests is not None
        predictions = predict(resolved, resolved.tests.source, weights, report)
        folder.make()
        report(f"wrote {', '.join(resolved.tests.write(predictions, output_dir))}")
    if first and steps.train:
        _write_card(examined[0], files, metrics, folder, report)
    if first and task.config.training.report and metrics:
        for found in examined:
            _write_report(*found, metrics, folder, report)
    return metrics


def _tell_tuned(before: TaskBase, after: TaskBase, what: str, report: Callable[[str], None]) -> bool:
    """Reports which options an evaluation has tuned; returns whether there are any."""
    changed = differences(to_dict(before.options), to_dict(after.options))
    if changed:
        report(f"{what}: {'; '.join(one.describe() for one in changed)}")
    return bool(changed)


def _write_card(examined: tuple[Resolved, Predictions], files: DataFiles, metrics: Mapping[str, float], run: RunFolder,
                report: Callable[[str], None]) -> None:
    """Writes the model card of a run that has ended."""
    from official_bert.reports.model_card import make_card, write_card
    resolved, predictions = examined
    held_out, origin = resolved.held_out, run.origin
    answers: Mapping[str, ComparableAnswers] = {}
    if metrics and predictions and isinstance(held_out, Comparable):
        answers = held_out.comparable(predictions)
    evaluated = str(files.eval_file or files.data_dir or f"a part of {os.path.basename(str(files.train_file))}")
    data = [("training", str(files.train_file or files.data_dir), _count(resolved.train)),
            *([("evaluation", evaluated, _count(held_out.source))] if held_out else [])]
    card = make_card(os.path.basename(run.path.rstrip("/")), resolved.task.config, str(origin.get("init_checkpoint", "")), data, metrics,
                     answers)
    if write_card(run.file(CARD_FILE), card):
        report(f"wrote {run.file(CARD_FILE)}")


def _count(source: BatchSource | None) -> int | None:
    """The rows of a source, each window of a text one; None if they are not in memory."""
    return len(source.examples) if isinstance(source, ExampleSource) else None


def _write_report(resolved: Resolved, predictions: Predictions, metrics: Mapping[str, float], run: RunFolder,
                  report: Callable[[str], None]) -> None:
    """Writes the page about an evaluation and its JSON into the run's folder; reports the tables that the task wants on the screen."""
    from official_bert.reports import page, run_sections  # matplotlib takes a second
    config, held_out = resolved.task.config, resolved.held_out
    cut = run_sections.cut_section(cut_rows(resolved), config.options.get("max_seq_length", 0), config.options.get("truncate") == "windows")
    curves = run_sections.curves_section(run.file(LOG_FILE))
    own: list[Section] = held_out.examine(predictions) if isinstance(held_out, Examined) else []
    sections = [run_sections.metrics_section(metrics), *own, *filter(None, (curves, cut))]
    for line in page.as_lines(sections):
        report(line)
    title = f"{config.task}: {os.path.basename(run.path.rstrip('/'))}"
    report(f"wrote {', '.join(page.write_report(title, sections, run.path))}")


def _write_constant(constant: ConstantAnswers, run: RunFolder, report: Callable[[str], None]) -> dict[str, float]:
    run.make()
    report("no model is trained: every row gets the same answer")
    if constant.metrics:
        run.write_results(constant.metrics)
    if constant.write:
        report(f"wrote {', '.join(constant.write(run.path))}")
    return constant.metrics


def forget_tuned_for(begun_with: str, metrics: Mapping[str, float], run: RunFolder, report: Callable[[str], None] = print) -> None:
    """Removes what was tuned before, if the run has trained on from the weights `begun_with` ("": its first) without an evaluation."""
    if not metrics and last_weights(run) != begun_with:
        run.forget_tuned(report)


def tuned_at(weights: str) -> dict[str, Any]:
    """Reads the options that were tuned for the weights at a path: a run's folder, or a checkpoint in one."""
    return tuned_for(prefix) if (prefix := checkpoint_at(weights)) else {}


def store_tuned(task: TaskBase, metrics: Mapping[str, float], run: RunFolder, best: bool, report: Callable[[str], None] = print) -> None:
    """Stores what an evaluation of the weights of a run tuned beside them, unless the run's own options ask for something else."""
    tuned, stored = task.tuned_options(metrics), run.config()
    if not tuned or not run.has_weights(best) or stored is None:
        return
    for key in tuned:
        if (has := stored.options.get(key, asked := getattr(task.options, key))) != asked:
            report(f"{key} of this evaluation is not stored, because the run in {run.path} has options.{key}: {has}; give it to the "
                   f"commands that shall use it: {tuned[key]}")
            return
    step = step_of(trained_weights(run, best=best))
    write_tuned(tuned, RunFolder(run.answering_folder(best)).checkpoint(step))


def with_tuned(task: TaskBase, found: Mapping[str, Any], given: Collection[str]) -> TaskBase:
    """Returns the task with stored `tuned_options`, but for numbers that the user has `given`, by dotted key, such as 2018's default."""
    left = {key: value for key, value in found.items() if f"options.{key}" not in given or isinstance(getattr(task.options, key), str)}
    return task.with_tuned(left)


def resolve_answers(task: TaskBase, files: DataFiles, placement: Placement) -> Resolved:
    """Resolves the task with the data to answer, for the devices of a run. Raises ValueError if there are none."""
    set_precision(task.config.training.precision, task.config.training.tf32)
    with answering_scope(placement):
        return task.resolve(files, Steps(train=False, evaluate=False, predict=True))


def predict(resolved: Resolved, source: BatchSource, path: str, report: Callable[[str], None] = print) -> list[dict[str, Any]]:
    """Predicts each row of a source, with the weights at a path, and reports what was assumed about them.

    Raises ValueError unless the path has weights for all variables of the model, with its classes.
    """
    evaluation.take_all(resolved.task, resolved.model, path, report)
    return evaluation.predict(resolved.task, resolved.model, source)
