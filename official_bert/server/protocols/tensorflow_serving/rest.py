"""TF Serving's REST interface.

POST /v1/models/NAME[/versions/N|/labels/L]:predict
GET  /v1/models/NAME[/versions/N|/labels/L][/metadata]
"""

import re
import urllib.parse
from typing import Any

from aiohttp import web
from google.protobuf import json_format
from tensorflow_serving.apis import get_model_metadata_pb2

from official_bert.server.protocols.kserve.tensors import MOST_VERSION
from official_bert.server.protocols.rest_protocol import RestProtocol, Route, json_response
from official_bert.server.protocols.tensorflow_serving import grpc_service, rest_json
from official_bert.server.requests.reading import ModelAddress
from official_bert.server.statuses import RequestError, invalid

MODEL = r"/v1/models/(?P<name>[^/:]+)(?:/versions/(?P<version>[0-9]+)|/labels/(?P<label>[^/:]+))?"
PREDICT = re.compile(MODEL + ":(?P<method>classify|regress|predict)", re.IGNORECASE)
STATUS = re.compile(MODEL + "(?P<metadata>/metadata)?", re.IGNORECASE)


class TensorFlowServing(RestProtocol):
    """Answers TF Serving's requests for the model in the address."""

    def route(self, method: str, path: str) -> Route | None:
        """Returns the handler of an address for predictions, status or metadata; None for other addresses."""
        match = {"POST": PREDICT, "GET": STATUS}[method].fullmatch(path) if method in ("POST", "GET") else None
        answer = self._predict if method == "POST" else self._describe
        return (lambda request, deadline: answer(request, match, deadline)) if match else None

    async def _predict(self, request: web.BaseRequest, match: re.Match, deadline: float | None) -> web.StreamResponse:
        address, method = _address(match), match["method"].lower()
        async with self.admitted(request, method.capitalize(), deadline, address.name) as (body, _):
            if method != "predict":
                raise RequestError(
                    "UNIMPLEMENTED",
                    f'{method}: not served here; send the same Examples to :predict with "signature_name": "examples"',
                )
            async with self.handler.using(*address) as servable:
                reading = await self.handler.reader.read("predict_rest", body, signatures=servable.input_specs)
                answer = await self.handler.predict(servable, reading, deadline)
            return await self.respond(
                request,
                answer,
                lambda: rest_json.format_outputs(answer.outputs, reading.is_rows, self.handler.limits.max_answer_bytes),
            )

    async def _describe(self, request: web.BaseRequest, match: re.Match, deadline: float | None) -> web.StreamResponse:
        """Answers with a model's status or its metadata."""
        address = _address(match)
        if match["metadata"]:
            with self.handler.admitted(address.name, "GetModelMetadata", "REST"):
                return json_response(_metadata(*await grpc_service.metadata(self.handler, address)))
        return json_response(_to_dict(grpc_service.status(self.handler.statuses(address))))


def _address(match: re.Match) -> ModelAddress:
    """Returns the address of the model in a path."""
    digits = match["version"] and (match["version"].lstrip("0") or "0")
    # Python reads no number of 5,000 digits
    if digits and (len(digits) > len(str(MOST_VERSION)) or int(digits) > MOST_VERSION):
        raise invalid(f"Failed to convert version: {match['version'][:40]} to numeric.")
    version = int(digits) if digits else None
    label = urllib.parse.unquote(match["label"]) if match["label"] else None
    return ModelAddress(urllib.parse.unquote(match["name"]), version, label)


def _metadata(response: Any, more: dict[str, Any]) -> dict[str, Any]:
    """Returns a `GetModelMetadataResponse` as JSON in TF Serving's form, without the `@type` of the packed message.

    An additional field, `official_bert`, has the names of the model's classes and the notes of its export.
    """
    signatures = get_model_metadata_pb2.SignatureDefMap()
    response.metadata[grpc_service.SIGNATURES].Unpack(signatures)
    return {
        "model_spec": _to_dict(response.model_spec),
        "metadata": {"signature_def": _to_dict(signatures)},
        **({"official_bert": more} if more else {}),
    }


def _to_dict(message: Any) -> dict[str, Any]:
    return json_format.MessageToDict(
        message, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
    )
