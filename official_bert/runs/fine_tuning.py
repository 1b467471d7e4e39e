"""One fine-tuning: training, evaluation and prediction, shared by the fine-tuning commands and Python functions."""

import dataclasses
import functools
from collections.abc import Callable, Collection, Mapping
from typing import Any

from official_bert.config import differences, to_dict
from official_bert.data.batches.sources import BatchSource
from official_bert.models.checkpoints import checkpoint_at, trained_weights
from official_bert.run_folder import RunFolder, step_of, tuned_for, write_tuned
from official_bert.runs import ending, evaluation, whole_run
from official_bert.runs.configuration import run_config
from official_bert.storage.temporaries import original_paths
from official_bert.tasks import answering
from official_bert.tasks.answers import ConstantAnswers, Measured
from official_bert.tasks.data import TRAIN_AND_EVALUATE, DataFiles, Resolved, Steps
from official_bert.tasks.task import TaskBase
from official_bert.training.held_out import Predictions
from official_bert.training.machines.cluster import Placement, is_first_worker
from official_bert.training.machines.distribution import answering_scope, set_precision

# keys with which the user of an evaluation asks that values are tuned, whatever an earlier one has stored
TUNED_ANEW = {"options.calibrate", "options.target_accuracy"}


@dataclasses.dataclass(frozen=True)
class FineTuning:
    """A fine-tuning: trains and evaluates a task, and predicts with it, in the folder of a run.

    Without training, uses the folder's checkpoint, or `init_checkpoint` if the folder has none. All workers train and
    evaluate; only the first predicts and writes.
    """

    task: TaskBase
    files: DataFiles
    run: RunFolder
    placement: Placement
    init_checkpoint: str = ""
    steps: Steps = TRAIN_AND_EVALUATE
    # whether the best checkpoint answers, or the last one; by default as `training.answer_with` says
    best: bool | None = None
    report: Callable[[str], None] = print
    opened: Steps | None = None  # the steps whose data are opened and checked before training; by default `steps`
    asked_keys: Collection[str] = ()  # the keys that the user gives: what an evaluation tuned yields to them
    # whether results on other data than the run's own get names of their own, beside the run's
    named_results: bool = True
    command: str = ""  # what model card and report name; by default the command line of this process
    write_answers: Callable[[Any, Predictions, str], list[str]] = lambda tests, *rows_and_folder: tests.write(
        *rows_and_folder
    )

    @property
    def _best(self) -> bool:
        return self.task.config.training.answer_with == "best" if self.best is None else self.best

    def carry_out(self) -> dict[str, float]:
        """Trains, evaluates and predicts as `steps` say, and returns the metrics."""
        run_config.require_vocabulary(self.task.config, self.init_checkpoint, self.steps.train, self.run.path)
        if self.steps.predict:
            self.files.check_not_answers(self.run.path)
        first = is_first_worker(self.placement)
        if first and (constant := self.task.answers.constant_answers(self.files, self.steps)):
            return _write_constant(constant, self.run, self.report)
        evaluation_name = self._evaluation_name()
        measured = self.train() if self.steps.train else self._evaluate() if self.steps.evaluate else None
        if first:
            self._write(measured, evaluation_name)
        return measured.metrics if measured else {}

    def _write(self, measured: Measured | None, evaluation_name: str) -> None:
        """Writes results, answers, model card and report, as far as there are any."""
        if measured and measured.metrics and self.steps.evaluate:
            self._write_results(measured, evaluation_name)
            measured.resolved.task.answers.check_tuned(measured.metrics)
        if self.steps.predict:
            self._predict(measured)
        if measured and self.steps.train:
            ending.documents().write_card(self.run, measured, self.files, self.report, self.command)
        if measured and measured.metrics and self.task.config.training.report:
            weights = trained_weights(self.run, self.init_checkpoint, self._best)
            ending.documents().write_page(
                self.run, measured, self.files, original_paths(weights), evaluation_name, self.report, self.command
            )

    @functools.cached_property
    def _digest(self) -> str:
        """The digest of the data to evaluate on, "" if they are a part of the training file."""
        return self.task.data.digests(self.files, self.steps).get("eval", "")

    def _evaluation_name(self) -> str:
        """Returns what tells the files about this evaluation from those about the run's own data. Raises ValueError if
        it is taken.
        """
        if self.steps.train or not (self.steps.evaluate and self.named_results and is_first_worker(self.placement)):
            return ""
        return self.run.name_of_evaluation(
            str(next(filter(None, self.task.data.sources(self.files)["eval"]), "")), self._digest
        )

    def train(self) -> Measured:
        """Trains only, and returns the result. Raises ValueError if the folder holds a search."""
        if best := self.run.best_of_search:
            raise ValueError(
                f"--output_dir={self.run.path} holds a search, whose best run is {best.path}; give another folder"
            )
        begun_at, opened, first = self.run.steps_done, self.opened or self.steps, is_first_worker(self.placement)
        trained = whole_run.train(
            self.task,
            self.files,
            self.run.path,
            self.placement,
            self.init_checkpoint,
            report=self.report,
            steps=dataclasses.replace(opened, predict=opened.predict and first),
        )
        if first and not trained.metrics and self.run.steps_done != begun_at:
            self.run.forget_tuned(self.report)
        return trained

    def _evaluate(self) -> Measured:
        weights, task = trained_weights(self.run, self.init_checkpoint, self._best), self.task
        if task.answers.measures_with_tuned and not TUNED_ANEW & {*self.asked_keys}:
            task = with_tuned(
                task,
                tuned_for(checkpoint_at(weights)),
                (),
                self.report,
                "evaluated with the values that an earlier evaluation tuned",
            )
        elsewhere = "" if self.run.has_weights(self._best) else weights
        return evaluation.measure(task, self.files, self.run.path, self.placement, elsewhere, self.report, self._best)

    def _write_results(self, measured: Measured, evaluation_name: str) -> None:
        self.run.write_results(measured.metrics, evaluation_name, self._digest)
        if not self.steps.train:
            store_tuned(measured.resolved.task, measured.metrics, self.run, self._best, self.report)

    def _predict(self, measured: Measured | None) -> None:
        """Writes the answers, those of the weights of the run with what was tuned for them."""
        weights = trained_weights(self.run, self.init_checkpoint, self._best)
        self.report(original_paths(f"answers come from {weights}"))
        # Beside weights that lie elsewhere nothing was written.
        measured_task = measured.resolved.task if measured else self.task
        tuned_now = measured_task.answers.tuned_options(measured.metrics) if measured and not self.steps.train else {}
        task = with_tuned(measured_task, tuned_now or tuned_for(checkpoint_at(weights)), self.asked_keys, self.report)
        reusable = measured and self.steps.train and task.options == measured_task.options
        resolved = measured.resolved if measured and reusable else resolve_answers(task, self.files, self.placement)
        assert resolved.tests is not None
        predictions = predict(resolved, resolved.tests.source, weights, self.report)
        self.run.make()
        self.report(f"wrote {', '.join(self.write_answers(resolved.tests, predictions, self.run.path))}")


def _write_constant(constant: ConstantAnswers, run: RunFolder, report: Callable[[str], None]) -> dict[str, float]:
    run.make()
    report("no model is trained: every row gets the same answer")
    if constant.metrics:
        run.write_results(constant.metrics)
    if constant.write:
        report(f"wrote {', '.join(constant.write(run.path))}")
    return constant.metrics


def store_tuned(
    task: TaskBase, metrics: Mapping[str, float], run: RunFolder, best: bool, report: Callable[[str], None] = print
) -> None:
    """Stores the options tuned by an evaluation beside the run's weights, unless the run's own options set them."""
    tuned, stored = task.answers.tuned_options(metrics), run.config()
    if not tuned or not run.has_weights(best) or stored is None:
        return
    for key in tuned:
        if (has := stored.options.get(key, asked := getattr(task.options, key))) != asked:
            report(
                f"{key} of this evaluation is not stored, because the run in {run.path} has options.{key}: {has}; "
                f"give it to the commands that should use it: {tuned[key]}"
            )
            return
    step = step_of(trained_weights(run, best=best))
    write_tuned(tuned, RunFolder(run.answering_folder(best)).checkpoint(step))


def with_tuned(
    task: TaskBase,
    stored: Mapping[str, Any],
    asked_keys: Collection[str],
    report: Callable[[str], None],
    event: str = "tuned in evaluation",
) -> TaskBase:
    """Returns the task with stored `tuned_options`, and reports them.

    Numbers given by the user (`asked_keys`, dotted keys) take precedence, even if they equal 2018's default.
    """
    tuned = task.answers.with_tuned(
        {
            key: value
            for key, value in stored.items()
            if f"options.{key}" not in asked_keys or isinstance(getattr(task.options, key), str)
        }
    )
    if changes := differences(to_dict(task.options), to_dict(tuned.options)):
        report(f"{event}: {'; '.join(change.describe() for change in changes)}")
    return tuned


def resolve_answers(task: TaskBase, files: DataFiles, placement: Placement) -> Resolved:
    """Returns the task resolved with the data to answer, for the devices of a run. Raises ValueError if there are no
    such data.
    """
    set_precision(task.config.training.precision, task.config.training.tf32)
    with answering_scope(placement):
        return task.data.resolve(files, Steps(train=False, evaluate=False, predict=True))


def predict(
    resolved: Resolved, source: BatchSource, path: str, report: Callable[[str], None] = print
) -> list[dict[str, Any]]:
    """Predicts each row of a source, with the weights at a path, and reports what was assumed about them.

    Raises ValueError unless the path has weights for all variables of the model, with its classes.
    """
    answering.take_all(resolved.task, resolved.model, path, report)
    return answering.predict(resolved.task, resolved.model, source)
