"""TF Serving's REST interface, and beside it a page to try models, a list of them, health and metrics.

    POST /v1/models/NAME[/versions/N|/labels/L]:predict
    GET  /v1/models/NAME[/versions/N|/labels/L][/metadata]
    GET  /  /v1/models  /healthz  /readyz  /monitoring/prometheus/metrics

Other protocols (`protocols/`) stand on the same port; an address is of one of them.
"""

import asyncio
import json
import logging
import re
import urllib.parse
from typing import Any

from aiohttp import web
from google.protobuf import json_format
from tensorflow_serving.apis import get_model_metadata_pb2

from official_bert.server import page
from official_bert.server.connections import Connections, unpack
from official_bert.server.gates import error_response
from official_bert.server.protocols.kserve.rest import KServe
from official_bert.server.protocols.openai import OpenAI
from official_bert.server.protocols.tensorflow_serving import grpc_service, rest_json
from official_bert.server.protocols.text_embeddings import TextEmbeddings
from official_bert.server.request_handler import ModelAddress, RequestHandler
from official_bert.server.statuses import HTTP_STATUS, RequestError, invalid

LOG = logging.getLogger("official_bert.server")
MODEL = r"/v1/models/(?P<name>[^/:]+)(?:/versions/(?P<version>[0-9]+)|/labels/(?P<label>[^/:]+))?"
PREDICT = re.compile(MODEL + ":(?P<method>classify|regress|predict)", re.IGNORECASE)
STATUS = re.compile(MODEL + "(?P<metadata>/metadata)?", re.IGNORECASE)
MOST_VERSION = (1 << 63) - 1
OK = b'{"status": "ok"}'
GRACE_SECONDS = 0.1  # so that a request in a queue or in the model gets the status of its own deadline


class RestService:
    """REST over a RequestHandler, behind a gate. An empty `metrics_path` means no metrics."""

    def __init__(self, handler: RequestHandler, metrics_path: str, timeout_seconds: float, gate: Any, default_model: str = ""):
        self.handler, self.metrics_path, self.timeout_seconds = handler, metrics_path, timeout_seconds
        self.connections = Connections(lambda request: gate(request, self.answer), handler.limits)
        self.protocols = [kind(handler, self.connections, default_model) for kind in (OpenAI, TextEmbeddings, KServe)]

    async def answer(self, request: web.BaseRequest) -> web.StreamResponse:
        """Answers any request; what goes wrong in it becomes a status and `{"error": ...}`, never a broken server."""
        try:
            deadline = asyncio.get_running_loop().time() + self.timeout_seconds
            async with asyncio.timeout_at(deadline + GRACE_SECONDS):
                return await self._dispatch(request, deadline)
        except RequestError as error:
            return error_response(HTTP_STATUS[error.code], error.message, request.path)
        except TimeoutError:
            return error_response(504, f"no answer within {self.timeout_seconds:g} s", request.path)
        except web.HTTPRequestEntityTooLarge:
            return error_response(413, f"expected a body of at most {self.handler.limits.max_request_bytes} bytes", request.path)
        except (web.HTTPException, ConnectionError):
            raise
        except Exception:
            LOG.exception("%s %s", request.method, request.path)
            return error_response(500, "internal error; the server's log says more", request.path)

    async def _dispatch(self, request: web.BaseRequest, deadline: float | None) -> web.StreamResponse:
        path = request.rel_url.raw_path
        if request.method == "POST" and (match := PREDICT.fullmatch(path)):
            return await self._predict(request, match, deadline)
        for protocol in self.protocols:
            if answer := protocol.route("GET" if request.method == "HEAD" else request.method, path):
                return await answer(request, deadline)
        if request.method in ("GET", "HEAD"):
            if match := STATUS.fullmatch(path):
                return self._model(match)
            if response := self._other(path):
                return response
        if path.lower().startswith("/v1/"):
            raise invalid(f"Malformed request: {request.method} {path}")
        raise RequestError("NOT_FOUND", f"Nothing at {path}")

    def _other(self, path: str) -> web.Response | None:
        """Answers what TF Serving lacks (a page, health, the list of models), and metrics."""
        if path == "/":
            return web.Response(text=page.read(), content_type="text/html", charset="utf-8", headers=page.headers())
        if path == "/healthz":  # alive: it answers at all
            return _json(OK)
        if path == "/readyz":
            return self._readiness()
        if path == "/v1/models":
            names = sorted(self.handler.manager.models)
            cards = [{"id": name, "object": "model", "created": 0, "owned_by": "official_bert"} for name in names]
            return _json(json.dumps({"models": names, "object": "list", "data": cards}).encode())  # the last two: OpenAI's list
        if path == self.metrics_path:
            return web.Response(body=self.handler.metrics.page(), headers={"Content-Type": "text/plain; version=0.0.4"})
        return None

    def _readiness(self) -> web.Response:
        """200 if every model answers; 503 before that, and while the server stops."""
        waiting = self.handler.why_not_ready()
        return error_response(503, waiting) if waiting else _json(OK)

    async def _predict(self, request: web.BaseRequest, match: re.Match, deadline: float | None) -> web.StreamResponse:
        address, method = _address(match), match["method"].lower()
        body = await self.connections.read_body(request)
        with (self.connections.working(request), self.handler.admitted(address.name, method.capitalize(), "REST", deadline)):
            if method != "predict":
                raise RequestError("UNIMPLEMENTED", f"{method}: not served here; send the same Examples to :predict with "
                                                    '"signature_name": "examples"')
            if "gzip" in request.headers.get("Content-Encoding", ""):  # TF Serving ignores other encodings
                body = await asyncio.to_thread(unpack, body, self.handler.limits.max_request_bytes)
            answer = await self.handler.predict(address, lambda servable: self.handler.reader.rest(body, servable.input_specs), deadline)
            most = self.handler.limits.max_answer_bytes
            if not answer.is_large:
                return _json(rest_json.format_outputs(answer.outputs, answer.is_rows, most))
            written = await asyncio.to_thread(rest_json.format_outputs, answer.outputs, answer.is_rows, most)
            return self.connections.response(request, written)

    def _model(self, match: re.Match) -> web.Response:
        """Answers with a model's status or metadata."""
        address = _address(match)
        if match["metadata"]:
            with self.handler.admitted(address.name, "GetModelMetadata", "REST"):
                return _json(_metadata_json(*grpc_service.metadata(self.handler, address)))
        return _json(_proto_json(grpc_service.status(self.handler.statuses(address))))


def _address(match: re.Match) -> ModelAddress:
    """Reads which model a path means."""
    digits = match["version"] and (match["version"].lstrip("0") or "0")
    if digits and (len(digits) > len(str(MOST_VERSION)) or int(digits) > MOST_VERSION):  # Python reads no number of 5,000 digits
        raise invalid(f"Failed to convert version: {match['version'][:40]} to numeric.")
    version = int(digits) if digits else None
    label = urllib.parse.unquote(match["label"]) if match["label"] else None
    return ModelAddress(urllib.parse.unquote(match["name"]), version, label)


def _metadata_json(response: Any, labels: list[str]) -> bytes:
    """Writes a `GetModelMetadataResponse` as TF Serving does: without the `@type` of the packed message.

    A model with names for its classes has one more field, `official_bert`.
    """
    signatures = get_model_metadata_pb2.SignatureDefMap()
    response.metadata[grpc_service.SIGNATURES].Unpack(signatures)
    labels_json = b',\n"official_bert": ' + json.dumps({"labels": labels}).encode("utf-8") if labels else b""
    return (b'{\n"model_spec":' + _proto_json(response.model_spec) + b',\n"metadata": {"signature_def": '
            + _proto_json(signatures) + b"}" + labels_json + b"\n}\n")


def _proto_json(message: Any) -> bytes:
    return json_format.MessageToJson(message, preserving_proto_field_name=True, always_print_fields_with_no_presence=True).encode("utf-8")


def _json(body: bytes) -> web.Response:
    return web.Response(body=body, content_type="application/json")
