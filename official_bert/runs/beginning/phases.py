"""The phases of a run and its resume position: each phase has its own steps and batches; schedule and optimizer are the
run's.

A phase continues in the data at the end of the last phase with the same data.
"""

import dataclasses

from official_bert.config import Config, PhaseConfig, merge, to_dict
from official_bert.runs.beginning.preparation import prepare
from official_bert.tasks.data import DataFiles, Resolved, Steps
from official_bert.tasks.task import TaskBase
from official_bert.training.phase import PhasePlan, epoch_steps

MOST_STEPS = 2**31 - 1  # the last one of a training whose end is a time


def plan(task: TaskBase, files: DataFiles, steps: Steps) -> tuple[list[PhasePlan], list[Resolved]]:
    """Returns the run's phases with their data and one shared model; a single phase if the configuration names none.

    Also returns the task of each phase with its data.

    Raises ValueError if the data does not match or the lengths of the phases are not configured.
    """
    config = task.config
    if config.phases and config.training.hours:
        raise ValueError(
            f"config.phases: expected none beside training.hours ({config.training.hours:g}): phases are measured in "
            f"steps"
        )
    if not config.phases:
        resolved = prepare(task, files, steps)
        whole = _phase_of(resolved)
        total = (
            MOST_STEPS if config.training.hours else config.training.steps or epoch_steps(config.training, whole.source)
        )
        if total < 1:
            raise ValueError(
                f"config.training: expected steps or epochs above 0, got {config.training.epochs:g} epochs of "
                f"{whole.source.batches_per_epoch} batches (rounded {config.training.epoch_rounding})"
            )
        return [dataclasses.replace(whole, last=total)], [resolved]
    if config.training.steps or config.training.epochs:
        raise ValueError(
            "config.training.steps and epochs: expected neither, config.phases says how many steps a run has"
        )
    phases: list[PhasePlan] = []
    each: list[Resolved] = []
    for number, phase in enumerate(config.phases):
        if phase.steps < 1:
            raise ValueError(f"config.phases[{number}].steps: expected at least 1, got {phase.steps}")
        first = phases[-1].last if phases else 0
        resolved = prepare(task_in(task, phase), files, steps, each[0] if each else None)
        planned = _phase_of(resolved, number=number, first=first, last=first + phase.steps)
        follows = (earlier.follows_in(planned.source) for earlier in reversed(phases))
        start = next((batch for batch in follows if batch is not None), 0)
        phases.append(dataclasses.replace(planned, first_batch=start))
        each.append(resolved)
    return phases, each


def _phase_of(resolved: Resolved, **values: int) -> PhasePlan:
    """Returns the phase of a task with its data."""
    task = resolved.task
    assert resolved.train is not None
    return PhasePlan(
        recipe=resolved.recipe,
        source=resolved.train,
        held_out=resolved.held_out,
        best_metric=task.answers.best_metric(),
        tuned_options=task.answers.tuned_options,
        options=task.options,
        about=f"{task.config.options}",
        **values,
    )


def resolved_config(task: TaskBase, first: TaskBase) -> Config:
    """Returns the run's configuration with the options (labels) that the first phase's task found in its data."""
    if not task.config.phases:
        return first.config
    before = to_dict(task_in(task, task.config.phases[0]).options)
    options_of_data = {key: value for key, value in to_dict(first.options).items() if value != before[key]}
    return dataclasses.replace(task.config, options=merge(task.config.options, options_of_data))


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
    """Returns the task of the phase that contains step `step` (its last step included), as training evaluates it; after
    the end, the last phase's task.
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
