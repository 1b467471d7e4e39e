"""Tensors of the protocols without TensorFlow: types, the specification of an input, `TensorProto` to array.

The process that parses large requests imports this module, and must start quickly.
"""

import math
import struct
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

from official_bert.server.statuses import invalid

Arrays = Mapping[str, np.ndarray]
MOST_DIMENSIONS = 8
STRING_LENGTH = struct.Struct("<I")  # before each string of a binary tensor
# DataType's number: its name, the NumPy type, and the field of a TensorProto that lists its values.
TYPES: Mapping[int, tuple[str, Any, str]] = {
    1: ("float32", np.float32, "float_val"),
    2: ("float64", np.float64, "double_val"),
    3: ("int32", np.int32, "int_val"),
    4: ("uint8", np.uint8, "int_val"),
    5: ("int16", np.int16, "int_val"),
    6: ("int8", np.int8, "int_val"),
    7: ("string", object, "string_val"),
    8: ("complex64", np.complex64, "scomplex_val"),
    9: ("int64", np.int64, "int64_val"),
    10: ("bool", np.bool_, "bool_val"),
    14: ("bfloat16", ml_dtypes.bfloat16, "half_val"),
    17: ("uint16", np.uint16, "int_val"),
    18: ("complex128", np.complex128, "dcomplex_val"),
    19: ("float16", np.float16, "half_val"),
    22: ("uint32", np.uint32, "uint32_val"),
    23: ("uint64", np.uint64, "uint64_val"),
}
NUMPY_TYPES = {name: np.dtype(kind) for name, kind, _ in TYPES.values()}


class TensorSpec(NamedTuple):
    """An input or output of a signature. `shape` is None for an unknown rank; a size of None may vary.

    `dtype` is TensorFlow's name of the type, or "type N" for types that no request can carry, such as resources.
    """

    tensor: str
    dtype: str
    shape: Sequence[int | None] | None

    @classmethod
    def of(cls, info: Any) -> "TensorSpec":
        """Returns the specification in a `TensorInfo`."""
        shape = info.tensor_shape
        sizes = None if shape.unknown_rank else tuple(None if dim.size < 0 else dim.size for dim in shape.dim)
        return cls(info.name, TYPES[info.dtype][0] if info.dtype in TYPES else f"type {info.dtype}", sizes)

    @property
    def has_rows(self) -> bool:
        """Whether the first axis can be the batch. For an unknown rank that is assumed, and checked by a run."""
        return self.shape is None or (len(self.shape) > 0 and self.shape[0] is None)

    def __str__(self) -> str:
        sizes = "?" if self.shape is None else ",".join("?" if size is None else str(size) for size in self.shape)
        return f"{self.dtype} [{sizes}]"


Specs = Mapping[str, TensorSpec]


def type_name(array: np.ndarray) -> str:
    """Returns TensorFlow's name of an array's type."""
    return "string" if array.dtype == object else array.dtype.name


def check_names(names: Any, sent_names: Any) -> None:
    """Raises RequestError for inputs that are missing or unknown among the `names` of a signature."""
    names, sent_names = set(names), set(sent_names)
    if names != sent_names:
        raise invalid(
            f"input size does not match signature: {len(sent_names)}!={len(names)} len({{{_names(sent_names)}}}) != "
            f"len({{{_names(names)}}}). Sent extra: {{{_names(sent_names - names)}}}. "
            f"Missing but required: {{{_names(names - sent_names)}}}."
        )


def _names(names: Any) -> str:
    return ",".join(sorted(map(str, names)))


def declared_shape(name: str, proto: Any) -> tuple[str, tuple[int, ...]]:
    """Returns the type and the shape that a `TensorProto` declares, unchecked for size: a few bytes may declare
    terabytes.

    Raises RequestError for an unknown rank or type, and for too many dimensions.
    """
    sizes = tuple(dim.size for dim in proto.tensor_shape.dim[: MOST_DIMENSIONS + 1])
    if proto.tensor_shape.unknown_rank or min(sizes, default=0) < 0 or len(sizes) > MOST_DIMENSIONS:
        raise invalid(f"input {name!r}: expected a tensor of known shape, got {list(sizes)}")
    if proto.dtype not in TYPES:
        raise invalid(f"input {name!r}: not a valid tensor: type {proto.dtype} cannot be sent")
    return TYPES[proto.dtype][0], sizes


def read_tensor(name: str, proto: Any) -> np.ndarray:
    """Returns a `TensorProto` as an array. As in TensorFlow, missing values repeat the last one; without any they are 0
    or "".

    Its declared size must have been checked. Raises RequestError if it is no valid tensor.
    """
    dtype, sizes = declared_shape(name, proto)
    count = math.prod(sizes)
    if proto.tensor_content:
        if dtype == "string" or len(proto.tensor_content) != count * NUMPY_TYPES[dtype].itemsize:
            raise invalid(
                f"input {name!r}: not a valid tensor: {len(proto.tensor_content)} bytes of content for {dtype} "
                f"{list(sizes)}"
            )
        return np.frombuffer(proto.tensor_content, NUMPY_TYPES[dtype]).reshape(sizes)
    values = _listed(name, proto, dtype)
    if len(values) > count:
        raise invalid(f"input {name!r}: not a valid tensor: {len(values)} values for the shape {list(sizes)}")
    if len(values) < count:
        filled = np.full(count, values[-1] if len(values) else (b"" if dtype == "string" else 0), values.dtype)
        filled[: len(values)] = values
        values = filled
    return values.reshape(sizes)


def _listed(name: str, proto: Any, dtype: str) -> np.ndarray:
    """Returns the values in a `TensorProto`'s list field, flat."""
    listed = getattr(proto, TYPES[proto.dtype][2])
    if dtype == "string":
        return object_array(listed)
    try:
        if dtype in ("float16", "bfloat16"):  # listed as the integers of their bits
            return np.fromiter(listed, np.uint16, len(listed)).view(NUMPY_TYPES[dtype])
        if dtype in ("complex64", "complex128"):  # listed as real and imaginary parts
            return np.fromiter(listed, np.float32 if dtype == "complex64" else np.float64, len(listed)).view(
                NUMPY_TYPES[dtype]
            )
        return np.fromiter(listed, NUMPY_TYPES[dtype], len(listed))
    except (ValueError, OverflowError) as error:
        raise invalid(f"input {name!r}: not a valid tensor: {str(error)[:200]}") from None


def object_array(values: Sequence) -> np.ndarray:
    """Returns strings or other values as a flat array of objects, because NumPy's own strings have one length."""
    array = np.empty(len(values), object)
    array[:] = list(values)
    return array


def to_bytes(array: np.ndarray) -> bytes:
    """Returns an array as a binary tensor: little-endian numbers row by row, or strings, each after its length."""
    if array.dtype == object:
        return b"".join(part for value in array.ravel().tolist() for part in (STRING_LENGTH.pack(len(value)), value))
    return np.ascontiguousarray(array).tobytes()


def from_bytes(name: str, dtype: str, shape: Sequence[int], data: memoryview) -> np.ndarray:
    """Returns a binary tensor as an array. Raises RequestError if the number of bytes does not fit the shape."""
    count = math.prod(shape)
    if dtype != "string":
        numpy_type = NUMPY_TYPES[dtype]
        if len(data) != count * numpy_type.itemsize:
            raise invalid(
                f"input {name!r}: expected {count * numpy_type.itemsize} bytes for the shape {list(shape)}, got "
                f"{len(data)}"
            )
        if dtype == "bool":
            return np.frombuffer(data, np.uint8).astype(bool).reshape(shape)
        return np.frombuffer(data, numpy_type).reshape(shape)
    strings: list[bytes] = []
    start = 0
    while start < len(data) and len(strings) <= count:
        if start + STRING_LENGTH.size > len(data):
            raise invalid(f"input {name!r}: expected the length of a string, got {len(data) - start} bytes at the end")
        (size,) = STRING_LENGTH.unpack_from(data, start)
        start += STRING_LENGTH.size
        if start + size > len(data):
            raise invalid(f"input {name!r}: expected a string of {size} bytes, got {len(data) - start} at the end")
        strings.append(bytes(data[start : start + size]))
        start += size
    return shaped(name, object_array(strings), shape)


def shaped(name: str, flat: np.ndarray, shape: Sequence[int]) -> np.ndarray:
    """Returns a flat array in a shape. Raises RequestError if the number of values differs."""
    if len(flat) != math.prod(shape):
        raise invalid(
            f"input {name!r}: expected {math.prod(shape)} values for the shape {list(shape)}, got {len(flat)}"
            f"{' or more' * (len(flat) > math.prod(shape))}"
        )
    return flat.reshape(shape)
