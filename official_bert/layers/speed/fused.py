"""Chains of element-wise operations between the products of a training step, each compiled to one pass, with gradients
by hand.

TensorFlow writes and reads a tensor in memory for every link of such a chain. Compiled by XLA, a chain reads its inputs
and writes its result once. Here they compute in float32 under every precision policy. They are for training in
TensorFlow with large tensors (`pays`); exported graphs hold none, because a server of SavedModels on a CPU has no
compiler.
"""

import functools
import math
from collections.abc import Callable
from typing import Any

import keras
from jaxtyping import Bool, Float
from keras import ops

from official_bert.layers.attention_mask import UNSEEN
from official_bert.layers.speed.computing import current

USED = keras.backend.backend() == "tensorflow"
if USED:
    import tensorflow as tf
# numbers in a tensor: the pieces of a model take a second to compile, which small tensors do not win back
LEAST = 2**18


def pays(x: Any) -> bool:
    """Returns whether compiled functions are used for a tensor: in TensorFlow, if it is large and its shape is known.

    A compiled function serves one shape. If row lengths vary from batch to batch, each length is compiled, which only
    long trainings win back (`Computing.compiles_every_length`).
    """
    if not USED or None in tuple(x.shape):
        return USED and current().compiles_every_length
    return math.prod(x.shape) >= LEAST


def compiled_in_training(compiled: Callable) -> Callable:
    """Decorates a function so that `compiled` computes it in training if that pays; its first tensor must be the
    largest.

    The decorated function is the definition, with `training` as its last argument; `compiled` has the same arguments
    without it.
    """

    def decorate(plain: Callable) -> Callable:
        @functools.wraps(plain)
        def run(x: Any, *arguments: Any, training: bool | None = None) -> Any:
            if training and pays(x):
                return compiled(x, *arguments)
            return plain(x, *arguments, training=training)

        return run

    return decorate


def compiled_if_large(function: Callable, *tensors: Any) -> Any:
    """Returns function(*tensors), compiled if the first one is large (`pays`)."""
    return run_compiled(function, *tensors) if pays(tensors[0]) else function(*tensors)


def product_with_rows(x: Float[Any, "M D"], table: Float[Any, "V D"]) -> Float[Any, "M V"]:
    """Returns x [M,D] times the transposed table [V,D]: [M,V]. In TensorFlow, the table's gradient then needs no
    transpose.
    """
    return tf.matmul(x, table, transpose_b=True) if USED else ops.matmul(x, ops.transpose(table))


def in_turn(function: Callable, count: Any, shape: tuple) -> Float[Any, "_ ..."]:
    """Returns function(number) [*shape], float32, for each number below `count`, computed one after another:
    [count,*shape].

    `ops.scan` has no bound on its iterations, without which XLA compiles no gradient of a loop; `ops.map` runs ten at a
    time.
    """
    if not USED:
        return ops.map(function, ops.arange(count))
    return tf.map_fn(
        tf.autograph.experimental.do_not_convert(function),
        tf.range(count),
        parallel_iterations=1,
        fn_output_signature=tf.TensorSpec(shape, tf.float32),
    )


def add_bias(x: Float[Any, "M D"], bias: Float[Any, "D"]) -> Float[Any, "M D"]:
    """Returns x [M,D] + bias [D] in training.

    The gradient of the bias is a product with ones, which is faster than a sum over rows.
    """

    @tf.custom_gradient
    def added(x: Any, bias: Any) -> Any:
        return x + bias, lambda upstream: (upstream, tf.matmul(tf.ones((1, tf.shape(upstream)[0])), upstream)[0])

    return added(x, tf.convert_to_tensor(bias))


class Dropout(keras.layers.Dropout):
    """Keras' dropout, with faster drawing of masks."""

    def call(self, inputs: Float[Any, "*M"], training: bool | None = False) -> Float[Any, "*M"]:
        """Returns the inputs after dropout, of the same shape."""
        if not training or not self.rate or not pays(inputs):
            return super().call(inputs, training=training)
        keep_mask = self.draw(inputs)

        @tf.custom_gradient
        def dropped(x: Any) -> Any:
            return scaled(x), scaled  # linear

        def scaled(x: Any) -> Any:
            return run_compiled(_scale_kept, x, keep_mask, rate=self.rate, dtype=inputs.dtype)

        return dropped(inputs)

    def draw(self, like: Float[Any, "*M"]) -> Bool[Any, "*M"]:
        """Returns which numbers of a tensor of that shape are kept: bool, a function of the seed."""
        return run_compiled(draw_mask, like, self.seed_generator.next(), rate=self.rate)


def gelu(x: Float[Any, "*M"]) -> Float[Any, "*M"]:
    """Returns `keras.ops.gelu(x, approximate=True)`: the tanh form."""
    return _activated(_gelu, _gelu_gradient, x)


def gelu_erf(x: Float[Any, "*M"]) -> Float[Any, "*M"]:
    """Returns x Φ(x), Φ the normal distribution."""
    return _activated(_gelu_erf, _gelu_erf_gradient, x)


def normalized_sum(
    x: Float[Any, "*M D"], residual: Float[Any, "*M D"], dropout: Dropout, norm: keras.layers.LayerNormalization
) -> Float[Any, "*M D"]:
    """Returns norm(residual + dropout(x)) in training, all [...,D]."""
    mask = (dropout.draw(x),) if dropout.rate else ()
    options = {"rate": dropout.rate, "epsilon": norm.epsilon}

    @tf.custom_gradient
    def normalized(x: Any, residual: Any, gamma: Any, beta: Any) -> Any:
        normed, total, mean, inverse = run_compiled(_normalize, x, residual, gamma, beta, *mask, **options)

        def gradient(upstream: Any) -> Any:
            return run_compiled(_normalize_gradient, upstream, total, mean, inverse, gamma, *mask, **options)

        return normed, gradient

    gamma = tf.convert_to_tensor(norm.gamma)
    return normalized(x, residual, gamma, tf.convert_to_tensor(norm.beta) if norm.center else tf.zeros_like(gamma))


def attention_weights(
    scores: Float[Any, "B N Q S"], mask: Bool[Any, "#B 1 #Q S"], dropout: Dropout, dtype: Any
) -> Float[Any, "B N Q S"]:
    """Returns dropout(softmax(scores where mask)) in training: scores [B,N,Q,S], mask [B,1,1 or Q,S] -> `dtype`
    [B,N,Q,S].
    """
    keep_mask = (dropout.draw(scores),) if dropout.rate else ()

    @tf.custom_gradient
    def weighted(scores: Any) -> Any:
        # Not compiled: TensorFlow's softmax is the faster one.
        shares = tf.nn.softmax(tf.where(mask, tf.cast(scores, tf.float32), UNSEEN))

        def gradient(upstream: Any) -> Any:
            return run_compiled(
                softmax_gradient, upstream, shares, mask, *keep_mask, rate=dropout.rate, dtype=scores.dtype
            )

        return run_compiled(_scale_kept, shares, *keep_mask, rate=dropout.rate, dtype=tf.as_dtype(dtype)), gradient

    return weighted(scores)


def run_compiled(function: Callable, *tensors: Any, **options: Any) -> Any:
    """Runs a function of tensors and options, compiled for their shapes."""
    shapes = tuple(tuple(tensor.shape) for tensor in tensors)
    return _compiled(function, shapes, tuple(tensor.dtype for tensor in tensors), **options)(*tensors)


@functools.cache
def _compiled(function: Callable, shapes: Any, dtypes: Any, **options: Any) -> Any:
    """A compiled function for tensors of these shapes; one for each, because TensorFlow warns of one that is traced for
    many.
    """
    del shapes, dtypes
    return tf.function(functools.partial(function, **options), jit_compile=True, autograph=False)


def _activated(function: Callable, derivative: Callable, x: Any) -> Any:
    @tf.custom_gradient
    def activated(x: Any) -> Any:
        return run_compiled(_apply, x, activation=function), lambda upstream: run_compiled(
            _chain, x, upstream, derivative=derivative
        )

    return activated(x)


def as_float32(x: Any) -> Any:
    return tf.cast(x, tf.float32)


def _apply(x: Any, activation: Any) -> Any:
    return tf.cast(activation(as_float32(x)), x.dtype)


def _chain(x: Any, upstream: Any, derivative: Any) -> Any:
    return tf.cast(as_float32(upstream) * derivative(as_float32(x)), x.dtype)


def _gelu_tanh(x: Any) -> Any:
    return tf.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x))


def _gelu(x: Any) -> Any:
    return 0.5 * x * (1.0 + _gelu_tanh(x))


def _gelu_gradient(x: Any) -> Any:
    tanh = _gelu_tanh(x)
    return 0.5 * (1.0 + tanh) + 0.5 * x * (1.0 - tanh * tanh) * math.sqrt(2 / math.pi) * (1.0 + 3 * 0.044715 * x * x)


def _gelu_erf(x: Any) -> Any:
    return 0.5 * x * (1.0 + tf.math.erf(x * math.sqrt(0.5)))


def _gelu_erf_gradient(x: Any) -> Any:
    return 0.5 * (1.0 + tf.math.erf(x * math.sqrt(0.5))) + x * tf.exp(-0.5 * x * x) / math.sqrt(2 * math.pi)


def draw_mask(like: Any, seed: Any, rate: Any) -> Any:
    # Threefry, which XLA computes on whole vectors, is three times as fast as Philox.
    return tf.random.stateless_uniform(tf.shape(like), seed, alg="threefry") >= rate


def _scale_kept(x: Any, keep_mask: Any = None, *, rate: Any, dtype: Any) -> Any:
    scaled = as_float32(x) if keep_mask is None else tf.where(keep_mask, as_float32(x) * (1.0 / (1.0 - rate)), 0.0)
    return tf.cast(scaled, dtype)


def _normalize(x: Any, residual: Any, gamma: Any, beta: Any, keep_mask: Any = None, *, rate: Any, epsilon: Any) -> Any:
    """Returns the normalized sum, and what the gradient needs: the sum, its mean and 1 / its standard deviation."""
    total = tf.cast(as_float32(residual) + _scale_kept(x, keep_mask, rate=rate, dtype=tf.float32), x.dtype)
    mean = tf.reduce_mean(as_float32(total), axis=-1, keepdims=True)
    centered = as_float32(total) - mean
    inverse = tf.math.rsqrt(tf.reduce_mean(tf.square(centered), axis=-1, keepdims=True) + epsilon)
    return tf.cast(centered * inverse * gamma + beta, x.dtype), total, mean, inverse


def _normalize_gradient(
    upstream: Any,
    total: Any,
    mean: Any,
    inverse: Any,
    gamma: Any,
    keep_mask: Any = None,
    *,
    rate: float,
    epsilon: float,
) -> Any:
    """Returns the gradients of x, residual, gamma and beta."""
    del epsilon
    upstream, normalized = as_float32(upstream), (as_float32(total) - mean) * inverse
    scaled = upstream * gamma
    along = tf.reduce_mean(scaled * normalized, axis=-1, keepdims=True)
    of_total = inverse * (scaled - tf.reduce_mean(scaled, axis=-1, keepdims=True) - normalized * along)
    rows = tuple(range(len(total.shape) - 1))
    return (
        _scale_kept(of_total, keep_mask, rate=rate, dtype=total.dtype),
        tf.cast(of_total, total.dtype),
        tf.reduce_sum(upstream * normalized, axis=rows),
        tf.reduce_sum(upstream, axis=rows),
    )


def softmax_gradient(upstream: Any, shares: Any, mask: Any, keep_mask: Any = None, *, rate: Any, dtype: Any) -> Any:
    upstream = _scale_kept(upstream, keep_mask, rate=rate, dtype=tf.float32)
    found = shares * (upstream - tf.reduce_sum(upstream * shares, axis=-1, keepdims=True))
    return tf.cast(tf.where(mask, found, 0.0), dtype)
