"""What a request must fulfil before it reaches a model: names, types, shapes, and bounds on size.

What is refused here costs nothing and cannot spoil the batch that it would have shared.
"""

import dataclasses
import math
from typing import Any

import numpy as np
import tensorflow as tf

from official_bert.server.servable import Arrays, Signature, TensorSpec, check_names
from official_bert.server.statuses import RequestError, invalid

MOST_DIMENSIONS = 8


@dataclasses.dataclass(frozen=True, kw_only=True)
class Limits:
    """What one request may ask for."""

    max_request_bytes: int = 8 << 20  # of a body, after decompression
    max_request_rows: int = 1024  # texts in one request
    max_text_bytes: int = 256 << 10  # of one string
    max_concurrent_requests: int = 256  # those above are told to come again
    # Inputs that are text and must be UTF-8; strings of other names (images, tf.train.Examples) may hold any bytes.
    text_inputs: tuple[str, ...] = ("text", "text_pair", "question", "context", "choices")


def check_inputs(signature: Signature, inputs: Arrays, limits: Limits) -> None:
    """Refuses inputs that do not fit the signature or exceed the limits, with one sentence that names the input."""
    check_names(signature, inputs)
    for name, spec in signature.inputs.items():
        _check_shape(name, inputs[name], spec)
        if spec.has_rows and inputs[name].ndim and len(inputs[name]) > limits.max_request_rows:
            raise invalid(f"input {name!r}: expected at most {limits.max_request_rows} rows in a request, "
                          f"got {len(inputs[name])}")
        if spec.dtype == tf.string:
            _check_strings(name, inputs[name], limits)
    if have_rows(signature, inputs):
        _check_rows(inputs)


def have_rows(signature: Signature, inputs: Arrays) -> bool:
    """Whether the first axis of all inputs is the batch; an input of unknown rank may be given without any axis."""
    return signature.is_batched and all(array.ndim for array in inputs.values())


def _check_shape(name: str, array: np.ndarray, spec: TensorSpec) -> None:
    """Type and sizes as the signature declares them."""
    if array.dtype != spec.dtype.as_numpy_dtype:
        got = "string" if array.dtype == object else array.dtype.name
        raise invalid(f"input {name!r}: expected {spec}, got {got}")
    fits = spec.shape is None or (len(spec.shape) == array.ndim and all(
        wanted in (None, size) for wanted, size in zip(spec.shape, array.shape)))
    if not fits:
        raise invalid(f"input {name!r}: expected {spec}, got the shape {list(array.shape)}")


def _check_rows(inputs: Arrays) -> None:
    """All inputs speak of the same rows, and there is one at least."""
    rows = {name: len(array) for name, array in inputs.items()}
    if len(set(rows.values())) > 1:
        raise invalid(f"expected the same number of rows in all inputs, got {rows}")
    if not min(rows.values()):
        raise invalid("expected at least one row, got none")


def _check_strings(name: str, array: np.ndarray, limits: Limits) -> None:
    """Strings of bounded length; text is UTF-8."""
    for index, value in enumerate(array.ravel()):
        if len(value) > limits.max_text_bytes:
            raise invalid(f"input {name!r}, string {index}: expected at most {limits.max_text_bytes} bytes, got {len(value)}")
        if name in limits.text_inputs:
            try:
                value.decode("utf-8")
            except UnicodeDecodeError as error:
                raise invalid(f"input {name!r}, string {index}: not valid UTF-8 at byte {error.start}") from None


def read_tensor(name: str, proto: Any, limits: Limits) -> np.ndarray:
    """A `TensorProto` as an array. Its declared shape is checked first: a few bytes may declare terabytes."""
    sizes = [dim.size for dim in proto.tensor_shape.dim]
    if proto.tensor_shape.unknown_rank or min(sizes, default=0) < 0 or len(sizes) > MOST_DIMENSIONS:
        raise invalid(f"input {name!r}: expected a tensor of known shape, got {sizes}")
    if math.prod(sizes) > limits.max_request_bytes:
        raise RequestError("RESOURCE_EXHAUSTED", f"input {name!r}: expected at most {limits.max_request_bytes} elements, "
                                                 f"got the shape {sizes}")
    try:
        array = tf.make_ndarray(proto)
        # TensorFlow fills up with the last string, or, if none is given, with an empty one of the wrong type.
        return array if array.dtype != object else np.where(array == "", b"", array)
    except (ValueError, TypeError, KeyError, OverflowError) as error:
        raise invalid(f"input {name!r}: not a valid tensor: {str(error).splitlines()[0][:200] if str(error) else ''}") from None
