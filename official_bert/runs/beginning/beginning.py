"""Starts a training: opens its data, then resumes the run in the folder or initialises weights, from a checkpoint or at
random.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import keras
import tensorflow as tf

from official_bert.config import Config
from official_bert.long_work import preflight
from official_bert.models import adaptation, checkpoints, parameter_groups
from official_bert.run_folder import RunFolder
from official_bert.runs.beginning.announcement import (
    about_padding,
    announce,
    best_checkpoint,
    cut_lines,
    few_held_out,
    unknown_lines,
    unmeasured,
)
from official_bert.runs.beginning.phases import plan, resolved_config
from official_bert.runs.checks import guards, origins
from official_bert.runs.configuration.run_config import named_as_teacher
from official_bert.storage.files import absolute
from official_bert.tasks.data import DataFiles, Resolved, Steps
from official_bert.tasks.task import TaskBase
from official_bert.training.checkpointing import BestCheckpoint, CheckpointFolder
from official_bert.training.learning_rate import check_lengths, check_shares
from official_bert.training.machines import distribution
from official_bert.training.phase import PhasePlan
from official_bert.training.trainer import Trainer


@dataclasses.dataclass(frozen=True, kw_only=True)
class Plan:
    """A training whose data are open and match the run in its folder."""

    phases: list[PhasePlan]
    resolved: list[Resolved]  # the task of each with its data
    config: Config
    origin: Mapping[str, Any]  # as `origins` has it
    frozen: tuple[str, ...]  # lines about the parts that do not learn
    base: Mapping[str, Any]  # of adapters, as `RunFolder.base` has it

    @property
    def last(self) -> int:
        """The training's last step."""
        return self.phases[-1].last


def open_data(
    task: TaskBase,
    files: DataFiles,
    run: RunFolder,
    strategy: tf.distribute.Strategy,
    init_checkpoint: str,
    steps: Steps,
) -> Plan:
    """Opens the data of all `steps` and builds the model. Raises ValueError if configuration, data and the run in the
    folder do not match.
    """
    distribution.check_same(strategy, "configuration", origins.same_everywhere(task.config, init_checkpoint))
    digests = task.data.digests(files, steps)
    if not files.allow_changed_data:
        origins.check_unchanged(digests | ({origins.START: init_checkpoint} if init_checkpoint else {}), run)
    distribution.set_precision(task.config.training.precision, task.config.training.tf32)
    keras.utils.set_random_seed(task.config.seed)
    with strategy.scope():
        phases, resolved = plan(task, files, steps)
        guards.check_patience(task.config.training, phases[0].held_out is not None, len(phases))
        if task.config.training.hours:
            check_shares(task.config.optimizer)
        else:
            check_lengths(task.config.optimizer, phases[-1].last)
        model = phases[0].recipe.model
        adapters = task.config.training.adapters
        base, frozen = adaptation.adapt_to_base(model, adapters, run, init_checkpoint, task.reads_pooler(model))
        task.draw_first_weights(model)
        frozen = frozen or parameter_groups.freeze(model, task.config.training.freeze)
    config = resolved_config(task, resolved[0].task)
    origin = origins.origin_of(config, digests, phases, resolved[0].distilled)
    distribution.check_same(strategy, "data and vocabulary", origin)
    if not files.allow_changed_data:
        origins.check_unchanged(origin, run)
    return Plan(phases=phases, resolved=resolved, config=config, origin=origin, frozen=frozen, base=base)


def begin(
    training: Plan,
    run: RunFolder,
    strategy: tf.distribute.Strategy,
    init_checkpoint: str,
    report: Callable[[str], None],
) -> tuple[Trainer, CheckpointFolder, Mapping[str, str]]:
    """Restores the newest checkpoint or else initialises the weights, reports which, and records configuration and
    origin in the folder.

    Returns the trainer, the folder of its checkpoints, and notes for the log by their names. Raises ValueError if the
    run in the folder is another one, or longer, or if the disk has no room for a checkpoint.
    """
    config, first, origin = training.config, training.resolved[0], training.origin
    changed_data = origins.changes(origin, run)
    changed = origins.check_same_run(config, run, options=first.task.Options)
    trainer = Trainer(training.phases[0].recipe, strategy, training.last)
    folder = CheckpointFolder(trainer.checkpoint, run, config.training.keep_checkpoints, config.training.keep_every)
    if training.base and run.checkpoints():  # which hold nothing of the base
        checkpoints.initialize_from(first.model, training.base["path"], first.task.answers.classes)
    restored = trainer.restore_newest(folder)
    if trainer.steps_done > training.last:
        raise ValueError(
            f"--output_dir={run.path}: expected at least the {trainer.steps_done} steps that the run has done, "
            f"got a training of {training.last}"
        )
    if restored:
        of = (
            f" of {training.last}"
            if not config.training.hours
            else (f", after {float(trainer.seconds.numpy()) / 3600:.3g} of {config.training.hours:g} hours")
        )
        report(
            f"resumed: {restored} at step {trainer.steps_done}{of}; weights, optimizer, schedule, position in "
            "the data" + "".join(f"; {change.describe()}" for change in changed)
        )
    elif init_checkpoint:
        origin = {
            **origin,
            origins.START: absolute(init_checkpoint),
            "init_checkpoint": _initialize(trainer.model, config, init_checkpoint, first.task, report),
        }
    else:
        guards.check_reinitialized(config, init_checkpoint)
        report(f"fresh: weights are random (seed {config.seed})")
    about_data = (*filter(None, [first.training_rows]), *first.notes)
    for line in (
        *about_data,
        *announce(trainer, config),
        *about_padding(trainer, first),
        *unmeasured(first),
        *few_held_out(first),
        *cut_lines(first, config),
        *unknown_lines(first),
    ):
        report(line)
    if distribution.is_chief(strategy):
        if trainer.steps_done < training.last:
            preflight.check_disk({run.path: trainer.bytes_saved}, "a checkpoint")
        if not restored or origins.evaluates_otherwise(origin, run):
            BestCheckpoint(run, first.task.answers.best_metric()).forget()
        run.write_config(config, first.task.Options)
        if training.base:
            run.write_base(training.base)
        origins.write(origin, run, bool(restored))
    return (
        trainer,
        folder,
        {"changed_data": "; ".join(changed_data), "best_checkpoint": best_checkpoint(training.phases)},
    )


def _initialize(
    model: keras.Model, config: Config, init_checkpoint: str, task: TaskBase, report: Callable[[str], None]
) -> str:
    """Gives the model the weights of a checkpoint, except layers made anew; returns what the checkpoint is."""
    new_values = parameter_groups.first_values(model, config.training.reinitialize_layers)
    layers = config.training.distillation.layers
    with named_as_teacher(bool(layers)):
        result = checkpoints.initialize_from(model, init_checkpoint, task.answers.classes, layers)
    parameter_groups.put_back(model, new_values)
    report(f"initialized (weights only): {result.describe()}")
    if new_values:
        report(
            f"reinitialized (seed {config.seed}): the last {config.training.reinitialize_layers} layers and the pooler"
        )
    return result.origin
