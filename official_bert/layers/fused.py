"""Chains of element-wise operations between the products of a training step, each compiled to one pass, with gradients by hand.

TensorFlow writes and reads a tensor in memory for every link of such a chain. Compiled by XLA, a chain reads its inputs and writes its
result once. Here they compute in float32 under every precision policy. They are for training in TensorFlow with large tensors (`pays`);
exported graphs hold none, because a server of SavedModels on a CPU has no compiler.
"""

import contextlib
import contextvars
import functools
import math
from collections.abc import Iterator

import keras
from keras import ops

USED = keras.backend.backend() == "tensorflow"
if USED:
    import tensorflow as tf
BLOCK = 2 ** 25  # scores of attention that are there at a time if queries are taken by blocks: 128 MB
LEAST = 2 ** 18  # numbers in a tensor: the pieces of a model take a second to compile, which small tensors do not win back
UNSEEN = -1e9  # the score of a masked place; not minus infinity: a row that sees nothing gets equal weights instead of NaN


_for_every_length = contextvars.ContextVar("for_every_length", default=False)


@contextlib.contextmanager
def for_every_length(active: bool) -> Iterator[None]:
    """While it is open, and `active`, pieces are used for tensors of unknown shape too."""
    token = _for_every_length.set(active)
    try:
        yield
    finally:
        _for_every_length.reset(token)


def pays(x) -> bool:
    """Whether compiled pieces are used for a tensor: in TensorFlow, if it is large and its shape is known.

    They are compiled for one shape: rows whose length changes from batch to batch compile them for each, which only long trainings win
    back (`for_every_length`).
    """
    if not USED or None in tuple(x.shape):
        return USED and _for_every_length.get()
    return math.prod(x.shape) >= LEAST


def product_with_rows(x, table):
    """x [M,D], table [V,D] -> [M,V]. In TensorFlow, the gradient of the table then needs no transpose."""
    return tf.matmul(x, table, transpose_b=True) if USED else ops.matmul(x, ops.transpose(table))


def in_turn(function, count, shape):
    """Returns function(number) [*shape], float32, for each number below `count`, one after another: [count,*shape].

    `ops.scan` does not say how often it runs at most, without which XLA compiles no gradient of a loop; `ops.map` runs ten at a time.
    """
    if not USED:
        return ops.map(function, ops.arange(count))
    return tf.map_fn(tf.autograph.experimental.do_not_convert(function), tf.range(count), parallel_iterations=1,
                     fn_output_signature=tf.TensorSpec(shape, tf.float32))


def add_bias(x, bias):
    """x [M,D] + bias [D] in training: the gradient of the bias is a product with ones, which is faster than a sum over rows."""
    @tf.custom_gradient
    def added(x, bias):
        return x + bias, lambda upstream: (upstream, tf.matmul(tf.ones((1, tf.shape(upstream)[0])), upstream)[0])
    return added(x, tf.convert_to_tensor(bias))


class Dropout(keras.layers.Dropout):
    """Keras' dropout with masks that are drawn faster."""

    def call(self, inputs, training=False):
        """[...] -> [...]."""
        if not training or not self.rate or not pays(inputs):
            return super().call(inputs, training=training)
        keep_mask = self.draw(inputs)

        @tf.custom_gradient
        def dropped(x):
            return scaled(x), scaled  # linear

        def scaled(x):
            return run_compiled(_scale_kept, x, keep_mask, rate=self.rate, dtype=inputs.dtype)
        return dropped(inputs)

    def draw(self, like):
        """Draws which numbers of a tensor of that shape are kept: bool, a function of the seed."""
        return run_compiled(_draw, like, self.seed_generator.next(), rate=self.rate)


def gelu(x):
    """`keras.ops.gelu(x, approximate=True)`: the tanh form."""
    return _activated(_gelu, _gelu_gradient, x)


def gelu_erf(x):
    """x Φ(x), Φ the normal distribution."""
    return _activated(_gelu_erf, _gelu_erf_gradient, x)


def normalized_sum(x, residual, dropout: Dropout, norm: keras.layers.LayerNormalization):
    """norm(residual + dropout(x)) in training: x, residual [...,D] -> [...,D]."""
    mask = (dropout.draw(x),) if dropout.rate else ()
    options = {"rate": dropout.rate, "epsilon": norm.epsilon}

    @tf.custom_gradient
    def normalized(x, residual, gamma, beta):
        normed, total, mean, inverse = run_compiled(_normalize, x, residual, gamma, beta, *mask, **options)

        def gradient(upstream):
            return run_compiled(_normalize_gradient, upstream, total, mean, inverse, gamma, *mask, **options)
        return normed, gradient
    gamma = tf.convert_to_tensor(norm.gamma)
    return normalized(x, residual, gamma, tf.convert_to_tensor(norm.beta) if norm.center else tf.zeros_like(gamma))


def attention_weights(scores, mask, dropout: Dropout, dtype: str):
    """dropout(softmax(scores where mask)) in training: scores [B,N,Q,S], mask [B,1,1 or Q,S] -> [B,N,Q,S] of a dtype."""
    keep_mask = (dropout.draw(scores),) if dropout.rate else ()

    @tf.custom_gradient
    def weighted(scores):
        # Not compiled: TensorFlow's softmax is the faster one.
        shares = tf.nn.softmax(tf.where(mask, tf.cast(scores, tf.float32), UNSEEN))

        def gradient(upstream):
            return run_compiled(_softmax_gradient, upstream, shares, mask, *keep_mask, rate=dropout.rate, dtype=scores.dtype)
        return run_compiled(_scale_kept, shares, *keep_mask, rate=dropout.rate, dtype=tf.as_dtype(dtype)), gradient
    return weighted(scores)


def attend_in_turn(q, k, v, mask_of, dropout: Dropout, training):
    """dropout(softmax(q k where mask)) v for a block of queries at a time, so that no tensor of [Q,S] exists, in either pass.

    q [B,N,Q,H], k and v [B,N,S,H], `mask_of(first, last)` [B,1,1 or last-first,S] -> [B,N,Q,H]. A block begins when the one before it
    is done: otherwise TensorFlow would run the same product of all blocks first. The backward pass makes the weights again.
    """
    edges = _edges(q, k)
    if isinstance(edges[-1], int) or training:
        return _attend_between(edges, q, k, v, mask_of, dropout, training)
    # In exported graphs each block has a row, because XNNPACK takes no empty tensors: the last blocks begin before the end of those before.
    count = edges[-1]
    rows = (count + 7) // 8
    starts = [ops.minimum(number * rows, count - rows) for number in range(8)]
    parts: list = []
    for start in starts:
        with tf.control_dependencies(parts[-1:]) if USED else contextlib.nullcontext():
            parts.append(_attend_between([0, rows], q[:, :, start:start + rows], k, v,
                                         lambda first, last, start=start: mask_of(start, start + rows), dropout, False))
    number = ops.arange(count) // rows
    return ops.take(ops.concatenate(parts, axis=2), number * rows + ops.arange(count) - ops.minimum(number * rows, count - rows), axis=2)


def _attend_between(edges, q, k, v, mask_of, dropout, training):
    """`attend_in_turn` for blocks of queries between neighbouring edges."""
    seeds = [dropout.seed_generator.next() for _ in edges[1:]] if training and dropout.rate and USED else [None] * (len(edges) - 1)

    def weights(q, k, number):
        scores = ops.matmul(q[:, :, edges[number]:edges[number + 1]], ops.transpose(k, (0, 1, 3, 2)))
        mask = mask_of(edges[number], edges[number + 1])
        shares = ops.softmax(ops.where(mask, ops.cast(scores, "float32"), UNSEEN), axis=-1)
        if seeds[number] is None:
            return shares, mask, (), ops.cast(dropout(shares, training=training and not USED), v.dtype)
        drawn = run_compiled(_draw, shares, seeds[number], rate=dropout.rate) if pays(shares) else (
            tf.random.stateless_uniform(tf.shape(shares), seeds[number]) >= dropout.rate)
        return shares, mask, (drawn,), tf.cast(tf.where(drawn, shares / (1.0 - dropout.rate), 0.0), v.dtype)

    def forward(q, k, v):
        done: list = []
        for number in range(len(seeds)):
            with tf.control_dependencies(done[-1:]) if USED else contextlib.nullcontext():
                done.append(ops.matmul(weights(q, k, number)[3], v))
        return ops.concatenate(done, axis=2)

    if not (training and USED):
        return forward(q, k, v)

    @tf.custom_gradient
    def attended(q, k, v):
        def gradient(upstream):
            of_q, of_k, of_v = [], tf.zeros_like(k, tf.float32), tf.zeros_like(v, tf.float32)  # sums over all blocks
            for number, _ in enumerate(seeds):
                with tf.control_dependencies([*of_q[-1:], of_k, of_v]):
                    part = slice(edges[number], edges[number + 1])
                    shares, mask, keep_mask, used = weights(q, k, number)
                    of_v += _float(tf.matmul(used, upstream[:, :, part], transpose_a=True))
                    of_weights = tf.matmul(upstream[:, :, part], v, transpose_b=True)
                    run = run_compiled if pays(shares) else lambda function, *tensors, **options: function(*tensors, **options)
                    of_scores = run(_softmax_gradient, of_weights, shares, mask, *keep_mask, rate=dropout.rate, dtype=q.dtype)
                    of_k += _float(tf.matmul(of_scores, q[:, :, part], transpose_a=True))
                    of_q.append(tf.matmul(of_scores, k))
            return tf.concat(of_q, 2), tf.cast(of_k, k.dtype), tf.cast(of_v, v.dtype)
        return forward(q, k, v), gradient
    return attended(q, k, v)


def _edges(q, k) -> list:
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


def run_compiled(function, *tensors, **options):
    """Runs a function of tensors and options, compiled for their shapes."""
    shapes = tuple(tuple(tensor.shape) for tensor in tensors)
    return _compiled(function, shapes, tuple(tensor.dtype for tensor in tensors), **options)(*tensors)


@functools.cache
def _compiled(function, shapes, dtypes, **options):
    """A compiled function for tensors of these shapes; one for each, because TensorFlow warns of one that is traced for many."""
    del shapes, dtypes
    return tf.function(functools.partial(function, **options), jit_compile=True, autograph=False)


def _activated(function, derivative, x):
    @tf.custom_gradient
    def activated(x):
        return run_compiled(_apply, x, activation=function), lambda upstream: run_compiled(_chain, x, upstream, derivative=derivative)
    return activated(x)


def _float(x):
    return tf.cast(x, tf.float32)


def _apply(x, activation):
    return tf.cast(activation(_float(x)), x.dtype)


def _chain(x, upstream, derivative):
    return tf.cast(_float(upstream) * derivative(_float(x)), x.dtype)


def _gelu_tanh(x):
    return tf.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x))


def _gelu(x):
    return 0.5 * x * (1.0 + _gelu_tanh(x))


def _gelu_gradient(x):
    tanh = _gelu_tanh(x)
    return 0.5 * (1.0 + tanh) + 0.5 * x * (1.0 - tanh * tanh) * math.sqrt(2 / math.pi) * (1.0 + 3 * 0.044715 * x * x)


def _gelu_erf(x):
    return 0.5 * x * (1.0 + tf.math.erf(x * math.sqrt(0.5)))


def _gelu_erf_gradient(x):
    return 0.5 * (1.0 + tf.math.erf(x * math.sqrt(0.5))) + x * tf.exp(-0.5 * x * x) / math.sqrt(2 * math.pi)


def _draw(like, seed, rate):
    # Threefry, which XLA computes on whole vectors, is three times as fast as Philox.
    return tf.random.stateless_uniform(tf.shape(like), seed, alg="threefry") >= rate


def _scale_kept(x, keep_mask=None, *, rate, dtype):
    scaled = _float(x) if keep_mask is None else tf.where(keep_mask, _float(x) * (1.0 / (1.0 - rate)), 0.0)
    return tf.cast(scaled, dtype)


def _normalize(x, residual, gamma, beta, keep_mask=None, *, rate, epsilon):
    """Returns the normalized sum, and what the gradient needs: the sum, its mean and 1 / its standard deviation."""
    total = tf.cast(_float(residual) + _scale_kept(x, keep_mask, rate=rate, dtype=tf.float32), x.dtype)
    mean = tf.reduce_mean(_float(total), axis=-1, keepdims=True)
    centered = _float(total) - mean
    inverse = tf.math.rsqrt(tf.reduce_mean(tf.square(centered), axis=-1, keepdims=True) + epsilon)
    return tf.cast(centered * inverse * gamma + beta, x.dtype), total, mean, inverse


def _normalize_gradient(upstream, total, mean, inverse, gamma, keep_mask=None, *, rate, epsilon):
    """Returns the gradients of x, residual, gamma and beta."""
    del epsilon
    upstream, normalized = _float(upstream), (_float(total) - mean) * inverse
    scaled = upstream * gamma
    along = tf.reduce_mean(scaled * normalized, axis=-1, keepdims=True)
    of_total = inverse * (scaled - tf.reduce_mean(scaled, axis=-1, keepdims=True) - normalized * along)
    rows = tuple(range(len(total.shape) - 1))
    return (_scale_kept(of_total, keep_mask, rate=rate, dtype=total.dtype), tf.cast(of_total, total.dtype),
            tf.reduce_sum(upstream * normalized, axis=rows), tf.reduce_sum(upstream, axis=rows))


def _softmax_gradient(upstream, shares, mask, keep_mask=None, *, rate, dtype):
    upstream = _scale_kept(upstream, keep_mask, rate=rate, dtype=tf.float32)
    found = shares * (upstream - tf.reduce_sum(upstream * shares, axis=-1, keepdims=True))
    return tf.cast(tf.where(mask, found, 0.0), dtype)
