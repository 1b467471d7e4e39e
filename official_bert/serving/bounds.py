"""Bounds the work of one request, in TensorFlow's own ops: claims that are checked first, and rows that are computed in chunks."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf

Claim = tuple[tf.Tensor, str, Sequence[Any]]  # whether it holds [] bool, what was expected, what came


def in_range(expected: str, values: tf.Tensor, least: int, most: tf.Tensor | int, unit: str = "") -> Claim:
    """Returns the claim that all `values` lie from `least` to `most`; the lowest and the highest are what came."""
    told = f"{expected} {least} to {most if isinstance(most, int) else 'its length - 1'} {unit}".rstrip()
    if not values.shape.rank:
        return (values >= least) & (values <= most), told, [values]
    lowest, highest = tf.reduce_min(values), tf.reduce_max(values)  # of no values: the type's highest and lowest, which pass
    return (lowest >= least) & (highest <= most), told, [lowest, "to", highest]


def same_rows(inputs: Mapping[str, tf.Tensor]) -> list[Claim]:
    """Returns the claims that all inputs have as many rows as the first."""
    first, *others = inputs
    return [(tf.equal(tf.shape(inputs[name])[0], tf.shape(inputs[first])[0]), f"{name}: expected as many rows as {first} has",
             [tf.shape(inputs[name])[0]]) for name in others]


def require(claims: Sequence[Claim], then: Any) -> Any:
    """Returns the tensors `then`, of any nested structure, which wait until every claim has been checked.

    A claim that does not hold fails the request with InvalidArgumentError: `assertion failed: [EXPECTED, got] [VALUE]`.
    """
    # The op itself: tf.debugging.Assert puts a tf.cond around it, which costs more than the check.
    checks = [tf.raw_ops.Assert(condition=holds, data=[f"{expected}, got", *came], summarize=8) for holds, expected, came in claims]
    with tf.control_dependencies(checks):
        return tf.nest.map_structure(tf.identity, then)


def in_chunks(compute: Callable[[tf.Tensor, tf.Tensor], Mapping[str, tf.Tensor]], total: tf.Tensor, at_once: tf.Tensor,
              results: Mapping[str, tf.TensorSpec]) -> dict[str, tf.Tensor]:
    """Joins `compute(first, last)` over chunks of at most `at_once` of `total` rows; the chunks are as even as possible.

    The results of a chunk are float32 tensors of any number of rows each, described by `results` (shapes with None for the
    rows). One chunk runs after another, so memory is bounded by that of a chunk. No rows at all are one empty chunk.
    """
    count = tf.maximum((total + at_once - 1) // at_once, 1)

    def run(index: tf.Tensor, arrays: list[tf.TensorArray]) -> tuple[tf.Tensor, list[tf.TensorArray]]:
        found = compute(index * total // count, (index + 1) * total // count)
        return index + 1, [array.write(index, found[name]) for name, array in zip(results, arrays)]

    arrays = [tf.TensorArray(tf.float32, count, element_shape=spec.shape, infer_shape=False) for spec in results.values()]
    _, arrays = tf.while_loop(lambda index, _: index < count, run, [tf.constant(0), arrays], parallel_iterations=1)
    return {name: array.concat() for name, array in zip(results, arrays)}
