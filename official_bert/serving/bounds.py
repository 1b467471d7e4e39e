"""Bounds the work of a request with TensorFlow's own ops: checks its inputs first, then computes rows in groups."""

import contextlib
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf
from jaxtyping import Int

GROUP_COST = 96  # tokens that cost as much as a group does by itself (measured: 83 at MiniLM's size)
MOST_FEW = 48  # tokens, padding included, of a group by itself for which small pieces are faster (measured)
Few = Callable[[], contextlib.AbstractContextManager]
Claim = tuple[tf.Tensor, str, Sequence[Any]]  # whether it holds [] bool, what was expected, what came


def in_range(expected: str, values: tf.Tensor, least: int, most: tf.Tensor | int, unit: str = "") -> Claim:
    """Returns the claim that all `values` lie from `least` to `most`; its message shows the lowest and the highest."""
    claim = f"{expected} {least} to {most if isinstance(most, int) else 'its length - 1'} {unit}".rstrip()
    if not values.shape.rank:
        return (values >= least) & (values <= most), claim, [values]
    # of no values: the type's highest and lowest, which pass
    lowest, highest = tf.reduce_min(values), tf.reduce_max(values)
    return (lowest >= least) & (highest <= most), claim, [lowest, "to", highest]


def same_rows(inputs: Mapping[str, tf.Tensor]) -> list[Claim]:
    """Returns the claims that all inputs have the same number of rows as the first."""
    first, *other_names = inputs
    return [
        (
            tf.equal(tf.shape(inputs[name])[0], tf.shape(inputs[first])[0]),
            f"{name}: expected as many rows as {first} has",
            [tf.shape(inputs[name])[0]],
        )
        for name in other_names
    ]


def require(claims: Sequence[Claim], then: Any) -> Any:
    """Returns the tensors `then`, in any nested structure, after a check of every claim.

    A claim that does not hold fails the request with InvalidArgumentError: `assertion failed: [EXPECTED, got] [VALUE]`.
    """
    # The op itself: tf.debugging.Assert puts a tf.cond around it, which costs more than the check.
    checks = [
        tf.raw_ops.Assert(condition=holds, data=[f"{expected}, got", *came], summarize=8)
        for holds, expected, came in claims
    ]
    with tf.control_dependencies(checks):
        return tf.nest.map_structure(tf.identity, then)


def broken_claim(error: tf.errors.InvalidArgumentError) -> str | None:
    """Returns the failed claim of `require` in an error, as `EXPECTED, got VALUE`; None for other errors."""
    match = re.search(r"assertion failed: \[(.*)\]", error.message)
    return match[1].replace("] [", " ") if match else None


def in_groups(
    compute: Callable[[tf.Tensor], Mapping[str, tf.Tensor]],
    lengths: Int[Any, " R"],
    tokens_at_once: int,
    results: Mapping[str, tf.TensorSpec],
    few: Few | None = None,
) -> tuple[dict[str, tf.Tensor], Int[Any, " R"]]:
    """Returns `compute(rows)`, joined over groups of rows [G] of similar `lengths` [R], and the order [R] of all rows
    in the groups.

    A group has at most `tokens_at_once` tokens, with all rows padded to its longest, but at least one row. `results`
    describes the tensors that `compute` returns, of any number of rows each (shapes with None for the rows). Groups run
    one after another, long rows first, so memory is bounded by one group. No rows at all are one empty group. A single
    group needs no loop.

    A single group of few tokens is computed by a function of its own, which is traced within `few`.
    """
    total = tf.size(lengths)
    ordered, order = tf.math.top_k(lengths, total)  # equal ones in their order
    ordered = tf.pad(ordered, [[0, 2]])  # as `_group_size` wants them
    compute_few = compute
    if not tf.executing_eagerly():
        with few() if few else contextlib.nullcontext():
            compute_few = as_function(compute)
        compute = as_function(compute) if few else compute_few

    def run(
        first: tf.Tensor, index: tf.Tensor, arrays: list[tf.TensorArray]
    ) -> tuple[tf.Tensor, tf.Tensor, list[tf.TensorArray]]:
        last = first + _group_size(ordered[first:], tokens_at_once)
        values = compute(order[first:last])
        return last, index + 1, [array.write(index, values[name]) for name, array in zip(results, arrays)]

    def in_turn() -> list[tf.Tensor]:
        arrays = [
            tf.TensorArray(spec.dtype, 1, dynamic_size=True, element_shape=spec.shape, infer_shape=False)
            for spec in results.values()
        ]
        *_, arrays = tf.while_loop(
            lambda first, *_: first < total, run, [tf.constant(0), tf.constant(0), arrays], parallel_iterations=1
        )
        return [array.concat() for array in arrays]

    def at_once() -> list[tf.Tensor]:
        tokens = total * ordered[0]
        are_few = (tokens > 0) & (tokens <= MOST_FEW)
        computed = tf.cond(are_few, lambda: compute_few(order), lambda: compute(order)) if few else compute(order)
        return [computed[name] for name in results]

    values = tf.cond(_group_size(ordered, tokens_at_once) >= total, at_once, in_turn)
    # TensorFlow's cost model forgets the rank of what a `cond` returns, and warns of a softmax of unknown rank.
    return {name: tf.ensure_shape(value, spec.shape) for (name, spec), value in zip(results.items(), values)}, order


def group_sizes(lengths: Int[Any, " R"], tokens_at_once: int) -> tuple[Int[Any, " R"], Int[Any, " G"]]:
    """Returns the groups of `in_groups`, for another runtime to compute: the order [R] of all rows in them, and their
    sizes [G].
    """
    total = tf.size(lengths)
    ordered, order = tf.math.top_k(lengths, total)
    ordered = tf.pad(ordered, [[0, 2]])

    def cut(first: tf.Tensor, sizes: tf.TensorArray) -> tuple[tf.Tensor, tf.TensorArray]:
        size = _group_size(ordered[first:], tokens_at_once)
        return first + size, sizes.write(sizes.size(), size)

    sizes = tf.TensorArray(tf.int32, 0, dynamic_size=True, element_shape=[])
    _, sizes = tf.while_loop(lambda first, _: first < total, cut, [tf.constant(0), sizes], parallel_iterations=1)
    return order, sizes.stack()


def as_function(
    compute: Callable[[tf.Tensor], Mapping[str, tf.Tensor]],
) -> Callable[[tf.Tensor], Mapping[str, tf.Tensor]]:
    """Returns `compute(rows)` as a graph function, so that all callers share one copy of it and its constants."""
    return tf.function(
        compute,
        autograph=False,
        input_signature=[tf.TensorSpec([None], tf.int32)],
        experimental_attributes={"_noinline": True},
    ).get_concrete_function()


def _group_size(lengths: Int[Any, " rows"], tokens_at_once: int) -> Int[Any, ""]:
    """Returns how many of the remaining rows form the next group. Their lengths [R+2] are sorted, the longest first,
    followed by two 0.

    The rows are cut in two where that saves most padding, then the first part again, as long as a cut saves more than a
    group costs. On average this costs 0.5 % more than the best of all partitions, and 10 % more for the worst of 60,000
    random lists of rows.
    """
    rows = tf.size(lengths) - 2

    def cut(part: tf.Tensor, _: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        first = tf.range(1, part + 1)
        saved = (part - first) * (lengths[0] - lengths[1 : part + 1])
        best = tf.argmax(saved, output_type=tf.int32)
        return tf.where(saved[best] > GROUP_COST, best + 1, part), part

    size, _ = tf.while_loop(
        lambda part, before: (part > 1) & (part < before), cut, [rows, rows + 1], parallel_iterations=1
    )
    at_once = tf.maximum(tokens_at_once // tf.maximum(lengths[0], 1), 1)
    parts = tf.maximum((size + at_once - 1) // at_once, 1)
    return (size + parts - 1) // parts  # parts of equal size, not a small one at the end
