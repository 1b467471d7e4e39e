"""The ports of REST and gRPC. They open before TensorFlow is imported, which takes seconds.

So a port that is in use is an error at once, and probes get answers. Until the services are ready, the ports answer
health checks and refuse other requests with UNAVAILABLE. This module does not import TensorFlow.
"""

import asyncio
import contextlib
import errno
import os
import socket
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import grpc
from aiohttp import web
from grpc_health.v1 import health_pb2_grpc

from official_bert.server.listeners import page
from official_bert.server.listeners.access import AccessRules
from official_bert.server.listeners.connections import Connections, Handler
from official_bert.server.listeners.gates import AccessLog, GrpcGate, Tls, rest_gate
from official_bert.server.listeners.grpc_health import Health, Readiness
from official_bert.server.memory import give_back
from official_bert.server.server_config import ServerOptions
from official_bert.server.statuses import RequestError

# A connection may hold so many requests at once (its client lets others wait), with so many bytes of headers each: what
# a flood of headers can take is the product. (nginx does not follow a client's smaller table of headers.)
STREAMS, HEADER_BYTES = 16, 8 << 10
OLDEST_MILLISECONDS = 30 * 60_000  # then its client is asked to reconnect: no unfinished message is kept forever
ALIVE = {"/healthz": {"status": "ok"}, "/v2/health/live": {"live": True}}


class Starting:
    """Answers requests until the request handler exists."""

    is_leaving = is_draining = False

    def why_not_ready(self) -> str:
        """Returns the reason why the server is not ready."""
        return "the server is starting: TensorFlow is being imported"

    async def answer(self, request: web.BaseRequest) -> web.StreamResponse:
        """Answers liveness checks and the page. Raises RequestError UNAVAILABLE for other requests."""
        if request.path in ALIVE:
            return web.json_response(ALIVE[request.path])
        if request.path == "/" and request.method in ("GET", "HEAD"):
            return page.response()
        raise RequestError("UNAVAILABLE", self.why_not_ready())


class Ports:
    """The open ports. They listen from `open` to `close`, and answer requests after `serve`."""

    def __init__(self, options: ServerOptions):
        self.options = options
        self.rest_port: int | None = None
        self.grpc_port: int | None = None
        self.readiness: Readiness = Starting()
        self._answer: Handler = Starting().answer
        self._grpc: Any = None
        self._access = options.access or AccessRules.for_server(options.host)
        self._tls = Tls.read(options.tls_certificate_file, options.tls_key_file)
        self._access_log = AccessLog(options.access_log)
        self._stack = contextlib.ExitStack()
        self._stack.callback(self._access_log.close)
        self._listening: list[Callable[[], Awaitable[None]]] = []  # how to stop it

    async def open(self) -> None:
        """Opens the ports. Raises OSError that names the flag if a port or host is not available."""
        gate = rest_gate(self._access, self._access_log)

        async def answer(request: web.BaseRequest) -> web.StreamResponse:
            response = await gate(request, self._answer)
            if self.readiness.is_leaving:  # so that a balancer's next request goes elsewhere
                response.force_close()
            return response

        self.connections = Connections(answer, self.options.limits)
        for start, port in ((self._open_rest, self.options.rest_port), (self._open_grpc, self.options.grpc_port)):
            if port is not None:
                await start(port)

    def serve(self, answer: Handler, grpc_services: Sequence[Callable[[Any], Any]], readiness: Readiness) -> None:
        """Starts answering requests: REST by `answer`, gRPC by services that each of `grpc_services` adds to the
        server.
        """
        for add_to in grpc_services if self._grpc is not None else ():
            add_to(self._grpc)
        self._answer, self.readiness = answer, readiness

    async def close(self) -> None:
        """Closes REST and gRPC together, when their running requests are answered or after `drain_seconds`."""
        await asyncio.gather(*(stop() for stop in self._listening))
        self._stack.close()

    def addresses(self) -> str:
        """Returns a line with the addresses on which the server listens."""
        scheme = "https" if self._tls else "http"
        rest = f"REST and a page to try it: {scheme}://{self._host}:{self.rest_port}" if self.rest_port else ""
        return "; ".join(filter(None, [rest, f"gRPC: {self._host}:{self.grpc_port}" if self.grpc_port else ""]))

    @property
    def _host(self) -> str:
        """Returns the host as it is written before a port: IPv6 in brackets."""
        return f"[{self.options.host}]" if ":" in self.options.host else self.options.host

    async def _open_rest(self, port: int) -> None:
        try:
            server = await asyncio.get_running_loop().create_server(
                self.connections,
                self.options.host,
                port,
                ssl=self._tls.context if self._tls else None,
                ssl_handshake_timeout=self.options.limits.keepalive_seconds if self._tls else None,
            )
        except OSError as error:
            raise self._cannot_listen("rest_api_port", port, error) from None
        self.rest_port = server.sockets[0].getsockname()[1]

        async def stop() -> None:
            server.close()
            self.connections.pre_shutdown()  # ends connections without a request
            try:
                async with asyncio.timeout(self.options.drain_seconds):
                    await self.connections.shutdown(self.options.drain_seconds)
            except TimeoutError:
                self.connections.abort()

        self._listening.append(stop)

    async def _open_grpc(self, port: int) -> None:
        try:  # gRPC itself would not give the reason, and print lines of its own
            family, _, _, _, place = socket.getaddrinfo(self.options.host, port, type=socket.SOCK_STREAM)[0]
            socket.create_server(place[:2], family=family).close()
        except OSError as error:
            raise self._cannot_listen("port", port, error) from None
        limits = self.options.limits
        server = grpc.aio.server(
            interceptors=[GrpcGate(self._access, self._access_log)],
            options=[
                ("grpc.max_receive_message_length", limits.max_request_bytes),
                ("grpc.max_send_message_length", -1),
                ("grpc.so_reuseport", 0),
                ("grpc.max_allowed_incoming_connections", limits.max_connections),
                ("grpc.server_handshake_timeout_ms", int(1000 * limits.keepalive_seconds)),
                ("grpc.max_connection_idle_ms", int(1000 * limits.keepalive_seconds)),
                ("grpc.max_connection_age_ms", OLDEST_MILLISECONDS),
                ("grpc.max_connection_age_grace_ms", int(1000 * self.options.max_run_seconds)),
                ("grpc.max_concurrent_streams", min(STREAMS, limits.max_concurrent_requests)),
                ("grpc.max_metadata_size", HEADER_BYTES),
                ("grpc.absolute_max_metadata_size", HEADER_BYTES),
            ],
        )
        health_pb2_grpc.add_HealthServicer_to_server(Health(lambda: self.readiness), server)
        server.add_generic_rpc_handlers([_ComeAgain(self)])
        address = f"{self._host}:{port}"
        self.grpc_port = (
            server.add_secure_port(address, self._tls.credentials) if self._tls else server.add_insecure_port(address)
        )
        await server.start()
        self._grpc = server
        self._stack.callback(asyncio.create_task(give_back()).cancel)
        self._listening.append(lambda: server.stop(self.options.drain_seconds))

    def _cannot_listen(self, flag: str, port: int, error: OSError) -> OSError:
        """Returns the error for a port or host that is not available.

        Errors of the name resolver have negative numbers.
        """
        reason = os.strerror(error.errno) if error.errno and error.errno > 0 else error.strerror
        if error.errno in (errno.EADDRINUSE, errno.EACCES):
            return OSError(f"--{flag}={port}: cannot listen on {self._host}:{port}: {reason}; 0 takes a free port")
        return OSError(f"--host={self.options.host}: cannot listen there: {reason}")


class _ComeAgain(grpc.GenericRpcHandler):
    """Refuses every gRPC call with UNAVAILABLE until the services are ready."""

    def __init__(self, ports: Ports):
        self._ports = ports

    def service(self, handler_call_details: Any) -> Any:
        """Returns the handler that refuses a call; None once the services are ready."""
        starting = self._ports.readiness
        if not isinstance(starting, Starting):
            return None

        async def refuse(request: bytes, context: Any) -> Any:
            raise RequestError("UNAVAILABLE", starting.why_not_ready())

        return grpc.unary_unary_rpc_method_handler(refuse, bytes)
