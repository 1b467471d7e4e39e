"""The phases of a run: stretches of its steps with batches of their own, under one schedule, one optimizer, one resume."""

import dataclasses

from official_bert.config import Config, PhaseConfig, merge
from official_bert.training.task import BatchSource, DataFiles, Resolved, Steps, TaskBase


@dataclasses.dataclass(frozen=True)
class Phase:
    """Steps first + 1 to last of a run, on the batches of `resolved`; batch 0 of its training batches is the first of them."""

    number: int
    first: int
    last: int
    resolved: Resolved

    @property
    def source(self) -> BatchSource:
        """The training batches."""
        assert self.resolved.train is not None
        return self.resolved.train


def plan(task: TaskBase, files: DataFiles, steps: Steps) -> list[Phase]:
    """The run's phases with their data and their one model; one phase if the configuration names none.

    Raises ValueError for data that does not fit, and if the configuration does not say how long the phases are.
    """
    config = task.config
    if not config.phases:
        whole = Phase(0, 0, config.training.steps, task.resolve(files, steps))
        total = config.training.steps or int(config.training.epochs * whole.source.batches_per_epoch)
        if total < 1:
            raise ValueError("config.training: expected steps or epochs above 0, got neither")
        return [dataclasses.replace(whole, last=total)]
    if config.training.steps or config.training.epochs:
        raise ValueError("config.training.steps and epochs: expected neither, config.phases says how many steps a run has")
    phases: list[Phase] = []
    for number, phase in enumerate(config.phases):
        if phase.steps < 1:
            raise ValueError(f"config.phases[{number}].steps: expected at least 1, got {phase.steps}")
        first, model = (phases[-1].last, phases[0].resolved.model) if phases else (0, None)
        resolved = type(task)(phase_config(config, phase)).resolve(files, steps, model)
        phases.append(Phase(number, first, first + phase.steps, resolved))
    return phases


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
            return type(task)(phase_config(task.config, phase))
    return task


def total_steps(config: Config) -> int:
    """The run's steps, 0 where they follow from epochs and data."""
    return sum(phase.steps for phase in config.phases) or config.training.steps
