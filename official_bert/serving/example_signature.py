"""The inputs of a served model out of serialized `tf.train.Example`s, as the second signature takes them."""

from collections.abc import Mapping

import tensorflow as tf


def parse_examples(serialized: tf.Tensor, inputs: Mapping[str, tf.TensorSpec],
                   num_choices: int | None = None) -> dict[str, tf.Tensor]:
    """serialized [B] string -> tensors of the signature `inputs`, each one feature of the same name.

    Lists of different lengths are padded with 0 or "" to the longest. Inputs [B,C,S] are one flat list of `num_choices`
    rows of equal length.
    """
    parsed = tf.io.parse_example(serialized, {name: _feature(spec) for name, spec in inputs.items()})
    return {name: _shaped(parsed[name], spec, num_choices) for name, spec in inputs.items()}


def _feature(spec: tf.TensorSpec):
    """How a signature's input stands in an Example."""
    dtype = tf.int64 if spec.dtype.is_integer else spec.dtype
    if spec.shape.rank == 1:
        return tf.io.FixedLenFeature([], dtype)
    return tf.io.RaggedFeature(dtype, row_splits_dtype=tf.int64)


def _shaped(value: tf.Tensor | tf.RaggedTensor, spec: tf.TensorSpec, num_choices: int | None) -> tf.Tensor:
    """What was parsed, in the shape and type of the signature."""
    if spec.shape.rank == 1:
        return tf.cast(value, spec.dtype)
    if spec.shape.rank == 3:
        lengths = tf.repeat(value.row_lengths() // num_choices, num_choices)
        rows = tf.RaggedTensor.from_row_lengths(value.values, lengths).to_tensor()
        value = tf.reshape(rows, tf.stack([tf.shape(rows)[0] // num_choices, num_choices, tf.shape(rows)[1]]))
    else:
        value = value.to_tensor()
    return value if spec.dtype == value.dtype else tf.cast(value, spec.dtype)
