"""TF Serving's REST interface, and beside it a page to try models, a list of them, health and metrics.

    POST /v1/models/NAME[/versions/N|/labels/L]:predict
    GET  /v1/models/NAME[/versions/N|/labels/L][/metadata]
    GET  /  /v1/models  /healthz  /monitoring/prometheus/metrics
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

from official_bert.server import grpc_service, page, rest_json
from official_bert.server.request_handler import ModelAddress, RequestHandler
from official_bert.server.statuses import HTTP_STATUS, RequestError, invalid

LOG = logging.getLogger("official_bert.server")
MODEL = r"/v1/models/(?P<name>[^/:]+)(?:/versions/(?P<version>[0-9]+)|/labels/(?P<label>[^/:]+))?"
PREDICT = re.compile(MODEL + ":(?P<method>classify|regress|predict)", re.IGNORECASE)
STATUS = re.compile(MODEL + "(?P<metadata>/metadata)?", re.IGNORECASE)
MOST_VERSION = (1 << 63) - 1


class RestService:
    """The HTTP application over a RequestHandler. `metrics_path` is empty where there are to be no metrics."""

    def __init__(self, handler: RequestHandler, metrics_path: str, timeout_seconds: float):
        self.handler, self.metrics_path, self.timeout_seconds = handler, metrics_path, timeout_seconds

    def make_app(self) -> web.Application:
        """The application: one route, since TF Serving's paths have colons in odd places."""
        app = web.Application(client_max_size=self.handler.limits.max_request_bytes)
        app.router.add_route("*", "/{path:(?s:.*)}", self.answer)
        return app

    async def answer(self, request: web.Request) -> web.Response:
        """Any request; what goes wrong in it becomes a status and `{"error": ...}`, never a broken server."""
        try:
            async with asyncio.timeout(self.timeout_seconds):
                return await self._dispatch(request)
        except RequestError as error:
            return _error(HTTP_STATUS[error.code], error.message)
        except TimeoutError:
            return _error(504, f"no answer within {self.timeout_seconds:g} s")
        except web.HTTPRequestEntityTooLarge:
            return _error(413, f"expected a body of at most {self.handler.limits.max_request_bytes} bytes")
        except (web.HTTPException, ConnectionError):
            raise
        except Exception:
            LOG.exception("%s %s", request.method, request.path)
            return _error(500, "internal error; the server's log says more")

    async def _dispatch(self, request: web.Request) -> web.Response:
        path = request.rel_url.raw_path
        if request.method == "POST" and (match := PREDICT.fullmatch(path)):
            return await self._predict(request, match)
        if request.method in ("GET", "HEAD"):
            if match := STATUS.fullmatch(path):
                return self._model(match)
            if response := self._other(path):
                return response
        if path.lower().startswith("/v1/"):
            raise invalid(f"Malformed request: {request.method} {path}")
        raise RequestError("NOT_FOUND", f"Nothing at {path}")

    def _other(self, path: str) -> web.Response | None:
        """What TF Serving has not (a page, health, the list of models), and metrics."""
        if path == "/":
            return web.Response(text=page.read(), content_type="text/html", charset="utf-8", headers=page.headers())
        if path == "/healthz":
            return self._health()
        if path == "/v1/models":
            return _json(json.dumps({"models": sorted(self.handler.manager.models)}).encode())
        if path == self.metrics_path:
            return web.Response(body=self.handler.metrics.page(), headers={"Content-Type": "text/plain; version=0.0.4"})
        return None

    def _health(self) -> web.Response:
        """200 where every model answers; 503 before that, and while the server stops."""
        waiting = ["the server is stopping"] if self.handler.is_draining else self.handler.manager.errors()
        return _error(503, "; ".join(waiting)) if waiting else _json(b'{"status": "ok"}')

    async def _predict(self, request: web.Request, match: re.Match) -> web.Response:
        address, method = _address(match), match["method"].lower()
        with self.handler.admitted(address.name, method.capitalize(), "REST"):
            if method != "predict":
                raise RequestError("UNIMPLEMENTED", f"{method}: not served here; send the same Examples to :predict with "
                                                    '"signature_name": "examples"')
            body = rest_json.parse_body(await request.read())
            is_rows = False

            def read(signature: Any) -> Any:
                nonlocal is_rows
                inputs, is_rows = rest_json.read_inputs(body, signature)
                return inputs

            answer = await self.handler.predict(address, rest_json.signature_name(body), read)
            return _json(rest_json.format_outputs(answer.outputs, is_rows))

    def _model(self, match: re.Match) -> web.Response:
        """A model's status or metadata."""
        address = _address(match)
        if match["metadata"]:
            with self.handler.admitted(address.name, "GetModelMetadata", "REST"):
                return _json(_metadata_json(grpc_service.metadata(self.handler, address)))
        return _json(_proto_json(grpc_service.status(self.handler.statuses(address))))


def _address(match: re.Match) -> ModelAddress:
    """Which model a path means."""
    version = int(match["version"]) if match["version"] else None
    if version is not None and version > MOST_VERSION:
        raise invalid(f"Failed to convert version: {match['version'][:40]} to numeric.")
    return ModelAddress(urllib.parse.unquote(match["name"]), version, urllib.parse.unquote(match["label"] or ""))


def _metadata_json(response: Any) -> bytes:
    """A `GetModelMetadataResponse` as TF Serving writes it: without the `@type` of what is packed in it."""
    signatures = get_model_metadata_pb2.SignatureDefMap()
    response.metadata[grpc_service.SIGNATURES].Unpack(signatures)
    return (b'{\n"model_spec":' + _proto_json(response.model_spec) + b',\n"metadata": {"signature_def": '
            + _proto_json(signatures) + b"}\n}\n")


def _proto_json(message: Any) -> bytes:
    return json_format.MessageToJson(message, preserving_proto_field_name=True,
                                     always_print_fields_with_no_presence=True).encode("utf-8")


def _json(body: bytes) -> web.Response:
    return web.Response(body=body, content_type="application/json")


def _error(status: int, message: str) -> web.Response:
    headers = {"Retry-After": "1"} if status in (429, 503) else {}
    return web.Response(body=json.dumps({"error": message}).encode("utf-8"), status=status, headers=headers,
                        content_type="application/json")
