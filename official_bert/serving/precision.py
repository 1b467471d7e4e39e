"""Weights in the graph of an exported model: float32, or converted to bfloat16."""

import contextlib
import functools
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Literal, NamedTuple

import keras
import tensorflow as tf

from official_bert.layers.speed.computing import computing
from official_bert.layers.speed.extension_points import overridden
from official_bert.models.encoder import encoder_within
from official_bert.serving.bounds import Few
from official_bert.serving.few_tokens import FewRows, few_layers
from official_bert.serving.served_layers import Overrides, Value, Values, served_layers, tables_of

Precision = Literal["float32", "bfloat16"]
# of the model that is exported
POLICIES: Mapping[Precision, str] = {"float32": "float32", "bfloat16": "mixed_bfloat16"}
INTEGERS = "; --format=openvino_int8 and onnx_int8 compute in 8-bit integers, --precision=int8 is no longer supported"


@contextlib.contextmanager
def policy_of(precision: Precision) -> Iterator[None]:
    """Makes models built in this context exportable in a precision. Raises ValueError for an unknown precision."""
    if precision not in POLICIES:
        more = INTEGERS if precision == "int8" else ""
        raise ValueError(f"--precision: expected {' or '.join(POLICIES)}, got {precision!r}{more}")
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy(POLICIES[precision])
    try:
        yield
    finally:
        keras.config.set_dtype_policy(before)


class Weights(NamedTuple):
    """The variables that a model's graphs read (complete after tracing), the scope in which to trace these graphs, and
    an inner scope for graphs of few tokens, if those have constants.
    """

    variables: list[tf.Variable]
    scope: Callable[[], contextlib.AbstractContextManager]
    few: Few | None


def weights_in(
    precision: Precision, model: keras.Model, constants: bool = False, values: Values | None = None
) -> Weights:
    """Returns the weights that graphs read, in a precision, for a model built within `policy_of`.

    Several models share equal variables of `values`. With `constants`, the encoder's weights except tables are
    constants in graphs for few tokens, because oneDNN packs constants only once. It packs variables for the number of
    rows of the first request, and again in every request with another number.
    """
    assert model.dtype_policy.name == POLICIES[precision], (model.dtype_policy.name, precision)
    encoder = encoder_within(model)
    values, dtype = values or Values(constants), tf.bfloat16 if precision == "bfloat16" else tf.float32
    few_overrides = few_layers(encoder, values) if constants and precision == "float32" else Overrides()
    few_overrides |= {(encoder, "call"): FewRows(encoder)} if constants else {}
    overrides, computed = served_layers(encoder, functools.partial(values.product, dtype=dtype), values, dtype)
    if getattr(model, "reuses_encoder", False):
        computed = set()  # a decoder reads these weights, too
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
    tables, size = {id(weight) for weight in tables_of(encoder)}, {"float32": 4, "bfloat16": 2}[precision]
    return sum(size * math.prod(weight.shape) for weight in encoder.weights if id(weight) not in tables)


class _OtherValues(keras.StatelessScope):
    """Gives the layers other values for the variables with these ids.

    Keras' `StatelessScope` would cast them to the variables' type.
    """

    def __init__(self, values: Mapping[int, Value]):
        super().__init__()
        self.values = values

    def get_current_value(self, variable: keras.Variable) -> tf.Tensor | tf.Variable | None:
        """Returns the value that replaces a variable; None to keep its own."""
        return self.values[id(variable)]() if id(variable) in self.values else None
