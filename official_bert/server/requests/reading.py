"""Parses the bytes of a request into named arrays within the limits. Imports no TensorFlow.

It runs in the server for small requests, and in a second process for large ones (`process`).
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from google.protobuf.message import DecodeError

from official_bert.server.protocols.tensorflow_serving import rest_json
from official_bert.server.requests.request_checks import Limits, check_all_strings, check_declared, check_strings
from official_bert.server.statuses import RequestError, invalid
from official_bert.server.tensors import Arrays, Specs, TensorSpec, declared_shape, read_tensor, type_name

DEFAULT_SIGNATURE = "serving_default"
MOST_OUTPUTS = 1000  # that a gRPC request may name


class ModelAddress(NamedTuple):
    """The model that a request asks for, and its version: by number, by label, or (neither) the highest."""

    name: str = ""
    version: int | None = None
    label: str | None = None

    @classmethod
    def of(cls, spec: Any) -> "ModelAddress":
        """Returns the address in a `ModelSpec`."""
        choice = spec.WhichOneof("version_choice")
        return cls(
            spec.name,
            spec.version.value if choice == "version" else None,
            spec.version_label if choice == "version_label" else None,
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Reading:
    """A parsed request."""

    inputs: Arrays
    signature: str = ""
    # not set if the path of a REST request names the model
    address: ModelAddress = dataclasses.field(default_factory=ModelAddress)
    is_rows: bool = False  # REST: whether it came, and is answered, in row form
    outputs: Sequence[str] = ()  # names of those that are answered; none: all
    # what else a protocol's request says, of JSON's types
    more: Mapping[str, Any] = dataclasses.field(default_factory=dict)


def read_rest(body: bytes, limits: Limits, signatures: Mapping[str, Specs]) -> Reading:
    """Reads a JSON body for a model with these signatures (specs may be lists, as in JSON).

    Raises RequestError if the body is invalid or the signature unknown.
    """
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
    """Reads a serialized `PredictRequest`, whose class is `message`. Raises RequestError if it is invalid.

    Checks the sizes that tensors declare before it expands them.
    """
    request = parse_message(message, data, "output_filter")
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


def parse_message(message: Any, data: bytes, names: str) -> Any:
    """Parses a message of a class, with at most `MOST_OUTPUTS` names in its field `names`.

    Raises RequestError; INTERNAL for bytes that are no such message, as TF Serving does.
    """
    try:
        request = message.FromString(data)
    except DecodeError:
        raise RequestError("INTERNAL", f"not a {message.DESCRIPTOR.full_name}") from None
    if (count := len(getattr(request, names))) > MOST_OUTPUTS:
        raise invalid(f"expected at most {MOST_OUTPUTS} names of outputs, got {count}")
    return request
