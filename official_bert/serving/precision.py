"""What the graph of an export reads for the weights of its model: these themselves, or others in bfloat16 or int8.

M rows, K and N the width of a row before and after a product.
"""

import contextlib
import math
import platform
from collections.abc import Callable, Iterator, Mapping
from typing import Literal, NamedTuple

import keras
import numpy as np
import tensorflow as tf

from official_bert.models.encoder import encoder_within

Precision = Literal["float32", "bfloat16", "int8"]
POLICIES: Mapping[Precision, str] = {"float32": "float32", "bfloat16": "mixed_bfloat16", "int8": "float32"}  # of the model that is exported
X86 = ("x86_64", "amd64")
LEAST_SCALE = 1e-30  # of rows and columns of zeros


@contextlib.contextmanager
def policy_of(precision: Precision) -> Iterator[None]:
    """Models that are made here can be exported in a precision.

    Raises ValueError for int8 on a processor that is not an x86: TensorFlow computes its products by oneDNN's kernels for x86 alone.
    """
    if precision == "int8" and platform.machine().lower() not in X86:
        raise ValueError(f"--precision=int8: expected an x86 processor, which alone has TensorFlow's kernels for it, got "
                         f"{platform.machine()}; bfloat16 and float32 are computed everywhere")
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy(POLICIES[precision])
    try:
        yield
    finally:
        keras.config.set_dtype_policy(before)


class Weights(NamedTuple):
    """The variables that graphs of a model read, and the scope in which these graphs are traced."""

    variables: list[tf.Variable]
    scope: Callable[[], contextlib.AbstractContextManager]


def weights_in(precision: Precision, model: keras.Model) -> Weights:
    """Returns what graphs read in a precision for the weights of a model, which was made in its `policy_of`."""
    assert model.dtype_policy.name == POLICIES[precision], (model.dtype_policy.name, precision)
    encoder = encoder_within(model)
    if precision == "bfloat16":
        # Layer norm computes in float32. Heads are small; the word embeddings, which are not, are the encoder's.
        others = {id(weight): tf.Variable(tf.cast(weight.value, tf.bfloat16), trainable=False) for weight in encoder.weights
                  if weight.name not in ("gamma", "beta")}
        return Weights([*others.values(), *_values(model, set(others))], lambda: _OtherValues(others))
    if precision == "int8":
        products = {layer: Int8Product(layer) for layer in _products(encoder)}
        return Weights(_values(model, {id(layer.kernel) for layer in products}), lambda: _computed_by(products))
    return Weights(_values(model, set()), contextlib.nullcontext)


def _values(model: keras.Model, without: set[int]) -> list[tf.Variable]:
    """Returns TensorFlow's variables of a model, but those whose Keras variables have the ids `without`."""
    return [variable.value for variable in model.variables if id(variable) not in without]


class _OtherValues(keras.StatelessScope):
    """Gives the layers other values for the variables with these ids; `StatelessScope` itself casts them to the variables' type."""

    def __init__(self, values: Mapping[int, tf.Variable]):
        super().__init__()
        self.values = values

    def get_current_value(self, variable):
        """Returns the value that stands for a variable, None for its own."""
        return self.values.get(id(variable))


def _products(encoder: keras.Model) -> list[keras.layers.Layer]:
    """Returns the layers that multiply every row with weights."""
    return [product for layer in encoder.transformer_layers for product in (
        layer.attention.query, layer.attention.key, layer.attention.value, layer.attention.merge_heads,
        layer.intermediate, layer.output_dense)]


@contextlib.contextmanager
def _computed_by(others: Mapping[keras.layers.Layer, Callable]) -> Iterator[None]:
    """Layers compute by these functions."""
    for layer, call in others.items():
        layer.call = call  # hides the class's method
    try:
        yield
    finally:
        for layer in others:
            del layer.call


class Int8Product:
    """The product of a layer's rows with its weights, and its bias, by oneDNN's product of integers.

    Each column of the weights has a scale. So has each row, found when it is computed: its result does not depend on other rows.
    The weights are constants of the graph: oneDNN arranges those once, and variables for every call.
    """

    def __init__(self, layer: keras.layers.Layer):
        kernel = layer.kernel.numpy()
        rows = getattr(layer, "equation", "bsd").partition(",")[0]                                # [B,S] and what is contracted
        self.contracted = len(rows) - 2
        self.bias, self.made = None if layer.bias is None else layer.bias.value, kernel.shape[self.contracted:]
        kernel = kernel.reshape(math.prod(kernel.shape[:self.contracted]), -1)                    # [K,N]
        scale = np.maximum(np.abs(kernel).max(0) / 127, LEAST_SCALE).astype(np.float32)
        integers = np.rint(kernel / scale).astype(np.int8)
        # The op takes rows without a sign: 0 is 128, and what the weights make of that is taken away again.
        zero = -128 * integers.sum(0, dtype=np.float32)
        self.kernel, self.scale, self.zero = integers, scale, zero

    def __call__(self, x: tf.Tensor, training: bool | None = None) -> tf.Tensor:
        """x [...,K or what it is made of] -> [...,N or what that is]; `training` is false."""
        kept = tf.shape(x)[:x.shape.rank - self.contracted]
        rows = tf.reshape(x, [-1, self.kernel.shape[0]])                                          # [M,K]
        step = tf.maximum(tf.reduce_max(tf.abs(rows), axis=1, keepdims=True) / 127, LEAST_SCALE)  # [M,1]
        integers = tf.bitcast(tf.cast(rows / step + 128.5, tf.uint8), tf.quint8)
        # The ranges say that integers mean themselves. They are part of what oneDNN compiles, so a call's own would be compiled anew.
        product = tf.raw_ops.QuantizedMatMulWithBiasAndDequantize(
            a=integers, min_a=0.0, max_a=255.0, b=tf.bitcast(tf.constant(self.kernel), tf.qint8), min_b=-127.0, max_b=127.0, bias=self.zero,
            min_freezed_output=0.0, max_freezed_output=0.0, Toutput=tf.float32, input_quant_mode="SCALED")
        product = product * step * self.scale                                                      # [M,N]
        product = product if self.bias is None else tf.nn.bias_add(product, tf.reshape(self.bias, [-1]))
        return tf.reshape(product, tf.concat([kept, self.made], 0))
