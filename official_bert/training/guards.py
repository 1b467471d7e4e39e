"""Checks that stop a run early: a vocabulary or an option that does not fit, numbers that are not finite."""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import keras
import tensorflow as tf
from absl import logging

from official_bert.config import Config, TrainingConfig
from official_bert.models.interchange import casing, formats
from official_bert.objectives.objective import Batch
from official_bert.run_folder import RunFolder
from official_bert.text import loading
from official_bert.text.vocab import check_casing, has_capitals, load_vocab
from official_bert.training.step import Step, Tensors, fold_seeds

if TYPE_CHECKING:
    from official_bert.training.schedules.phases import Phase


class DivergedError(ValueError):
    """A training has ended because its numbers are not finite, or too many steps were skipped."""


def check_vocabulary(config: Config, run: RunFolder, init_checkpoint: str) -> None:
    """Raises ValueError if there is a vocabulary, and it has ids without an embedding in the model, or capitals
    although text is lower-cased.

    The run in a folder, or a checkpoint, whose own files say that text is lower-cased for such a vocabulary goes on
    with a warning.
    """
    if not (path := config.tokenizer.vocab_file):
        return
    loading.check_rows(path, config.model.vocab_size)
    if loading.lower_cases(path) is not None:
        return
    vocab, lower_case = load_vocab(path), config.tokenizer.do_lower_case
    if lower_case and has_capitals(vocab) and _lower_cases_already(path, run, init_checkpoint):
        logging.warning(
            "%s: more than 1 %% of its entries have capital letters, but text is lower-cased, as in earlier training",
            path,
        )
    else:
        check_casing(path, vocab, lower_case)


def _lower_cases_already(vocab_file: str, run: RunFolder, init_checkpoint: str) -> bool:
    """Whether the files of the run in a folder say that text is lower-cased or, if there is none, those of the
    checkpoint.
    """
    if run.has_begun:
        return run.recorded_config().tokenizer.do_lower_case and run.casing_is_chosen
    return bool(
        init_checkpoint and casing.is_lower_case(casing.with_vocabulary(formats.read(init_checkpoint), vocab_file))
    )


def check_patience(phases: "Sequence[Phase]") -> None:
    """Raises ValueError if `training.patience` has no evaluations to count, or more than one phase to end."""
    training = phases[0].recipe.training
    if not training.patience:
        return
    if phases[0].resolved.held_out is None:
        raise ValueError(f"{_no_patience(training)}: it counts evaluations, and there is no evaluation data")
    check_counted(training)
    if len(phases) > 1:
        raise ValueError(f"{_no_patience(training)}: config.phases says how many steps a run has")


def check_counted(training: TrainingConfig) -> None:
    """Raises ValueError if `training.patience` has no evaluations to count but the last one, whatever the data."""
    if training.patience and not (training.eval_every or training.eval_epochs):
        raise ValueError(
            f"{_no_patience(training)}: it counts evaluations, and only the last weights are measured; "
            "training.eval_every or eval_epochs says when others are"
        )


def _no_patience(training: TrainingConfig) -> str:
    return f"config.training.patience: expected 0, got {training.patience}"


def check_reinitialized(config: Config, init_checkpoint: str) -> None:
    """Raises ValueError for layers that are made anew although no checkpoint gives the others."""
    if config.training.reinitialize_layers and not init_checkpoint:
        raise ValueError(
            "config.training.reinitialize_layers: expected --init_checkpoint with it; without one, all weights are new"
        )


def is_finite(value: tf.Tensor) -> bool:
    """Whether a tensor holds neither NaN nor infinity."""
    return not value.dtype.is_floating or bool(tf.reduce_all(tf.math.is_finite(value)))


@contextlib.contextmanager
def watched(model: keras.Model, note: Callable[[str, tf.Tensor], None]) -> Iterator[None]:
    """Calls `note(path, output)` for each output of the model's layers, in the order of computation."""
    layers = [layer for layer in model._flatten_layers() if layer is not model]

    def watch(layer: keras.layers.Layer, call: Callable) -> Callable:
        def watched_call(*args: Any, **kwargs: Any) -> Any:
            outputs = call(*args, **kwargs)
            for value in tf.nest.flatten(outputs):
                # a layer without weights may never be built, and then has no path
                note(layer.path or layer.name, value)
            return outputs

        return watched_call

    for layer in layers:
        layer.call = watch(layer, layer.call)
    try:
        yield
    finally:
        for layer in layers:
            del layer.call


def first_bad_tensor(step: Step, weights: Tensors, batch: Batch, number: int, micro_batches: int) -> str:
    """Names the first tensor of step `number` on a global batch that has NaN or infinity: a weight, an input, a layer's
    output, a loss, or, in the order of the backward pass, a gradient. Repeats the step eagerly, micro-batch by
    micro-batch.
    """
    names = [variable.path for variable in step.model.trainable_variables]
    for name, value in [*zip((f"weight {name}" for name in names), weights), *batch.items()]:
        if not is_finite(value):
            return name
    totals = step.objective.weights(batch)
    for place in range(micro_batches):
        rows = next(iter(batch.values())).shape[0] // micro_batches
        part = {key: value[place * rows : (place + 1) * rows] for key, value in batch.items()}
        if tensor_name := _bad_in_part(step, weights, part, totals, tf.constant(number), place):
            return tensor_name
    return "the sum of gradients, or an update"


def _bad_in_part(step: Step, weights: Tensors, part: Batch, totals: dict, number: tf.Tensor, place: int) -> str | None:
    bad: list[str] = []
    seeds = fold_seeds(step.model.non_trainable_variables, step.recipe.seed, number, tf.constant(place))

    def note(path: Any, value: tf.Tensor) -> None:
        if not is_finite(value):
            bad.append(f"output of {path}")

    with watched(step.model, note):
        with_teacher = step.objective.add_teacher_outputs(part)
        gradients, losses, _ = step.gradients(weights, seeds, with_teacher, totals, tf.constant(1.0))
    if bad:
        return bad[0]
    values = [(f"{name} loss", value) for name, value in losses.items()]
    values += [
        (f"gradient of {variable.path}", value)
        for variable, value in zip(reversed(step.model.trainable_variables), reversed(gradients))
    ]
    return next((name for name, value in values if not is_finite(value)), None)
