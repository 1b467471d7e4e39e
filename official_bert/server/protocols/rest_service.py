"""REST: all protocols on one port, and besides the page to try models, the list of models, health and metrics.

GET  /  /v1/models  /healthz  /readyz  /monitoring/prometheus/metrics
"""

import asyncio
import logging

from aiohttp import web

from official_bert.server.listeners import page
from official_bert.server.listeners.connections import Connections
from official_bert.server.listeners.gates import error_response
from official_bert.server.protocols.kserve.rest import KServe
from official_bert.server.protocols.openai import OpenAI
from official_bert.server.protocols.rest_protocol import json_response
from official_bert.server.protocols.tensorflow_serving.rest import TensorFlowServing
from official_bert.server.protocols.text_embeddings import TextEmbeddings
from official_bert.server.requests.request_handler import RequestHandler
from official_bert.server.statuses import RequestError, invalid

LOG = logging.getLogger("official_bert.server")
PROTOCOLS = (TensorFlowServing, OpenAI, TextEmbeddings, KServe)  # an address is of one of them
OK = {"status": "ok"}
GRACE_SECONDS = 0.1  # so that a request in a queue or in the model gets the status of its own deadline


class RestService:
    """REST over a RequestHandler. An empty `metrics_path` disables metrics."""

    def __init__(
        self,
        handler: RequestHandler,
        connections: Connections,
        metrics_path: str,
        timeout_seconds: float,
        default_model: str = "",
    ):
        self.handler, self.metrics_path, self.timeout_seconds = handler, metrics_path, timeout_seconds
        self.protocols = [protocol(handler, connections, default_model) for protocol in PROTOCOLS]

    async def answer(self, request: web.BaseRequest) -> web.StreamResponse:
        """Answers any request. Raises RequestError, which `rest_gate` turns into a response, if it fails."""
        try:
            deadline = asyncio.get_running_loop().time() + self.timeout_seconds
            async with asyncio.timeout_at(deadline + GRACE_SECONDS):
                return await self._dispatch(request, deadline)
        except TimeoutError:
            raise RequestError("DEADLINE_EXCEEDED", f"no answer within {self.timeout_seconds:g} s") from None
        except web.HTTPRequestEntityTooLarge:
            return error_response(
                413, f"expected a body of at most {self.handler.limits.max_request_bytes} bytes", request.path
            )
        except (RequestError, web.HTTPException, ConnectionError):  # the gate, aiohttp and nobody answer these
            raise
        except Exception:
            LOG.exception("%s %s", request.method, request.path)
            raise RequestError("INTERNAL", "internal error; the server's log says more") from None

    async def _dispatch(self, request: web.BaseRequest, deadline: float | None) -> web.StreamResponse:
        path = request.rel_url.raw_path
        method = "GET" if request.method == "HEAD" else request.method
        for protocol in self.protocols:
            if answer := protocol.route(method, path):
                return await answer(request, deadline)
        if method == "GET" and (response := self._other(path)):
            return response
        if path.lower().startswith("/v1/"):
            raise invalid(f"Malformed request: {request.method} {path}")
        raise RequestError("NOT_FOUND", f"Nothing at {path}")

    def _other(self, path: str) -> web.Response | None:
        """Answers the addresses that belong to no protocol: page, health, list of models, metrics. None for others."""
        if path == "/":
            return page.response()
        if path == "/healthz":  # alive: it answers at all
            return json_response(OK)
        if path == "/readyz":  # 503 until every model answers, and while the server stops
            waiting = self.handler.why_not_ready()
            return error_response(503, waiting) if waiting else json_response(OK)
        if path == "/v1/models":
            names = sorted(self.handler.manager.models)
            cards = [{"id": name, "object": "model", "created": 0, "owned_by": "official_bert"} for name in names]
            return json_response({"models": names, "object": "list", "data": cards})  # the last two: OpenAI's list
        if path == self.metrics_path:
            return web.Response(body=self.handler.metrics.page(), headers={"Content-Type": "text/plain; version=0.0.4"})
        return None
