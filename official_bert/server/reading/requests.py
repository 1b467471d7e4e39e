"""From the bytes of a request to named arrays that are within the limits; knows the models' inputs, but no TensorFlow.

Runs in the server for small requests and in a process of its own for large ones (`reading/process.py`).
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from google.protobuf.message import DecodeError

from official_bert.server.protocols.tensorflow_serving import rest_json
from official_bert.server.reading.tensors import Arrays, Specs, TensorSpec, declared_shape, read_tensor, type_name
from official_bert.server.request_checks import Limits, check_all_strings, check_declared, check_strings
from official_bert.server.statuses import RequestError, invalid

DEFAULT_SIGNATURE = "serving_default"
MOST_FIELDS = 1000  # of a gRPC request, at its top: model, inputs, names of outputs
VARINT_BYTES = 10


class ModelAddress(NamedTuple):
    """The model that a request asks for: a version by number or label, or else the highest."""

    name: str = ""
    version: int | None = None
    label: str | None = None

    @classmethod
    def of(cls, spec: Any) -> "ModelAddress":
        """Reads a `ModelSpec`."""
        choice = spec.WhichOneof("version_choice")
        return cls(
            spec.name,
            spec.version.value if choice == "version" else None,
            spec.version_label if choice == "version_label" else None,
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Reading:
    """A request that was read."""

    inputs: Arrays
    signature: str = ""
    # not set if the path of a REST request names the model
    address: ModelAddress = dataclasses.field(default_factory=ModelAddress)
    is_rows: bool = False  # REST: whether it came, and is answered, in row form
    outputs: Sequence[str] = ()  # names of those that are answered; none: all
    # what else a protocol's request says, of JSON's types
    more: Mapping[str, Any] = dataclasses.field(default_factory=dict)


def read_rest(body: bytes, limits: Limits, signatures: Mapping[str, Specs]) -> Reading:
    """Reads a JSON body for a model with these signatures (specs may be lists, as in JSON). Raises RequestError."""
    request = rest_json.parse_body(body)
    name = rest_json.signature_name(request)
    specs = signatures.get(name or DEFAULT_SIGNATURE)
    if specs is None:
        raise RequestError("FAILED_PRECONDITION", f'Serving signature key "{name or DEFAULT_SIGNATURE}" not found.')
    inputs, is_rows = rest_json.read_inputs(request, {key: TensorSpec(*spec) for key, spec in specs.items()})
    check_declared({key: (type_name(array), array.shape) for key, array in inputs.items()}, limits)
    check_all_strings(inputs, limits)
    return Reading(signature=name, inputs=inputs, is_rows=is_rows)


def read_grpc(data: bytes, limits: Limits, message: Any) -> Reading:
    """Reads a serialized `PredictRequest`; `message` is that class. Raises RequestError.

    The sizes that tensors declare are checked before they are expanded.
    """
    request = parse_message(message, data)
    if not request.HasField("model_spec"):
        raise invalid("Missing ModelSpec")
    check_declared({name: declared_shape(name, proto) for name, proto in request.inputs.items()}, limits)
    for name, proto in request.inputs.items():
        check_strings(name, proto.string_val, limits)
    return Reading(
        signature=request.model_spec.signature_name,
        address=ModelAddress.of(request.model_spec),
        inputs={name: read_tensor(name, proto) for name, proto in request.inputs.items()},
        outputs=tuple(request.output_filter),
    )


def parse_message(message: Any, data: bytes) -> Any:
    """Parses a message of a class. Raises RequestError; INTERNAL for garbage, as TF Serving."""
    check_fields(data)
    try:
        return message.FromString(data)
    except DecodeError:
        raise RequestError("INTERNAL", f"not a {message.DESCRIPTOR.full_name}") from None


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
