"""Checks that every REST and gRPC request passes: access control and framing.

Also request ids, access log and errors.
"""

from official_bert.command_line import require_here

import asyncio
import dataclasses
import datetime
import json
import logging
import logging.handlers
import re
import ssl
import sys
import time
import uuid
from collections.abc import Awaitable, Callable
from typing import Any

import grpc
from aiohttp import web
from google.protobuf.message import DecodeError

from official_bert.server.listeners.access import AccessRules, accepts
from official_bert.server.protocols.error_forms import error_body
from official_bert.server.protocols.kserve.messages import SERVICE
from official_bert.server.requests.process import LARGE_BYTES
from official_bert.server.statuses import HTTP_STATUS, RequestError, invalid
from official_bert.storage.stores import locate

Handler = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]
REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")
ID_HEADER = "X-Request-Id"
# GET without a token: what a probe asks, and the page, which holds nothing.
OPEN_PATHS = ("/", "/healthz", "/readyz", "/health", "/v2/health/live", "/v2/health/ready")
HEALTH = ("/grpc.health.v1.Health/", f"/{SERVICE}/ServerLive", f"/{SERVICE}/ServerReady")
# where a large message holds up nobody
READ_LATER = ("/tensorflow.serving.PredictionService/Predict", f"/{SERVICE}/ModelInfer")
CORS_SECONDS = 600  # that a browser remembers an answer to its preflight


@dataclasses.dataclass(frozen=True)
class Tls:
    """A certificate with its key, for REST (`context`) and for gRPC (`credentials`)."""

    context: ssl.SSLContext
    credentials: grpc.ServerCredentials

    @classmethod
    def read(cls, certificate_file: str, key_file: str) -> "Tls | None":
        """Reads a certificate and its key (PEM); returns None if neither is named.

        Raises ValueError if only one is named, or if the files are no matching pair.
        """
        if not certificate_file and not key_file:
            return None
        if not certificate_file or not key_file:
            raise ValueError("expected both --tls_certificate_file and --tls_key_file, or neither")
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        try:
            certificate_file, key_file = locate(certificate_file).fetch(), locate(key_file).fetch()
            context.load_cert_chain(certificate_file, key_file, password="")
            with open(certificate_file, "rb") as certificate, open(key_file, "rb") as key:
                return cls(context, grpc.ssl_server_credentials([(key.read(), certificate.read())]))
        except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
            reason = getattr(error, "reason", None) or getattr(error, "strerror", None) or error
            raise ValueError(
                f"--tls_certificate_file={certificate_file}, --tls_key_file={key_file}: expected a certificate and "
                f"its unencrypted key (PEM): {reason}"
            ) from None


class AccessLog:
    """Writes a JSON object for each request to a file (`-`: standard error; empty: none).

    A file that was moved away is made again.
    """

    def __init__(self, path: str = ""):
        require_here(path, "access_log", "each request adds a line to it")
        self._logger = logging.Logger("access")  # this server's own
        if path:
            handler = logging.StreamHandler(sys.stderr) if path == "-" else logging.handlers.WatchedFileHandler(path)
            handler.handleError = lambda record: None  # type: ignore[method-assign]  # a full disk stops no request
            self._logger.addHandler(handler)

    def write(self, started: float, **fields: Any) -> None:
        """Writes the line of a request that began at `started` (a time of `time.perf_counter`)."""
        if self._logger.handlers:
            now = datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds")
            milliseconds = round(1000 * (time.perf_counter() - started), 1)
            self._logger.info("%s", json.dumps({"time": now, **fields, "ms": milliseconds}))

    def close(self) -> None:
        """Closes the log file."""
        for handler in self._logger.handlers:
            handler.close()


def request_id(header: Any) -> str:
    """Returns the client's request id if it has at most 64 plain characters, else a new one."""
    return header if isinstance(header, str) and REQUEST_ID.fullmatch(header) else uuid.uuid4().hex


def error_response(status: int, message: str, path: str = "") -> web.Response:
    """Returns an error in the form of the protocol that `path` belongs to; TF Serving's is `{"error": ...}`."""
    headers = {"Retry-After": "1"} if status in (429, 503) else {"WWW-Authenticate": "Bearer"} if status == 401 else {}
    return web.Response(
        body=json.dumps(error_body(path, status, message)).encode("utf-8"),
        status=status,
        headers=headers,
        content_type="application/json",
    )


def rest_gate(rules: AccessRules, log: AccessLog) -> Any:
    """Returns the coroutine function that checks and logs a REST request and calls its handler."""

    async def pass_through(request: web.BaseRequest, handler: Handler) -> web.StreamResponse:
        started, name, status, sent = time.perf_counter(), request_id(request.headers.get(ID_HEADER)), 499, 0
        try:
            try:
                check_framing(request)
                response = _preflight(request, rules) or _refusal(request, rules) or await handler(request)
            except RequestError as error:
                response = error_response(HTTP_STATUS[error.code], error.message, request.path)
                if "Transfer-Encoding" in request.headers:  # what follows may be of the body, or the next request
                    response.force_close()
            _add_headers(request, response, rules, name)
            status, sent = response.status, getattr(response, "content_length", None) or 0
            return response
        finally:
            log.write(
                started,
                request_id=name,
                protocol="REST",
                peer=request.remote,
                method=request.method,
                path=request.rel_url.raw_path[:200],
                status=status,
                bytes=sent,
            )

    return pass_through


def check_framing(request: web.BaseRequest) -> None:
    """Raises RequestError for a request whose end (RFC 9112, 6.1) or host (RFC 9110, 7.2) a proxy might read
    differently.
    """
    codings = request.headers.getall("Transfer-Encoding", [])
    if codings and [coding.strip().lower() for coding in codings] != ["chunked"]:
        raise invalid(f"Transfer-Encoding: expected chunked alone, got {', '.join(codings)!r:.80}")
    if len(request.headers.getall("Host", [])) > 1:
        raise invalid("expected one Host, got several")


def _refusal(request: web.BaseRequest, rules: AccessRules) -> web.Response | None:
    """Checks host, origin, content type and token. Returns a response for status 415, which gRPC lacks; raises
    RequestError for the others.
    """
    headers = request.headers
    rules.check_host(headers.get("Host"))
    rules.check_origin(headers.get("Origin"), headers.get("Host"))
    from_browser = "Origin" in headers or "Sec-Fetch-Site" in headers
    if request.method == "POST" and not accepts(headers.get("Content-Type", ""), from_browser):
        return error_response(
            415, f"Content-Type {headers.get('Content-Type', '')[:80]!r}: expected application/json", request.path
        )
    if request.method not in ("GET", "HEAD") or request.path not in OPEN_PATHS:
        rules.check_token(headers.get("Authorization", ""))
    return None


def _preflight(request: web.BaseRequest, rules: AccessRules) -> web.Response | None:
    """Answers a CORS preflight, in which a browser asks whether another site's page may send a request; None for other
    requests. As in TF Serving, OPTIONS has no other use.
    """
    if request.method != "OPTIONS":
        return None
    rules.check_host(request.headers.get("Host"))
    if "Origin" not in request.headers:
        return error_response(400, "Origin header is missing in CORS preflight")
    rules.check_origin(request.headers["Origin"], request.headers.get("Host"))
    return web.Response(
        status=204,
        headers={
            "Access-Control-Allow-Methods": "GET, POST",
            "Access-Control-Max-Age": str(CORS_SECONDS),
            "Access-Control-Allow-Headers": f"Content-Type, Content-Encoding, Authorization, {ID_HEADER}",
        },
    )


def _add_headers(request: web.BaseRequest, response: web.StreamResponse, rules: AccessRules, name: str) -> None:
    """Adds the request id and the headers for browsers to a response."""
    response.headers[ID_HEADER] = name
    response.headers["X-Content-Type-Options"] = "nosniff"
    origin = request.headers.get("Origin")
    if origin is not None and rules.is_allowed(origin):
        response.headers.update({"Access-Control-Allow-Origin": origin, "Access-Control-Expose-Headers": ID_HEADER})
    else:
        response.headers["Cross-Origin-Resource-Policy"] = "same-origin"
    if rules.origins:
        response.headers["Vary"] = "Origin"


class GrpcGate(grpc.aio.ServerInterceptor):
    """Checks the token and parses the message of a gRPC call; ends the call with the status of a RequestError.

    Health checks need no token. Hosts and origins are not checked, because a browser cannot speak gRPC without a proxy
    that translates.
    """

    def __init__(self, rules: AccessRules, log: AccessLog):
        self.rules, self.log = rules, log

    async def intercept_service(self, continuation: Any, details: Any) -> Any:
        """Returns a handler that checks, parses and logs a call around the method's own handler."""
        method = await continuation(details)
        if method is None or method.unary_unary is None:
            return method
        metadata = dict(details.invocation_metadata or ())

        async def answer(data: bytes, context: Any) -> Any:
            started, name, status, sent = time.perf_counter(), request_id(metadata.get("x-request-id")), "CANCELLED", 0
            context.set_trailing_metadata((("x-request-id", name),))
            try:
                request = self._admit(data, metadata, method, details.method)
                response = await method.unary_unary(request, context)
                status, sent = "OK", response.ByteSize()
                return response
            except RequestError as error:
                status = error.code
                try:
                    await context.abort(grpc.StatusCode[error.code], error.message)
                except (
                    grpc.aio.InternalError
                ):  # the client has gone meanwhile: nobody's fault, so no traceback in the log
                    raise asyncio.CancelledError from None
            finally:
                self.log.write(
                    started,
                    request_id=name,
                    protocol="GRPC",
                    peer=context.peer(),
                    method="POST",
                    path=details.method[:200],
                    status=status,
                    bytes=sent,
                )

        return grpc.unary_unary_rpc_method_handler(answer, None, method.response_serializer)

    def _admit(self, data: bytes, metadata: Any, method: Any, path: str) -> Any:
        """Checks a call's token and returns its parsed request (its bytes for the methods of `READ_LATER`).

        Raises RequestError; INTERNAL for bytes that are no message, as TF Serving does. grpc.aio would report UNKNOWN
        and log a stack for each.
        """
        if not path.startswith(HEALTH):
            self.rules.check_token(str(metadata.get("authorization", "")))
        if path in READ_LATER:
            return data
        if len(data) > LARGE_BYTES:
            raise invalid(f"expected a message of at most {LARGE_BYTES} bytes, got {len(data)}")
        try:
            return method.request_deserializer(data)
        except DecodeError:
            raise RequestError("INTERNAL", f"not a message that {path} takes") from None
