"""Converts tensors of KServe's V2 protocol to arrays and back: JSON, the binary extension, gRPC. Imports no TensorFlow.

Source: the Open Inference Protocol and its binary tensor data extension. A binary string follows its length, 4 bytes
little-endian. Numbers are little-endian, row by row.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import orjson

from official_bert.server.protocols.json_fields import field
from official_bert.server.protocols.kserve.messages import message_class
from official_bert.server.protocols.tensorflow_serving import rest_json
from official_bert.server.requests.reading import ModelAddress, Reading, parse_message
from official_bert.server.requests.request_checks import Limits, check_all_strings, check_declared
from official_bert.server.statuses import RequestError, invalid
from official_bert.server.tensors import (
    MOST_DIMENSIONS,
    NUMPY_TYPES,
    Arrays,
    TensorSpec,
    from_bytes,
    object_array,
    shaped,
    to_bytes,
    type_name,
)

# TensorFlow's name of a type: the protocol's, and the field of a message that lists its values.
DATATYPES: Mapping[str, tuple[str, str]] = {
    "bool": ("BOOL", "bool_contents"),
    "uint8": ("UINT8", "uint_contents"),
    "uint16": ("UINT16", "uint_contents"),
    "uint32": ("UINT32", "uint_contents"),
    "uint64": ("UINT64", "uint64_contents"),
    "int8": ("INT8", "int_contents"),
    "int16": ("INT16", "int_contents"),
    "int32": ("INT32", "int_contents"),
    "int64": ("INT64", "int64_contents"),
    "float16": ("FP16", ""),
    "bfloat16": ("BF16", ""),
    "float32": ("FP32", "fp32_contents"),
    "float64": ("FP64", "fp64_contents"),
    "string": ("BYTES", "bytes_contents"),
}
NAMES = {datatype: (name, field) for name, (datatype, field) in DATATYPES.items()}
MOST_VERSION = MOST_SIZE = (1 << 63) - 1


def read_rest(body: bytes, limits: Limits, header: int | None = None) -> Reading:
    """Reads the body of an `infer` request. `header` is the length of its JSON in bytes if binary tensors follow.

    Raises RequestError if the body is invalid.
    """
    if header is not None and not 0 <= header <= len(body):
        raise invalid(
            f"Inference-Header-Content-Length: expected at most the {len(body)} bytes of the body, got {header}"
        )
    request, binary = rest_json.parse_body(body[:header]), memoryview(body)[len(body) if header is None else header :]
    entries = _objects(request, "inputs")
    if not entries:
        raise invalid("'inputs': expected at least one tensor, got none")
    shapes = _declared(
        [(_text(entry, "name"), _text(entry, "datatype"), entry.get("shape")) for entry in entries], limits
    )
    arrays, start = {}, 0
    for entry, (name, (dtype, shape)) in zip(entries, shapes.items()):
        size = _parameters(entry).get("binary_data_size")
        if size is None:
            arrays[name] = _from_json(name, dtype, shape, entry.get("data"))
            continue
        if type(size) is not int or not 0 <= size <= len(binary) - start:
            raise invalid(
                f"input {name!r}: binary_data_size: expected at most the {len(binary) - start} bytes that are left, "
                f"got {size!r:.40}"
            )
        arrays[name] = from_bytes(name, dtype, shape, binary[start : start + size])
        start += size
    if start < len(binary):
        raise invalid(f"expected {start} bytes of binary tensors, got {len(binary)}")
    check_all_strings(arrays, limits)
    outputs = _objects(request, "outputs")
    by_default = _parameters(request).get("binary_data_output", False) is True
    as_binary = {_text(entry, "name"): _parameters(entry).get("binary_data", by_default) is True for entry in outputs}
    if len(as_binary) < len(outputs):
        raise invalid("'outputs': expected each name once")
    return Reading(
        inputs=arrays,
        outputs=tuple(as_binary),
        more={
            "id": field(request, "id", str, ""),
            "binary": [name for name, is_binary in as_binary.items() if is_binary],
            "all_binary": by_default and not as_binary,
        },
    )


def read_grpc(data: bytes, limits: Limits) -> Reading:
    """Reads a serialized `ModelInferRequest`. Raises RequestError; INTERNAL if the bytes are no such message."""
    request = parse_message(message_class("ModelInferRequest"), data, "outputs")
    shapes = _declared(
        [(entry.name, entry.datatype, list(entry.shape[: MOST_DIMENSIONS + 1])) for entry in request.inputs], limits
    )
    raw = request.raw_input_contents
    if raw and len(raw) != len(request.inputs):
        raise invalid(
            f"raw_input_contents: expected one for each of the {len(request.inputs)} inputs, or none, got {len(raw)}"
        )
    arrays = {}
    for place, (entry, (name, (dtype, shape))) in enumerate(zip(request.inputs, shapes.items())):
        if raw and entry.HasField("contents"):
            raise invalid(f"input {name!r}: expected contents or raw_input_contents, got both")
        arrays[name] = (
            from_bytes(name, dtype, shape, memoryview(raw[place]))
            if raw
            else _from_contents(name, dtype, shape, entry.contents)
        )
    check_all_strings(arrays, limits)
    return Reading(
        inputs=arrays,
        address=address_of(request.model_name, request.model_version),
        outputs=tuple(entry.name for entry in request.outputs),
        more={"id": request.id, "raw": bool(raw)},
    )


def address_of(name: str, version: str) -> ModelAddress:
    """Returns the address of the model that a request names; without a version, its highest one.

    Raises RequestError if the version is no number.
    """
    if not version:
        return ModelAddress(name)
    if not (
        version.isascii()
        and version.isdecimal()
        and len(version) <= len(str(MOST_VERSION))
        and int(version) <= MOST_VERSION
    ):
        raise invalid(f"version: expected a number, got {version!r:.60}")
    return ModelAddress(name, int(version))


def _declared(entries: Iterable[tuple[str, str, Any]], limits: Limits) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Returns the type and shape of each input by name, and checks them against the limits before any data is read."""
    shapes: dict[str, tuple[str, tuple[int, ...]]] = {}
    for name, datatype, shape in entries:
        if name in shapes:
            raise invalid(f"input {name!r:.80}: expected once, got twice")
        if datatype not in NAMES:
            raise invalid(f"input {name!r:.80}: datatype: expected one of {', '.join(NAMES)}, got {datatype!r:.40}")
        if (
            not isinstance(shape, list)
            or len(shape) > MOST_DIMENSIONS
            or any(type(size) is not int or not 0 <= size <= MOST_SIZE for size in shape)
        ):
            raise invalid(
                f"input {name!r:.80}: shape: expected a list of at most {MOST_DIMENSIONS} sizes from 0 to "
                f"{MOST_SIZE}, got {shape!r:.60}"
            )
        shapes[name] = NAMES[datatype][0], tuple(shape)
    check_declared(shapes, limits)
    return shapes


def _from_json(name: str, dtype: str, shape: tuple[int, ...], data: Any) -> np.ndarray:
    """Returns `data`, flat or nested, as an array."""
    if not isinstance(data, list):
        raise invalid(f"input {name!r}: expected data, or the parameter binary_data_size")
    if dtype == "float16":
        raise invalid(f"input {name!r}: JSON cannot represent FP16; send it as binary data")
    array = rest_json.to_array(data, TensorSpec("", dtype, None), name)
    return shaped(name, array.ravel(), shape)


def _from_contents(name: str, dtype: str, shape: tuple[int, ...], contents: Any) -> np.ndarray:
    """Returns the values that a gRPC message lists as an array."""
    contents_field = DATATYPES[dtype][1]
    if not contents_field:
        raise invalid(f"input {name!r}: {DATATYPES[dtype][0]}: expected raw_input_contents")
    listed = getattr(contents, contents_field)
    if len(listed) != math.prod(shape):
        raise invalid(f"input {name!r}: expected {math.prod(shape)} values in {contents_field}, got {len(listed)}")
    if dtype == "string":
        return object_array(listed).reshape(shape)
    numpy_type, numbers = NUMPY_TYPES[dtype], list(listed)
    if numpy_type.kind in "iu" and numbers:  # a field is wider than the type: NumPy would cut bits off
        least, most = np.iinfo(numpy_type).min, np.iinfo(numpy_type).max
        if wrong := next((number for number in (min(numbers), max(numbers)) if not least <= number <= most), None):
            raise invalid(f"input {name!r}: {DATATYPES[dtype][0]}: expected numbers of {least} to {most}, got {wrong}")
    return np.array(numbers, numpy_type).reshape(shape)


def format_answer(head: Mapping[str, Any], outputs: Arrays, binary: Sequence[str]) -> tuple[bytes, int | None]:
    """Returns the body of an answer, and the length of its JSON in bytes if the outputs named in `binary` follow it
    (else None).

    Raises RequestError for a type that the protocol lacks.
    """
    pieces, tail = [], []
    for name, array in outputs.items():
        entry: dict[str, Any] = {"name": name, "datatype": datatype_of(name, array), "shape": list(array.shape)}
        if name in binary:
            tail.append(to_bytes(array))
            entry["parameters"] = {"binary_data_size": len(tail[-1])}
            pieces.append(orjson.dumps(entry))
        else:
            pieces.append(orjson.dumps(entry)[:-1] + b',"data":' + rest_json.flat_json(name, array) + b"}")
    body = orjson.dumps(head)[:-1] + b',"outputs":[' + b",".join(pieces) + b"]}"
    return (b"".join([body, *tail]), len(body)) if tail else (body, None)


def datatype_of(name: str, array: np.ndarray) -> str:
    """Returns the protocol's name of an output's type. Raises RequestError if the protocol lacks the type."""
    dtype = type_name(array)
    if dtype not in DATATYPES:
        raise RequestError("UNIMPLEMENTED", f"output {name!r}: this protocol has no {dtype}; leave it out of 'outputs'")
    return DATATYPES[dtype][0]


def _objects(request: Mapping[str, Any], key: str) -> list[dict]:
    """Returns a list of objects; an empty list if the key is missing."""
    values = request.get(key, [])
    if not isinstance(values, list) or not all(isinstance(value, dict) for value in values):
        raise invalid(f"{key!r}: expected a list of objects")
    return values


def _text(entry: Mapping[str, Any], key: str) -> str:
    return field(entry, key, str, owner=" of a tensor")


def _parameters(entry: Mapping[str, Any]) -> Mapping[str, Any]:
    return field(entry, "parameters", dict, {})
