"""The phases of a run and its resume position: each phase has its own steps and batches; schedule and optimizer are the
run's.

A phase continues in the data at the end of the last phase with the same data.
"""

import dataclasses
import itertools
from collections.abc import Iterable, Sequence

from official_bert.config import Config, PhaseConfig, TrainingConfig, merge, to_dict
from official_bert.data.batches.sources import BatchSource
from official_bert.training.preparation import prepare
from official_bert.training.recipe import Recipe
from official_bert.training.task import DataFiles, Resolved, Steps, TaskBase

MOST_STEPS = 2**31 - 1  # the last one of a training whose end is a time


@dataclasses.dataclass(frozen=True)
class Phase:
    """Steps first + 1 to last of a run, on the training batches of `resolved`, from batch `first_batch` on."""

    number: int
    first: int
    last: int
    resolved: Resolved
    first_batch: int = 0

    @property
    def source(self) -> BatchSource:
        """The training batches."""
        assert self.resolved.train is not None
        return self.resolved.train

    @property
    def recipe(self) -> Recipe:
        """All that the steps know."""
        return self.resolved.recipe

    def batch_number(self, step: int) -> int:
        """Returns the number of the batch for the step that follows `step` steps."""
        return self.first_batch + step - self.first

    def follows_in(self, source: BatchSource) -> int | None:
        """Gives the batch number of `source` at which this phase ends, if the data are the same; None for others."""
        if self.source.content != source.content:
            return None
        epoch, batches = divmod(self.batch_number(self.last), self.source.batches_per_epoch)
        rows = batches * self.source.batch_size
        return epoch * source.batches_per_epoch + min(-(-rows // source.batch_size), source.batches_per_epoch)


def plan(task: TaskBase, files: DataFiles, steps: Steps) -> list[Phase]:
    """Makes the run's phases with their data and one model for all; a single phase if the configuration names none.

    Raises ValueError if the data does not fit or the lengths of the phases are not configured.
    """
    config = task.config
    if config.phases and config.training.hours:
        raise ValueError(
            f"config.phases: expected none beside training.hours ({config.training.hours:g}): phases are measured in "
            f"steps"
        )
    if not config.phases:
        whole = Phase(0, 0, config.training.steps, prepare(task, files, steps))
        total = (
            MOST_STEPS if config.training.hours else config.training.steps or epoch_steps(config.training, whole.source)
        )
        if total < 1:
            raise ValueError(
                f"config.training: expected steps or epochs above 0, got {config.training.epochs:g} epochs of "
                f"{whole.source.batches_per_epoch} batches (rounded {config.training.epoch_rounding})"
            )
        return [dataclasses.replace(whole, last=total)]
    if config.training.steps or config.training.epochs:
        raise ValueError(
            "config.training.steps and epochs: expected neither, config.phases says how many steps a run has"
        )
    phases: list[Phase] = []
    for number, phase in enumerate(config.phases):
        if phase.steps < 1:
            raise ValueError(f"config.phases[{number}].steps: expected at least 1, got {phase.steps}")
        first = phases[-1].last if phases else 0
        resolved = prepare(task_in(task, phase), files, steps, phases[0].resolved if phases else None)
        assert resolved.train is not None
        follows = (earlier.follows_in(resolved.train) for earlier in reversed(phases))
        start = next((batch for batch in follows if batch is not None), 0)
        phases.append(Phase(number, first, first + phase.steps, resolved, start))
    return phases


def resolved_config(task: TaskBase, phases: Sequence[Phase]) -> Config:
    """Returns a run's own configuration, with the options (labels) that the task has found in the data of its first
    phase.
    """
    first = phases[0].resolved.task
    if not task.config.phases:
        return first.config
    before = to_dict(task_in(task, task.config.phases[0]).options)
    options_of_data = {key: value for key, value in to_dict(first.options).items() if value != before[key]}
    return dataclasses.replace(task.config, options=merge(task.config.options, options_of_data))


def epoch_steps(training: TrainingConfig, source: BatchSource, epochs: float | None = None) -> int:
    """The steps of `epochs` (default: `training.epochs`); rounded down they count rows as 2018 did: for SQuAD
    questions, not windows.
    """
    epochs = training.epochs if epochs is None else epochs
    if training.epoch_rounding == "up":
        return int(epochs * source.batches_per_epoch)
    return int(source.rows / training.batch_size * epochs)


def evaluation_steps(phase: Phase) -> Sequence[int]:
    """The steps of a phase after which weights are measured, in order: by `eval_every`, or else by `eval_epochs`, and
    its last one.
    """
    training = phase.resolved.task.config.training
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


def phase_config(config: Config, phase: PhaseConfig) -> Config:
    """Returns the run's configuration with one phase's values."""
    training = dataclasses.replace(
        config.training,
        batch_size=phase.batch_size or config.training.batch_size,
        accumulation_steps=phase.accumulation_steps or config.training.accumulation_steps,
    )
    # Each phase gets all of its options, so that those of this phase do not reach the others.
    phases = tuple(dataclasses.replace(other, options=merge(config.options, other.options)) for other in config.phases)
    return dataclasses.replace(config, training=training, phases=phases, options=merge(config.options, phase.options))


def task_at(task: TaskBase, step: int) -> TaskBase:
    """Returns the task of the phase that ends with or after step `step`, as training measures it; after the end, that
    of the last phase.
    """
    last = 0
    for phase in task.config.phases:
        last += phase.steps
        if step <= last or phase is task.config.phases[-1]:
            return task_in(task, phase)
    return task


def task_in(task: TaskBase, phase: PhaseConfig) -> TaskBase:
    """Returns the task of a phase."""
    return dataclasses.replace(task, config=phase_config(task.config, phase))


def total_steps(config: Config) -> int:
    """Returns the run's steps, 0 if they depend on epochs and data, or on time."""
    return 0 if config.training.hours else sum(phase.steps for phase in config.phases) or config.training.steps
