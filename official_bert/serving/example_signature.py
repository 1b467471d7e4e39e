"""Parses serialized `tf.train.Example`s, the input of the signature `examples`, into the inputs of a served model."""

from collections.abc import Mapping
from typing import Any

import tensorflow as tf
from jaxtyping import Int, Shaped

from official_bert.serving.bounds import Claim, in_range, require


def parse_inputs(
    serialized: Shaped[Any, " B"], inputs: Mapping[str, tf.TensorSpec], longest: Mapping[str, int], num_choices: int = 1
) -> tuple[dict[str, tf.Tensor], dict[str, tf.Tensor]]:
    """Returns the tensors of the signature `inputs`, parsed from serialized Examples [B], and the lengths [B] of the
    inputs that are lists.

    Each input is the feature of its name. Lists of different lengths are padded with 0 or "" to the longest. An input
    [B,C,S] is one flat list of `num_choices` rows of equal length. Lists longer than `longest` allows fail before they
    are padded.
    """
    parsed = tf.io.parse_example(serialized, {name: _feature(spec) for name, spec in inputs.items()})
    claims = [
        claim
        for name, spec in inputs.items()
        if spec.shape.rank > 1
        for claim in _claims(
            name, parsed[name].row_lengths(), longest[name], num_choices if spec.shape.rank == 3 else 1
        )
    ]
    claims += [
        in_range(
            f"{name}: expected numbers from",
            getattr(parsed[name], "values", parsed[name]),
            spec.dtype.min,
            spec.dtype.max,
        )
        # an Example has int64: a cast would make 2^32 + 7 a 7
        for name, spec in inputs.items()
        if spec.dtype.is_integer
    ]
    parsed = require(claims, parsed)
    lengths = {
        name: tf.cast(parsed[name].row_lengths(), tf.int32) for name, spec in inputs.items() if spec.shape.rank > 1
    }
    return {name: _shaped(parsed[name], spec, num_choices) for name, spec in inputs.items()}, lengths


def _claims(name: str, lengths: Int[Any, " B"], most: int, rows: int) -> list[Claim]:
    """Returns the claims about the lengths [B] of a feature's lists: each has `rows` rows of at most `most` values."""
    return [
        in_range(f"{name}: expected lists of", lengths, 0, rows * most, "in an Example"),
        (tf.reduce_all(lengths % rows == 0), f"{name}: expected {rows} rows of equal length in an Example", [lengths]),
    ]


def _feature(spec: tf.TensorSpec) -> tf.io.FixedLenFeature | tf.io.RaggedFeature:
    """Returns the kind of feature that holds a signature's input in an Example."""
    dtype = tf.int64 if spec.dtype.is_integer else spec.dtype
    if spec.shape.rank == 1:
        return tf.io.FixedLenFeature([], dtype)
    return tf.io.RaggedFeature(dtype, row_splits_dtype=tf.int64)


def _shaped(value: tf.Tensor | tf.RaggedTensor, spec: tf.TensorSpec, num_choices: int) -> tf.Tensor:
    """Returns a parsed feature in the shape and type of the signature."""
    if spec.shape.rank == 1:
        return tf.cast(value, spec.dtype)
    if spec.shape.rank == 3:
        lengths = tf.repeat(value.row_lengths() // num_choices, num_choices)
        rows = tf.RaggedTensor.from_row_lengths(value.values, lengths).to_tensor()
        value = tf.reshape(rows, tf.stack([tf.shape(rows)[0] // num_choices, num_choices, tf.shape(rows)[1]]))
    else:
        value = value.to_tensor()
    return value if spec.dtype == value.dtype else tf.cast(value, spec.dtype)
