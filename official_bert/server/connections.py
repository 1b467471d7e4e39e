"""Limits of HTTP connections: their number, how long they may be silent, and how much of unfinished bodies is kept.

A connection costs memory and a file descriptor from the moment it is open. When there are too many, the one that has
waited longest without sending a whole request gives way to the new one: a client that sends its request at once is
never that one. A connection counts from the moment it is open, before TLS is agreed upon.
"""

import asyncio
import contextlib
import logging
import ssl
import zlib
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

from aiohttp import web

from official_bert.server.request_checks import Limits
from official_bert.server.statuses import RequestError, invalid

Handler = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]
SILENT = logging.Logger("aiohttp", logging.CRITICAL)  # would log a stack for each malformed request
GZIP = zlib.MAX_WBITS | 16
PIECE_BYTES, MOST_MEMBERS = 64 << 10, 1000
LINGERING_SECONDS = 1.0  # for the rest of a body that is no longer read


class Connections(web.Server):
    """Answers HTTP by `answer`, whose task is cancelled if the client goes."""

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
        self.tls_context: ssl.SSLContext | None = None  # set before listening: connections begin with a TLS handshake
        self._handshakes: set[_Handshake] = set()
        # bytes of the body so far, by protocol; the one that waits longest is first
        self._unfinished: dict[Any, int] = {}
        self._bytes = 0

    def __call__(self) -> Any:
        """Returns the protocol of a new connection."""
        return _Handshake(self, self.tls_context) if self.tls_context else super().__call__()

    def connection_made(self, handler: Any, transport: Any) -> None:
        """Counts a connection; closes another if there are too many."""
        super().connection_made(handler, transport)
        self._begin(handler)

    def handshake_made(self, handshake: "_Handshake") -> None:
        """Counts a connection that agrees upon TLS; closes another if there are too many."""
        self._handshakes.add(handshake)
        self._begin(handshake)

    def handshake_ended(self, handshake: "_Handshake", transport: asyncio.Transport | None, received: bytes) -> None:
        """Goes on with the encrypted connection and what came over it, if there is one."""
        self._handshakes.discard(handshake)
        self._forget(handshake)
        if transport is not None and not transport.is_closing():
            handler = super().__call__()
            transport.set_protocol(handler)
            handler.connection_made(transport)
            if received:
                handler.data_received(received)

    def _begin(self, handler: Any) -> None:
        self._unfinished[handler] = 0
        if len(self.connections) + len(self._handshakes) > self.limits.max_connections:
            self._drop_oldest()

    def connection_lost(self, handler: Any, exc: BaseException | None = None) -> None:
        """Forgets a connection."""
        self._forget(handler)
        super().connection_lost(handler, exc)

    async def read_body(self, request: web.BaseRequest) -> bytes:
        """Returns the body. Raises RequestError, or HTTPRequestEntityTooLarge for more than `max_request_bytes`."""
        limit = self.limits.max_request_bytes
        if (request.content_length or 0) > limit:
            raise web.HTTPRequestEntityTooLarge(limit, request.content_length or 0)
        body = bytearray()
        try:
            async with asyncio.timeout(self.limits.body_seconds):
                async for chunk in request.content.iter_any():
                    body += chunk
                    if len(body) > limit:
                        raise web.HTTPRequestEntityTooLarge(limit, len(body))
                    self._count(request.protocol, len(body))
        except TimeoutError:
            raise RequestError(
                "DEADLINE_EXCEEDED", f"the body did not arrive within {self.limits.body_seconds:g} s"
            ) from None
        return bytes(body)

    @contextlib.contextmanager
    def working(self, request: web.BaseRequest) -> Iterator[None]:
        """Keeps a connection, whose request is whole, from giving way to others."""
        self._forget(request.protocol)
        try:
            yield
        finally:
            if request.transport is not None:
                self._unfinished[request.protocol] = 0

    def response(self, request: web.BaseRequest, body: bytes, content_type: str = "application/json") -> web.Response:
        """Returns a large answer, which a client must take within `body_seconds`; it counts as an unfinished body until
        then.
        """
        return _LargeResponse(self, request, body, content_type)

    @contextlib.contextmanager
    def writing(self, handler: Any, size: int) -> Iterator[None]:
        """Counts the bytes of an answer that is being sent."""
        self._count(handler, size)
        try:
            yield
        finally:
            self._count(handler, 0)

    def abort(self) -> None:
        """Closes every connection at once."""
        for handler in [*self.connections, *self._handshakes]:
            _abort(handler)

    def _count(self, handler: Any, size: int) -> None:
        if handler in self._unfinished:
            self._bytes += size - self._unfinished[handler]
            self._unfinished[handler] = size
        if self._bytes > self.limits.max_unfinished_bytes:
            self._drop_oldest(with_bytes=True)

    def _forget(self, handler: Any) -> None:
        self._bytes -= self._unfinished.pop(handler, 0)

    def _drop_oldest(self, with_bytes: bool = False) -> None:
        for handler, size in self._unfinished.items():
            if size or not with_bytes:
                self._forget(handler)
                _abort(handler)
                return


class _Handshake(asyncio.Protocol):
    """A connection until it has agreed upon TLS, for which it has as long as for the next request."""

    def __init__(self, connections: Connections, context: ssl.SSLContext):
        self._connections, self._context = connections, context
        self.transport: Any = None
        self._received = b""

    def connection_made(self, transport: Any) -> None:
        """Begins the handshake."""
        transport.pause_reading()  # what the client says is for TLS, which begins to read in a moment
        self.transport = transport
        self._connections.handshake_made(self)
        self._task = asyncio.get_running_loop().create_task(self._shake_hands())

    def data_received(self, data: bytes) -> None:
        """Keeps what comes right after the handshake."""
        self._received += data

    async def _shake_hands(self) -> None:
        """Ends with an encrypted connection, or none."""
        loop, encrypted = asyncio.get_running_loop(), None
        try:
            if not self.transport.is_closing():
                encrypted = await loop.start_tls(
                    self.transport,
                    self,
                    self._context,
                    server_side=True,
                    ssl_handshake_timeout=self._connections.limits.keepalive_seconds,
                )
        except OSError:  # no TLS, an end, or nothing for too long
            self.transport.abort()
        finally:
            self._connections.handshake_ended(self, encrypted, self._received)


class _LargeResponse(web.Response):
    """A body that is sent within a time, or its connection is closed."""

    def __init__(self, connections: Connections, request: web.BaseRequest, body: bytes, content_type: str):
        super().__init__(body=body, content_type=content_type)
        self._connections, self._handler, self._size = connections, request.protocol, len(body)

    async def write_eof(self, data: bytes = b"") -> None:
        """Sends the body."""
        try:
            with self._connections.writing(self._handler, self._size):
                async with asyncio.timeout(self._connections.limits.body_seconds):
                    await super().write_eof(data)
        except TimeoutError:
            _abort(self._handler)
            raise ConnectionResetError("the client does not take its answer") from None


def _abort(handler: Any) -> None:
    if handler.transport is not None:
        handler.transport.abort()


def unpack(body: bytes, limit: int) -> bytes:
    """Decompresses gzip, all its members, without ever holding more than `limit` bytes.

    Raises RequestError, HTTPRequestEntityTooLarge.
    """
    unpacked, unpacker, members = bytearray(), zlib.decompressobj(GZIP), 1
    for start in range(0, len(body), PIECE_BYTES):  # of which each member that ends copies the rest
        piece = body[start : start + PIECE_BYTES]
        while piece:
            if unpacker.eof:
                unpacker, members = zlib.decompressobj(GZIP), members + 1
            try:
                unpacked += unpacker.decompress(piece, limit + 1 - len(unpacked))
            except zlib.error:
                raise invalid("the body is not gzip, as its Content-Encoding says") from None
            if len(unpacked) > limit:
                raise web.HTTPRequestEntityTooLarge(limit, len(unpacked))
            if members > MOST_MEMBERS:
                raise invalid(f"expected a gzip body of at most {MOST_MEMBERS} members")
            piece = unpacker.unused_data
    if not unpacker.eof:
        raise invalid("the gzip body ends too early")
    return bytes(unpacked)
