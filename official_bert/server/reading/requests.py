"""From the bytes of a request to named arrays that are within the limits; knows the models' inputs, but no TensorFlow.

Runs in the server for small requests and in a process of its own for large ones (`reading/process.py`).
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
from google.protobuf.message import DecodeError

from official_bert.server.protocols.tensorflow_serving import rest_json
from official_bert.server.reading.tensors import Arrays, Specs, declared_shape, read_tensor, type_name
from official_bert.server.request_checks import Limits, check_declared, check_strings
from official_bert.server.statuses import RequestError, invalid

DEFAULT_SIGNATURE = "serving_default"
MOST_FIELDS = 1000  # of a gRPC request, at its top: model, inputs, names of outputs
VARINT_BYTES = 10


@dataclasses.dataclass(frozen=True, kw_only=True)
class Reading:
    """A request that was read. Over REST the path names the model: `name`, `version` and `label` are not set."""

    signature: str
    inputs: Arrays
    is_rows: bool = False  # REST: whether it came, and is answered, in row form
    name: str = ""
    version: int | None = None
    label: str | None = None
    outputs: tuple[str, ...] = ()  # names of those that are answered; none: all
    more: Mapping[str, Any] = dataclasses.field(default_factory=dict)  # what else a protocol's request says, of JSON's types


def read_rest(body: bytes, signatures: Mapping[str, Specs], limits: Limits) -> Reading:
    """Reads a JSON body for a model with these signatures. Raises RequestError."""
    request = rest_json.parse_body(body)
    name = rest_json.signature_name(request)
    specs = signatures.get(name or DEFAULT_SIGNATURE)
    if specs is None:
        raise RequestError("FAILED_PRECONDITION", f'Serving signature key "{name or DEFAULT_SIGNATURE}" not found.')
    inputs, is_rows = rest_json.read_inputs(request, specs)
    check_declared({key: (type_name(array), array.shape) for key, array in inputs.items()}, limits)
    for key, array in inputs.items():
        if array.dtype == object:
            check_strings(key, array.ravel(), limits)
    return Reading(signature=name, inputs=inputs, is_rows=is_rows)


def read_grpc(message: Any, data: bytes, limits: Limits) -> Reading:
    """Reads a serialized `PredictRequest`; `message` is that class. Raises RequestError; INTERNAL for garbage, as TF Serving.

    The sizes that tensors declare are checked before they are expanded.
    """
    check_fields(data)
    try:
        request = message.FromString(data)
    except DecodeError:
        raise RequestError("INTERNAL", f"not a {message.DESCRIPTOR.full_name}") from None
    if not request.HasField("model_spec"):
        raise invalid("Missing ModelSpec")
    check_declared({name: declared_shape(name, proto) for name, proto in request.inputs.items()}, limits)
    for name, proto in request.inputs.items():
        check_strings(name, proto.string_val, limits)
    spec = request.model_spec
    kind = spec.WhichOneof("version_choice")
    return Reading(signature=spec.signature_name, inputs={name: read_tensor(name, proto) for name, proto in request.inputs.items()},
                   name=spec.name, version=spec.version.value if kind == "version" else None,
                   label=spec.version_label if kind == "version_label" else None, outputs=tuple(request.output_filter))


def check_fields(data: bytes) -> None:
    """Refuses a message of millions of fields, which would take seconds to parse. Garbage is left to the parser."""
    position = 0
    for _ in range(MOST_FIELDS):
        if position >= len(data):
            return
        tag, position = _varint(data, position)
        if tag & 7 == 2:
            size, position = _varint(data, position)
            position += size
        elif tag & 7 == 0:
            _, position = _varint(data, position)
        else:
            position += {1: 8, 5: 4}.get(tag & 7, len(data))
    if position < len(data):
        raise invalid(f"expected a message of at most {MOST_FIELDS} fields")


def _varint(data: bytes, position: int) -> tuple[int, int]:
    """Returns a number of the wire format and the position behind it; the end if the number is cut off."""
    value = 0
    for index in range(VARINT_BYTES):
        if position + index >= len(data):
            return 0, len(data)
        byte = data[position + index]
        value |= (byte & 127) << 7 * index
        if byte < 128:
            return value, position + index + 1
    return 0, len(data)


def pack_strings(array: np.ndarray) -> tuple[np.ndarray, bytes]:
    """Returns the lengths of an array's strings, and the strings joined."""
    strings = array.ravel().tolist()
    return np.fromiter(map(len, strings), np.int64, len(strings)), b"".join(strings)


def unpack_strings(lengths: np.ndarray, joined: bytes) -> np.ndarray:
    """Undoes `pack_strings`; the array is flat. Other threads may run between its steps."""
    strings, start = np.empty(len(lengths), object), 0
    for index, length in enumerate(lengths.tolist()):
        strings[index] = joined[start:start + length]
        start += length
    return strings
