"""KServe's V2 protocol over REST, with the binary tensor extension.

GET  /v2  /v2/health/live  /v2/health/ready  /v2/models/NAME[/versions/N][/ready]
POST /v2/models/NAME[/versions/N]/infer
"""

import re
import urllib.parse
from typing import Any

from aiohttp import web

from official_bert.server.protocols.kserve.tensors import DATATYPES, address_of, format_answer
from official_bert.server.protocols.rest_protocol import RestProtocol, Route, json_response
from official_bert.server.requests.reading import ModelAddress
from official_bert.server.requests.request_handler import RequestHandler
from official_bert.server.statuses import RequestError, invalid
from official_bert.server.tensors import Specs

HEADER = "Inference-Header-Content-Length"
MODEL = re.compile(r"/v2/models/(?P<name>[^/]+)(?:/versions/(?P<version>[^/]+))?(?P<method>/ready|/infer)?")
EXTENSIONS = ("binary_tensor_data",)
PLATFORM = "tensorflow_savedmodel"


class KServe(RestProtocol):
    """Answers KServe's requests for the model in the address."""

    def route(self, method: str, path: str) -> Route | None:
        """Returns the handler of an address for health, metadata or inference; None for other addresses."""
        if match := MODEL.fullmatch(path):
            if (method == "POST") == (match["method"] == "/infer"):
                answer = {"/infer": self._infer, "/ready": self._model_ready, None: self._metadata}[match["method"]]
                name, version = (urllib.parse.unquote(match[group] or "") for group in ("name", "version"))
                return lambda request, deadline: answer(request, address_of(name, version), deadline)
            return None
        return (
            {
                "/v2": self._server,
                "/v2/": self._server,
                "/v2/health/live": self._live,
                "/v2/health/ready": self._ready,
            }.get(path)
            if method == "GET"
            else None
        )

    async def _server(self, *_: Any) -> web.StreamResponse:
        return json_response({"name": "official_bert", "version": "2", "extensions": EXTENSIONS})

    async def _live(self, *_: Any) -> web.StreamResponse:
        return json_response({"live": True})

    async def _ready(self, *_: Any) -> web.StreamResponse:
        if waiting := self.handler.why_not_ready():
            raise RequestError("UNAVAILABLE", waiting)
        return json_response({"ready": True})

    async def _model_ready(
        self, request: web.BaseRequest, address: ModelAddress, deadline: float | None
    ) -> web.StreamResponse:
        async with self.handler.using(*address):
            return json_response({"name": address.name, "ready": True})

    async def _metadata(
        self, request: web.BaseRequest, address: ModelAddress, deadline: float | None
    ) -> web.StreamResponse:
        with self.handler.admitted(address.name, "ModelMetadata", "REST"):
            return json_response(await metadata(self.handler, address))

    async def _infer(
        self, request: web.BaseRequest, address: ModelAddress, deadline: float | None
    ) -> web.StreamResponse:
        header = request.headers.get(HEADER)
        if header is not None and not (header.isascii() and header.isdecimal() and len(header) < 16):
            raise invalid(f"{HEADER}: expected a number of bytes, got {header!r:.40}")
        async with self.reading(
            request, "ModelInfer", "kserve_rest", deadline, address.name, header=None if header is None else int(header)
        ) as reading:
            answer = await self.predict(address, reading, deadline)
            head = {"model_name": address.name, "model_version": str(answer.version)}
            if reading.more["id"]:
                head["id"] = reading.more["id"]
            binary = list(answer.outputs) if reading.more["all_binary"] else reading.more["binary"]
            size: list[int | None] = []

            def write() -> bytes:
                body, length = format_answer(head, answer.outputs, binary)
                size.append(length)
                return body

            response = await self.respond(
                request, answer, write, "application/octet-stream" if binary else "application/json"
            )
            if size[0] is not None:
                response.headers[HEADER] = str(size[0])
            return response


async def metadata(handler: RequestHandler, address: ModelAddress) -> dict[str, Any]:
    """Returns a model's versions and the tensors of its default signature, in KServe's form. Raises RequestError."""
    async with handler.using(*address) as servable:
        signature = servable.signature("")
        versions = [
            str(entry.number)
            for entry in handler.manager.statuses(address.name, address.version)
            if entry.state == "AVAILABLE"
        ]
        return {
            "name": address.name,
            "versions": versions,
            "platform": PLATFORM,
            "inputs": _tensors(signature.inputs),
            "outputs": _tensors(signature.outputs),
        }


def _tensors(specs: Specs) -> list[dict[str, Any]]:
    """Returns names, types and shapes. A size of -1 means any; the shape [-1] also stands for an unknown rank."""
    return [
        {
            "name": name,
            "datatype": DATATYPES.get(spec.dtype, (spec.dtype,))[0],
            "shape": [-1] if spec.shape is None else [-1 if size is None else size for size in spec.shape],
        }
        for name, spec in specs.items()
    ]
