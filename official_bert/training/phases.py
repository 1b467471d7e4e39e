"""The phases of a run: stretches of its steps with batches of their own, under one schedule, one optimizer, one resume."""

import dataclasses

from official_bert.config import Config, PhaseConfig, merge
from official_bert.training.task import BatchSource, TaskBase


@dataclasses.dataclass(frozen=True)
class Phase:
    """Steps first + 1 to last of a run, on the batches of `task`; batch 0 of `source` is the first of them."""

    number: int
    first: int
    last: int
    task: TaskBase
    source: BatchSource
    held_out: BatchSource | None


def plan(task: TaskBase) -> list[Phase]:
    """The run's phases; one where the configuration names none. ValueError where it does not say how long they are."""
    config = task.config
    if not config.phases:
        source, held_out = task.train_source(), _held_out(task)
        settings = task.config.training  # only now: a task may resolve its configuration from the data
        if (total := settings.steps or int(settings.epochs * source.batches_per_epoch)) < 1:
            raise ValueError("config.training: expected steps or epochs above 0, got neither")
        return [Phase(0, 0, total, task, source, held_out)]
    if config.training.steps or config.training.epochs:
        raise ValueError("config.training.steps and epochs: expected neither, config.phases says how many steps a run has")
    phases: list[Phase] = []
    for number, phase in enumerate(config.phases):
        if phase.steps < 1:
            raise ValueError(f"config.phases[{number}].steps: expected at least 1, got {phase.steps}")
        first = phases[-1].last if phases else 0
        own = type(task)(phase_config(config, phase), task.files)
        phases.append(Phase(number, first, first + phase.steps, own, own.train_source(), _held_out(own)))
    return phases


def _held_out(task: TaskBase) -> BatchSource | None:
    return task.eval_source() if task.files.evaluates else None


def phase_config(config: Config, phase: PhaseConfig) -> Config:
    """The run's configuration as one phase has it."""
    training = dataclasses.replace(config.training, batch_size=phase.batch_size or config.training.batch_size,
                                   accumulation_steps=phase.accumulation_steps or config.training.accumulation_steps)
    # Each phase says all of its options, so that the ones laid over here do not reach the others.
    phases = tuple(dataclasses.replace(other, options=merge(config.options, other.options)) for other in config.phases)
    return dataclasses.replace(config, training=training, phases=phases, options=merge(config.options, phase.options))


def task_at(task: TaskBase, step: int) -> TaskBase:
    """The task as the phase that takes step `step` has it; the last phase's after the end."""
    last = 0
    for phase in task.config.phases:
        last += phase.steps
        if step < last or phase is task.config.phases[-1]:
            return type(task)(phase_config(task.config, phase), task.files)
    return task


def total_steps(config: Config) -> int:
    """The run's steps, 0 where they follow from epochs and data."""
    return sum(phase.steps for phase in config.phases) or config.training.steps
