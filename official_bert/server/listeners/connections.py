"""Limits HTTP connections: their number, how long they may be silent, and the memory for bodies that are still
arriving.

An open connection costs memory and a file descriptor. If there are too many, the server closes the connection that has
waited longest without sending a whole request. A client that sends its request at once never loses its connection.
"""

import asyncio
import contextlib
import gzip
import io
import logging
import zlib
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

from aiohttp import web

from official_bert.server.requests.request_checks import Limits
from official_bert.server.statuses import RequestError, invalid

Handler = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]
SILENT = logging.Logger("aiohttp", logging.CRITICAL)  # would log a stack for each malformed request
LARGE_BYTES = 64 << 10  # bodies that are larger wait for others
MEMBER, MOST_MEMBERS = b"\x1f\x8b\x08", 1000  # of gzip: how each begins
LINGERING_SECONDS = 1.0  # for the rest of a body that is no longer read


class Connections(web.Server):
    """An HTTP server that calls `answer` for each request, and cancels its task if the client disconnects."""

    def __init__(self, answer: Handler, limits: Limits):
        super().__init__(
            answer,
            handler_cancellation=True,
            access_log=None,
            auto_decompress=False,  # type: ignore[arg-type]
            logger=SILENT,
            keepalive_timeout=limits.keepalive_seconds,
            lingering_time=LINGERING_SECONDS,
        )
        self.limits = limits
        self._waiting: dict[Any, None] = {}  # connections without a whole request; the one that waits longest is first
        self._bytes = 0  # of bodies that are arriving

    def connection_made(self, handler: Any, transport: Any) -> None:
        """Counts a connection; closes the one that has waited longest if there are too many."""
        super().connection_made(handler, transport)
        self._waiting[handler] = None
        if len(self.connections) > self.limits.max_connections:
            oldest = next(iter(self._waiting))
            del self._waiting[oldest]
            _abort(oldest)

    def connection_lost(self, handler: Any, exc: BaseException | None = None) -> None:
        """Stops counting a connection."""
        self._waiting.pop(handler, None)
        super().connection_lost(handler, exc)

    async def read_body(self, request: web.BaseRequest) -> bytes:
        """Returns the body of a request.

        Raises HTTPRequestEntityTooLarge for more than `max_request_bytes`, and RequestError: DEADLINE_EXCEEDED for a
        body that arrives too slowly, UNAVAILABLE for a large body if too many are arriving.
        """
        limit = self.limits.max_request_bytes
        if (request.content_length or 0) > limit:
            raise web.HTTPRequestEntityTooLarge(limit, request.content_length or 0)
        body = bytearray()
        try:
            async with asyncio.timeout(self.limits.body_seconds):
                async for chunk in request.content.iter_any():
                    body += chunk
                    self._bytes += len(chunk)
                    if len(body) > limit:
                        raise web.HTTPRequestEntityTooLarge(limit, len(body))
                    if len(body) > LARGE_BYTES and self._bytes > self.limits.max_unfinished_bytes:
                        raise RequestError("UNAVAILABLE", "too many large requests are arriving")
        except TimeoutError:
            raise RequestError(
                "DEADLINE_EXCEEDED", f"the body did not arrive within {self.limits.body_seconds:g} s"
            ) from None
        finally:
            self._bytes -= len(body)
        return bytes(body)

    @contextlib.contextmanager
    def working(self, request: web.BaseRequest) -> Iterator[None]:
        """Protects a connection from being closed for another while its complete request is answered."""
        self._waiting.pop(request.protocol, None)
        try:
            yield
        finally:
            if request.transport is not None:
                self._waiting[request.protocol] = None

    def response(self, request: web.BaseRequest, body: bytes, content_type: str = "application/json") -> web.Response:
        """Returns a response with a large body.

        Its connection is closed if the client does not read it within `body_seconds`.
        """
        return _LargeResponse(request.protocol, body, content_type, self.limits.body_seconds)

    def abort(self) -> None:
        """Closes every connection at once."""
        for handler in self.connections:
            _abort(handler)


class _LargeResponse(web.Response):
    """A response whose connection is closed if the client does not read the body in time."""

    def __init__(self, handler: Any, body: bytes, content_type: str, seconds: float):
        super().__init__(body=body, content_type=content_type)
        self._handler, self._seconds = handler, seconds

    async def write_eof(self, data: bytes = b"") -> None:
        """Sends the body."""
        try:
            async with asyncio.timeout(self._seconds):
                await super().write_eof(data)
        except TimeoutError:
            _abort(self._handler)
            raise ConnectionResetError("the client does not read its answer") from None


def _abort(handler: Any) -> None:
    if handler.transport is not None:
        handler.transport.abort()


def unpack(body: bytes, limit: int) -> bytes:
    """Returns a gzip body decompressed (all members), at most `limit` bytes.

    Raises RequestError if the body is no gzip, and HTTPRequestEntityTooLarge if it would be larger.
    """
    if body.count(MEMBER) > MOST_MEMBERS:
        raise invalid(f"expected a gzip body of at most {MOST_MEMBERS} members")
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(body)) as file:
            unpacked = file.read(limit + 1)
    except EOFError:
        raise invalid("the gzip body ends too early") from None
    except (OSError, zlib.error):
        raise invalid("the body is not gzip, as its Content-Encoding says") from None
    if len(unpacked) > limit:
        raise web.HTTPRequestEntityTooLarge(limit, len(unpacked))
    return unpacked
