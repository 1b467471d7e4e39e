"""The plan of a phase of a run as plain data: its training data, and how it is evaluated."""

import dataclasses
import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from official_bert.data.batches.sources import BatchSource
from official_bert.training.held_out import HeldOut
from official_bert.training.recipe import Recipe
from official_bert.training_config import TrainingConfig


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class PhasePlan:
    """The plan for steps `first` + 1 to `last` of a run, on the batches of `source` from number `first_batch` on."""

    number: int = 0
    first: int = 0
    last: int = 0
    recipe: Recipe
    source: BatchSource
    first_batch: int = 0
    held_out: HeldOut | None = None
    best_metric: str = "-loss"  # the one by which the best checkpoint is chosen; `-` in front: less is better
    tuned_options: Callable[[Mapping[str, float]], dict[str, Any]] = lambda metrics: {}  # what an evaluation tuned
    options: Any = None  # phases with other ones are measured otherwise
    about: str = ""  # what tells this phase from the others, for the user

    def batch_number(self, step: int) -> int:
        """Returns the number of the batch for the step that follows `step` steps."""
        return self.first_batch + step - self.first

    def follows_in(self, source: BatchSource) -> int | None:
        """Returns the batch number of `source` at which this phase ends, or None if `source` has other data."""
        if self.source.content != source.content:
            return None
        epoch, batches = divmod(self.batch_number(self.last), self.source.batches_per_epoch)
        rows = batches * self.source.batch_size
        return epoch * source.batches_per_epoch + min(-(-rows // source.batch_size), source.batches_per_epoch)

    def is_measured_like(self, other: "PhasePlan") -> bool:
        """Returns whether another phase is evaluated on the same data with the same options."""
        content, other_content = (phase.held_out and phase.held_out.source.content for phase in (self, other))
        return (content, self.options) == (other_content, other.options)


def epoch_steps(training: TrainingConfig, source: BatchSource, epochs: float | None = None) -> int:
    """Returns the steps of `epochs` (default: `training.epochs`).

    Rounded down, they count rows as 2018 did: for SQuAD questions, not windows.
    """
    epochs = training.epochs if epochs is None else epochs
    if training.epoch_rounding == "up":
        return int(epochs * source.batches_per_epoch)
    return int(source.rows / training.batch_size * epochs)


def evaluation_steps(phase: PhasePlan) -> Sequence[int]:
    """Returns the steps after which a phase evaluates, in order: by `eval_every`, or else `eval_epochs`, and its last
    step.
    """
    training = phase.recipe.training
    if training.hours:
        every_epochs = (
            max(1, epoch_steps(training, phase.source, training.eval_epochs)) if training.eval_epochs else phase.last
        )
        step = training.eval_every or every_epochs
        return range(step, phase.last + step, step)
    if training.eval_every:
        due: Iterable[int] = range(0, phase.last, training.eval_every)
    elif training.eval_epochs:
        every = max(training.eval_epochs, 1 / phase.source.batches_per_epoch)
        steps = (phase.first + epoch_steps(training, phase.source, number * every) for number in itertools.count(1))
        due = itertools.takewhile(lambda step: step < phase.last, steps)
    else:
        due = ()
    return [*sorted({step for step in due if phase.first < step}), phase.last]
