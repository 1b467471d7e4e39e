"""Finds the first tensor of a step that holds NaN or infinity."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import keras
import tensorflow as tf

from official_bert.objectives.objective import Batch
from official_bert.training.step import Step, Tensors, fold_seeds


class DivergedError(ValueError):
    """Raised when a training ends because its numbers are not finite, or because too many steps were skipped."""


def is_finite(value: tf.Tensor) -> bool:
    """Returns whether a tensor holds neither NaN nor infinity."""
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
    """Returns the name of the first tensor of step `number` on a global batch that has NaN or infinity.

    It may be a weight, an input, a layer's output, a loss, or, in the order of the backward pass, a gradient. The step
    is repeated eagerly, micro-batch by micro-batch.
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
