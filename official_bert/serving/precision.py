"""The weights in the graph of an exported model: float32, or converted to bfloat16 or int8.

M rows, K and N the width of a row before and after a product.
"""

import contextlib
import functools
import math
import platform
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal, NamedTuple

import keras
import numpy as np
import tensorflow as tf
from jaxtyping import Float

from official_bert.layers.dense import Dense
from official_bert.layers.speed.computing import computing
from official_bert.layers.speed.extension_points import overridden
from official_bert.models.encoder import encoder_within
from official_bert.serving.bounds import Few
from official_bert.serving.few_tokens import FewRows, few_layers
from official_bert.serving.served_layers import Overrides, Value, Values, kernel_and_bias, served_layers, tables_of

Precision = Literal["float32", "bfloat16", "int8"]
# of the model that is exported
POLICIES: Mapping[Precision, str] = {"float32": "float32", "bfloat16": "mixed_bfloat16", "int8": "float32"}
X86 = ("x86_64", "amd64")
LEAST_SCALE = 1e-30  # of rows and columns of zeros


@contextlib.contextmanager
def policy_of(precision: Precision) -> Iterator[None]:
    """Models that are made here can be exported in a precision.

    Raises ValueError for int8 on a processor that is not an x86: TensorFlow computes its products by oneDNN's kernels
    for x86 alone.
    """
    if precision == "int8" and platform.machine().lower() not in X86:
        raise ValueError(
            f"--precision=int8: expected an x86 processor, which alone has TensorFlow's kernels for it, got "
            f"{platform.machine()}; bfloat16 and float32 are computed everywhere"
        )
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy(POLICIES[precision])
    try:
        yield
    finally:
        keras.config.set_dtype_policy(before)


class Weights(NamedTuple):
    """The variables that graphs of a model read, once they are traced, the scope in which they are traced, and another
    within it for graphs that compute few tokens, if these have constants.
    """

    variables: list[tf.Variable]
    scope: Callable[[], contextlib.AbstractContextManager]
    few: Few | None


def weights_in(
    precision: Precision, model: keras.Model, constants: bool = False, values: Values | None = None
) -> Weights:
    """Returns what graphs read in a precision for the weights of a model, which was made in its `policy_of`.

    Several models share the variables of `values` that are equal.

    With `constants`, those of the encoder that are no tables are parts of the graphs for few tokens: oneDNN arranges
    them once, and otherwise for as many rows as the first request has, so that every request of another number waits
    for that.
    """
    assert model.dtype_policy.name == POLICIES[precision], (model.dtype_policy.name, precision)
    encoder = encoder_within(model)
    values, dtype = values or Values(constants), tf.bfloat16 if precision == "bfloat16" else tf.float32
    few_overrides = few_layers(encoder, values) if constants and precision == "float32" else Overrides()
    few_overrides |= {(encoder, "call"): FewRows(encoder)} if constants else {}
    make = Int8Product if precision == "int8" else functools.partial(values.product, dtype=dtype)
    overrides, computed = served_layers(encoder, make, values, dtype)
    if precision == "int8":
        products = [product for product in _products(encoder) if id(product.kernel) not in computed]
        overrides |= {(product, "multiply"): make(*kernel_and_bias(product)) for product in products}
        computed |= {id(weight) for product in products for weight in product.weights}
    tables, casts = {id(weight) for weight in tables_of(encoder)}, dict[int, Value]()
    for weight in encoder.weights:
        kind = tf.float32 if weight.name in ("gamma", "beta") else dtype  # layer norm computes in float32
        if id(weight) not in computed and (
            kind != tf.float32 or values.are_shared or (constants and id(weight) not in tables)
        ):
            casts[id(weight)] = values.keep(weight.numpy(), kind, is_table=id(weight) in tables)
    values.variables += [variable.value for variable in model.variables if id(variable) not in {*computed, *casts}]

    @contextlib.contextmanager
    def scope() -> Iterator[None]:
        with _OtherValues(casts), overridden(overrides), computing(removes_padding=True):
            yield

    @contextlib.contextmanager
    def few() -> Iterator[None]:
        with values.few(), overridden(few_overrides), computing(removes_padding=False):
            yield

    return Weights(values.variables, scope, few if constants else None)


def constant_bytes(precision: Precision, model: keras.Model) -> int:
    """Returns how many bytes of constants `weights_in` would put into a graph."""
    encoder = encoder_within(model)
    tables, size = {id(weight) for weight in tables_of(encoder)}, {"float32": 4, "bfloat16": 2, "int8": 1}[precision]
    return sum(size * math.prod(weight.shape) for weight in encoder.weights if id(weight) not in tables)


class _OtherValues(keras.StatelessScope):
    """Gives the layers other values for the variables with these ids; `StatelessScope` itself casts them to the
    variables' type.
    """

    def __init__(self, values: Mapping[int, Value]):
        super().__init__()
        self.values = values

    def get_current_value(self, variable: keras.Variable) -> tf.Tensor | tf.Variable | None:
        """Returns the value that stands for a variable, None for its own."""
        return self.values[id(variable)]() if id(variable) in self.values else None


def _products(encoder: keras.Model) -> list[Dense]:
    """Returns the dense layers that multiply every row with weights."""
    return [
        product
        for layer in encoder.transformer_layers
        for product in (
            layer.attention.query,
            layer.attention.key,
            layer.attention.value,
            layer.attention.merge_heads,
            layer.intermediate,
            layer.output_dense,
        )
    ]


class Int8Product:
    """The product of rows with weights [K,N], and a bias [N], by oneDNN's product of integers.

    Each column of the weights has a scale. So has each row, found when it is computed: its result does not depend on
    other rows. The weights are constants of the graph: oneDNN arranges those once, and variables for every call.
    """

    def __init__(self, kernel: np.ndarray, bias: np.ndarray | None):
        scale = np.maximum(np.abs(kernel).max(0) / 127, LEAST_SCALE).astype(np.float32)
        self.kernel, self.scale, self.bias = np.rint(kernel / scale).astype(np.int8), scale, bias
        # The op takes rows without a sign: 0 is 128, and what the weights make of that is taken away again.
        self.zero = -128 * self.kernel.sum(0, dtype=np.float32)

    def __call__(self, rows: Float[Any, "M K"]) -> Float[Any, "M N"]:
        """rows [M,K] -> [M,N]."""
        step = tf.maximum(tf.reduce_max(tf.abs(rows), axis=1, keepdims=True) / 127, LEAST_SCALE)  # [M,1]
        integers = tf.bitcast(tf.cast(rows / step + 128.5, tf.uint8), tf.quint8)
        # The ranges say that integers mean themselves. They are part of what oneDNN compiles, so a call's own would be
        # compiled anew.
        product = tf.raw_ops.QuantizedMatMulWithBiasAndDequantize(
            a=integers,
            min_a=0.0,
            max_a=255.0,
            b=tf.bitcast(tf.constant(self.kernel), tf.qint8),
            min_b=-127.0,
            max_b=127.0,
            bias=self.zero,
            min_freezed_output=0.0,
            max_freezed_output=0.0,
            Toutput=tf.float32,
            input_quant_mode="SCALED",
        )
        product = product * step * self.scale  # [M,N]
        return product if self.bias is None else tf.nn.bias_add(product, self.bias)
