"""Attention of long rows by blocks of queries, so that no tensor of [Q,S] exists in either pass.

B batch, S sequence, Q query rows, N heads, H head size.
"""

import contextlib
from collections.abc import Callable
from typing import Any

from jaxtyping import Bool, Float
from keras import ops

from official_bert.layers.attention_mask import UNSEEN
from official_bert.layers.speed import fused
from official_bert.layers.speed.fused import USED, Dropout, pays, run_compiled
from official_bert.layers.token_layout import TokenLayout

if USED:
    import tensorflow as tf
BLOCK = 2**25  # scores of attention that are there at a time: 128 MB


class LongLayout(TokenLayout):
    """The layout of long rows: the mask is made for a few queries at a time."""

    def bias(self, attention: Any, q: Any, k: Any) -> Any:
        """Returns the bias of attention, or None if each block of queries gets its own."""
        return None if self.positions.between else super().bias(attention, q, k)

    def blocks(self, q: Any, k: Any, v: Any, dropout: Dropout, training: bool | None = None) -> Any:
        """Returns the attention output [B,N,Q,H], computed by blocks of queries."""
        return attend_in_turn(q, k, v, self.mask_of_queries, dropout, training, self.positions.between)

    def mask_of_queries(self, first: Any = None, last: Any = None) -> Bool[Any, "_ 1 _ S"]:
        """Returns the mask [B,1,1 or Q,S] of all queries, or of those from `first` to before `last`; true = visible."""
        return self.inputs.mask(self.query_positions, first, last)


def attend_in_turn(
    q: Float[Any, "B N Q H"],
    k: Float[Any, "B N S H"],
    v: Float[Any, "B N S H"],
    mask_of: Callable,
    dropout: Dropout,
    training: bool | None = None,
    bias_of: Callable | None = None,
) -> Float[Any, "B N Q H"]:
    """Returns dropout(softmax(q k + bias where mask)) v, computed by blocks of queries.

    No tensor of [Q,S] exists in either pass. q [B,N,Q,H], k and v [B,N,S,H], `mask_of(first, last)` [B,1,1 or
    last-first,S], `bias_of(first, last)` [B or 1,N,last-first,S] without gradients -> [B,N,Q,H].

    A block begins when the previous one is done: otherwise TensorFlow would run the same product of all blocks first.
    The backward pass computes the weights again.
    """
    edges = _edges(q, k)
    if isinstance(edges[-1], int) or training:
        return _attend_between(edges, q, k, v, mask_of, dropout, training, bias_of)
    # In exported graphs each block has a row, because XNNPACK takes no empty tensors: the last blocks begin before the
    # end of those before.
    count = edges[-1]
    rows = (count + 7) // 8
    starts = [ops.minimum(number * rows, count - rows) for number in range(8)]
    parts: list = []
    for start in starts:
        with tf.control_dependencies(parts[-1:]) if USED else contextlib.nullcontext():
            parts.append(
                _attend_between(
                    [0, rows],
                    q[:, :, start : start + rows],
                    k,
                    v,
                    lambda first, last, start=start: mask_of(start, start + rows),
                    dropout,
                    False,
                    bias_of and (lambda first, last, start=start: bias_of(start, start + rows)),
                )
            )
    number = ops.arange(count) // rows
    return ops.take(
        ops.concatenate(parts, axis=2),
        number * rows + ops.arange(count) - ops.minimum(number * rows, count - rows),
        axis=2,
    )


def _attend_between(
    edges: list,
    q: Any,
    k: Any,
    v: Any,
    mask_of: Callable,
    dropout: Dropout,
    training: bool | None,
    bias_of: Callable | None,
) -> Any:
    """`attend_in_turn` for blocks of queries between neighbouring edges."""
    seeds = (
        [dropout.seed_generator.next() for _ in edges[1:]]
        if training and dropout.rate and USED
        else [None] * (len(edges) - 1)
    )

    def weights(q: Any, k: Any, number: int) -> tuple:
        scores = ops.matmul(q[:, :, edges[number] : edges[number + 1]], ops.transpose(k, (0, 1, 3, 2)))
        mask = mask_of(edges[number], edges[number + 1])
        scores = ops.cast(scores, "float32")
        if bias_of is not None:
            scores = scores + bias_of(edges[number], edges[number + 1])
        shares = ops.softmax(ops.where(mask, scores, UNSEEN), axis=-1)
        if seeds[number] is None:
            return shares, mask, (), ops.cast(dropout(shares, training=training and not USED), v.dtype)
        drawn = (
            run_compiled(fused.draw_mask, shares, seeds[number], rate=dropout.rate)
            if pays(shares)
            else (tf.random.stateless_uniform(tf.shape(shares), seeds[number]) >= dropout.rate)
        )
        return shares, mask, (drawn,), tf.cast(tf.where(drawn, shares / (1.0 - dropout.rate), 0.0), v.dtype)

    def forward(q: Any, k: Any, v: Any) -> Any:
        done: list = []
        for number in range(len(seeds)):
            with tf.control_dependencies(done[-1:]) if USED else contextlib.nullcontext():
                done.append(ops.matmul(weights(q, k, number)[3], v))
        return ops.concatenate(done, axis=2)

    if not (training and USED):
        return forward(q, k, v)

    @tf.custom_gradient
    def attended(q: Any, k: Any, v: Any) -> tuple:
        def gradient(upstream: Any) -> tuple:
            of_q: list = []
            of_k, of_v = tf.zeros_like(k, tf.float32), tf.zeros_like(v, tf.float32)  # sums over all blocks
            for number, _ in enumerate(seeds):
                with tf.control_dependencies([*of_q[-1:], of_k, of_v]):
                    part = slice(edges[number], edges[number + 1])
                    shares, mask, keep_mask, used = weights(q, k, number)
                    of_v += fused.as_float32(tf.matmul(used, upstream[:, :, part], transpose_a=True))
                    of_weights = tf.matmul(upstream[:, :, part], v, transpose_b=True)
                    run = (
                        run_compiled
                        if pays(shares)
                        else lambda function, *tensors, **options: function(*tensors, **options)
                    )
                    of_scores = run(
                        fused.softmax_gradient, of_weights, shares, mask, *keep_mask, rate=dropout.rate, dtype=q.dtype
                    )
                    of_k += fused.as_float32(tf.matmul(of_scores, q[:, :, part], transpose_a=True))
                    of_q.append(tf.matmul(of_scores, k))
            return tf.concat(of_q, 2), tf.cast(of_k, k.dtype), tf.cast(of_v, v.dtype)

        return forward(q, k, v), gradient

    return attended(q, k, v)


def _edges(q: Any, k: Any) -> list:
    """The first query of each block, and the end; blocks of rows of unknown length are eighths of them."""
    batch, heads, count, _ = q.shape
    length = k.shape[2]
    if count is not None and count <= 64:
        return [0, count]
    if None in (count, length):
        count = ops.shape(q)[2]
        return [0, *((count * number + 7) // 8 for number in range(1, 8)), count]
    size = max(64, BLOCK // ((batch or 1) * heads * length) // 64 * 64)
    return [*range(0, count, size), count]
