"""Evaluations during training: when they are due, the best checkpoint, early stopping (patience), and the weights that
a run answers with.
"""

import bisect
import os
from collections.abc import Callable, Sequence

from official_bert.run_folder import write_tuned
from official_bert.training.checkpointing import BestCheckpoint, CheckpointFolder
from official_bert.training.held_out import Predictions
from official_bert.training.logs.run_log import Watcher
from official_bert.training.phase import PhasePlan, evaluation_steps
from official_bert.training.trainer import Trainer


class Evaluations:
    """Evaluates a run's weights on its held-out data, and keeps the best of them."""

    def __init__(
        self,
        trainer: Trainer,
        folder: CheckpointFolder,
        watcher: Watcher,
        phases: Sequence[PhasePlan],
        publish: Callable[[], None],
    ):
        self.trainer, self.folder, self.watcher, self.phases, self.publish = trainer, folder, watcher, phases, publish
        self.settings = phases[0].recipe.training
        self.best = self._read_best()
        due = [evaluation_steps(phase) for phase in phases]
        self.due = due[0] if len(due) == 1 else [step for steps in due for step in steps]
        self.done = {step for step in folder.run.logged_steps("eval") if step <= trainer.steps_done}
        self.measured: dict[int, dict[str, float]] = {}  # the metrics of the last evaluation, by its step
        self.predictions: Predictions = ()  # of the last evaluation

    def _read_best(self) -> BestCheckpoint:
        """The best checkpoint, as the chief has written it."""
        return BestCheckpoint(self.folder.run, self.phases[0].best_metric)

    def is_due(self, step: int) -> bool:
        """Returns whether an evaluation is due after `step`; the one after the last step runs at the end."""
        return step < self.phases[-1].last and self.due[bisect.bisect_left(self.due, step)] == step

    def follow(self, step: int) -> bool:
        """Returns whether an evaluation follows `step`, including the last step."""
        return self.phases[-1].held_out is not None and (self.is_due(step) or step == self.phases[-1].last)

    def next_due(self, step: int) -> int:
        """Returns the step of the first evaluation after `step`."""
        return self.due[bisect.bisect_right(self.due, step)]

    def make_up(self) -> None:
        """Evaluates the restored weights if that was due when the run was stopped, and is not in its log."""
        step = self.trainer.steps_done
        for phase in self.phases:
            if (
                phase.first < step <= phase.last
                and self.is_due(step)
                and self.trainer.any_worker(step not in self.done)
            ):
                self.trainer.enter(phase.recipe)
                self.evaluate(phase, step)

    def evaluate(self, phase: PhasePlan, step: int) -> dict[str, float]:
        """Evaluates on the held-out data, keeps the best checkpoint so far, and returns the metrics ({} without such
        data).
        """
        if phase.held_out is None:
            return {}
        metrics = self.measure(phase)
        self.folder.wait()
        # In this order: an evaluation in the log is a finished one, which a resumed run does not make up.
        tuned = phase.tuned_options(metrics)
        better = False
        if self.watcher.enabled:
            better = self.best.keep_if_better(
                self.trainer.checkpoint,
                step,
                metrics,
                self._first_measured_like(phase),
                self.settings.eval_steps,
                self.folder.written(step),
                tuned,
            )
            write_tuned(tuned, self.folder.run.checkpoint(step))
        saved = os.path.basename(self.folder.written(step))
        self.watcher.evaluation(step, metrics, (f"saved {saved}",) * bool(saved) + ("best so far",) * better)
        self.done.add(step)
        self.measured = {step: metrics}
        self.publish()
        return metrics

    def measure(self, phase: PhasePlan) -> dict[str, float]:
        """Returns the metrics of the weights on the held-out data."""
        held_out = phase.held_out
        assert held_out is not None
        metrics, self.predictions = self.trainer.evaluate(held_out.source, self.settings.eval_steps)
        return metrics | held_out.evaluate(self.predictions)

    def _first_measured_like(self, phase: PhasePlan) -> int:
        """The number of the first phase that is measured on the same data with the same options."""
        return next(other.number for other in self.phases if other.is_measured_like(phase))

    def are_out_of_patience(self, step: int) -> bool:
        """Returns whether training ends early: at least `patience` evaluations up to `step` followed the best one."""
        patience, best = self.settings.patience, self.best.record.get("step", 0)
        return (
            bool(patience)
            and self.is_due(step)
            and self.trainer.any_worker(
                self.watcher.enabled and sum(best < evaluation <= step for evaluation in self.done) >= patience
            )
        )

    def measure_answers(self) -> dict[str, float]:
        """Returns the metrics of the weights that the run answers with, restored if they are the best ones."""
        phase, step = self.phases[-1], self.trainer.steps_done
        metrics = self.measured.get(step) or self.evaluate(phase, step)
        if self.settings.answer_with == "last" or not self.trainer.any_worker(
            self.watcher.enabled and bool(self.best.record)
        ):
            return metrics
        best = self._read_best()
        self.watcher.say(f"the best checkpoint is used: {best.describe()}")
        if best.record["step"] == step or phase.held_out is None:
            return metrics
        best.restore(self.trainer.checkpoint)
        return self.measure(phase)
