"""Checks a request before it reaches a model: names, types, shapes, sizes.

A request that is refused here costs little and cannot make the batch fail that it would have shared.
"""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from official_bert.server.statuses import invalid
from official_bert.server.tensors import NUMPY_TYPES, Arrays, TensorSpec, check_names, type_name

BYTES_OF_A_STRING = 16  # what an empty string costs, counted in elements


@dataclasses.dataclass(frozen=True, kw_only=True)
class Limits:
    """Limits for one request, for one batch, and for all clients together."""

    max_request_bytes: int = 8 << 20  # of a body, after decompression
    max_request_rows: int = 1024  # texts in one request
    max_request_elements: int = 2 << 20  # numbers in one request, all inputs together; a string counts as 16
    max_text_bytes: int = 256 << 10  # of one string
    max_batch_elements: int = 8 << 20  # rows x longest row, numbers or bytes of text, of what runs at once
    max_batch_squares: int = 16 << 20  # rows x longest row squared, of inputs of integers: what attention costs
    max_answer_bytes: int = 64 << 20  # of the answer to one request
    max_concurrent_requests: int = 256  # more are refused with UNAVAILABLE
    max_connections: int = 512  # of REST, and as many of gRPC
    max_unfinished_bytes: int = (
        256 << 20
    )  # of all bodies that are still arriving, and of large requests that wait to be read
    keepalive_seconds: float = 15.0  # for a connection to send the whole header of its first or next request
    body_seconds: float = 20.0  # for a body to arrive
    # Inputs that are text and must be UTF-8; strings of other names (images, tf.train.Examples) may hold any bytes.
    text_inputs: tuple[str, ...] = ("text", "text_pair", "question", "context", "choices")


def check_declared(shapes: Mapping[str, tuple[str, tuple[int, ...]]], limits: Limits) -> None:
    """Raises RequestError for tensors that would be too large. It needs their types and shapes only."""
    total = 0
    for name, (dtype, shape) in shapes.items():
        # A size of 0 makes no tensor of any other sizes harmless: these are counted as if it were 1.
        total += math.prod(max(1, size) for size in shape) * (BYTES_OF_A_STRING if dtype == "string" else 1)
        if total > limits.max_request_elements:
            raise invalid(
                f"input {name!r}: expected at most {limits.max_request_elements} elements in a request (a string "
                f"counts as {BYTES_OF_A_STRING}), got {total} up to the shape {list(shape)}"
            )
        width, square = row_extent(dtype, shape)
        if square > limits.max_batch_squares:
            raise invalid(
                f"input {name!r}: expected rows of a length whose square is at most {limits.max_batch_squares}, "
                f"got the shape {list(shape)}"
            )
        if dtype != "string" and width > limits.max_batch_elements:
            raise invalid(
                f"input {name!r}: expected rows of at most {limits.max_batch_elements} elements, got the shape "
                f"{list(shape)}"
            )


def row_extent(dtype: str, shape: tuple[int, ...], longest: int = 1) -> tuple[int, int]:
    """Returns (elements, squares) of one row of an input; `longest` is the length of its longest string in bytes.

    Squares stand for the cost of attention. They count for integers only, whose last axis may be a sequence.
    """
    width = math.prod(shape[1:]) * (longest if dtype == "string" else 1)
    is_sequence = len(shape) > 1 and dtype in NUMPY_TYPES and NUMPY_TYPES[dtype].kind in "iu"
    return width, width * shape[-1] if is_sequence else 0


def row_work(inputs: Arrays, limits: Limits) -> int:
    """Returns the work of the longest row: bytes of text and numbers of ids.

    Other inputs (images, features) count as 0.
    """
    work = 0
    for name, array in inputs.items():
        is_ids = array.ndim > 1 and array.dtype in (np.int32, np.int64)
        if is_ids or (array.dtype == object and name in limits.text_inputs):
            work += row_extent(type_name(array), array.shape, longest_string(array))[0]
    return work


def longest_string(array: np.ndarray) -> int:
    """Returns the length of the longest string of an array in bytes; 0 for other arrays."""
    return max(map(len, array.ravel().tolist()), default=0) if array.dtype == object else 0


def check_strings(name: str, strings: Any, limits: Limits) -> None:
    """Raises RequestError for strings that are too long and for text that is not UTF-8."""
    for index, value in enumerate(strings):
        if len(value) > limits.max_text_bytes:
            raise invalid(
                f"input {name!r}, string {index}: expected at most {limits.max_text_bytes} bytes, got {len(value)}"
            )
        if name in limits.text_inputs:
            try:
                value.decode("utf-8")
            except UnicodeDecodeError as error:
                raise invalid(f"input {name!r}, string {index}: not valid UTF-8 at byte {error.start}") from None


def check_all_strings(inputs: Arrays, limits: Limits) -> None:
    """Checks the strings of all inputs as `check_strings` does."""
    for name, array in inputs.items():
        if array.dtype == object:
            check_strings(name, array.ravel(), limits)


def check_inputs(signature: Any, inputs: Arrays, limits: Limits) -> None:
    """Raises RequestError that names the input if inputs do not fit a `Signature`.

    Sizes and strings have been checked before.
    """
    check_names(signature.inputs, inputs)
    for name, spec in signature.inputs.items():
        _check_shape(name, inputs[name], spec)
        if spec.has_rows and inputs[name].ndim and len(inputs[name]) > limits.max_request_rows:
            raise invalid(
                f"input {name!r}: expected at most {limits.max_request_rows} rows in a request, got {len(inputs[name])}"
            )
    if have_rows(signature, inputs):
        _check_rows(inputs)


def have_rows(signature: Any, inputs: Arrays) -> bool:
    """Returns whether the first axis of all inputs is the batch. An input of unknown rank may be a scalar."""
    return signature.is_batched and all(array.ndim for array in inputs.values())


def _check_shape(name: str, array: np.ndarray, spec: TensorSpec) -> None:
    """Raises RequestError if an array's type or shape does not fit the signature."""
    if type_name(array) != spec.dtype:
        raise invalid(f"input {name!r}: expected {spec}, got {type_name(array)}")
    fits = spec.shape is None or (
        len(spec.shape) == array.ndim
        and all(expected in (None, size) for expected, size in zip(spec.shape, array.shape))
    )
    if not fits:
        raise invalid(f"input {name!r}: expected {spec}, got the shape {list(array.shape)}")


def _check_rows(inputs: Arrays) -> None:
    """Raises RequestError unless all inputs have the same number of rows, at least one."""
    rows = {name: len(array) for name, array in inputs.items()}
    if len(set(rows.values())) > 1:
        raise invalid(f"expected the same number of rows in all inputs, got {rows}")
    if not min(rows.values()):
        raise invalid("expected at least one row, got none")
