"""Limits of gRPC connections: which of them give way when there are too many.

gRPC itself only refuses connections beyond a number, so that clients which connect and say nothing lock everybody out
until they have been idle for minutes. It lends nobody its connections; but their sockets are this process's own, and
one that is shut down here ends for gRPC as if its client had gone.
"""

import asyncio
import collections
import contextlib
import ipaddress
import os
import socket
import urllib.parse
from collections.abc import Iterator, Sequence

from official_bert.server.request_checks import Limits

Peer = tuple[str, int]  # address and port of a client
SECONDS = 0.2  # between looks at the sockets
FOLDER = "/dev/fd"  # the descriptors of this process


class GrpcConnections:
    """Closes connections beyond `max_connections`: of those that wait for a request, the one that has waited longest.

    Connections without a request that was admitted (a valid token, if there are any) have half of the places at most,
    so that they never push out a client that had one.
    """

    def __init__(self, limits: Limits):
        self.most, self.most_strangers = limits.max_connections, max(1, limits.max_connections // 2)
        self._waiting: dict[Peer, None] = {}  # all connections; the one that has waited longest is first
        self._admitted: set[Peer] = set()
        self._running: collections.Counter[Peer] = collections.Counter()  # requests

    @contextlib.contextmanager
    def working(self, peer: str) -> Iterator[Peer]:
        """Keeps the connection of a request (gRPC's name of its client) from giving way; gives its key, for `admit`."""
        key = peer_of(peer)
        self._running[key] += 1
        try:
            yield key
        finally:
            self._running[key] -= 1
            self._waiting.pop(key, None)
            self._waiting[key] = None

    def admit(self, peer: Peer) -> None:
        """Notes that a connection has sent a request that may be answered."""
        self._admitted.add(peer)

    async def watch(self, port: int) -> None:
        """Looks at the connections to a port of this process until it is cancelled."""
        while True:
            await asyncio.sleep(SECONDS)
            with contextlib.suppress(OSError):  # no descriptor is left for the look itself
                self.close_surplus(port)

    def close_surplus(self, port: int) -> None:
        """Closes the connections to a port that are too many."""
        descriptors = descriptors_of(port)
        self._waiting = {peer: None for peer in [*self._waiting, *descriptors] if peer in descriptors}
        self._admitted &= descriptors.keys()
        self._running = +self._running
        strangers = [peer for peer in self._waiting if peer not in self._admitted]
        closed = self._longest_idle(strangers, len(strangers) - self.most_strangers)
        rest = [peer for peer in self._waiting if peer not in closed]
        for peer in [*closed, *self._longest_idle(rest, len(rest) - self.most)]:
            _shut_down(descriptors[peer], peer, port)

    def _longest_idle(self, peers: Sequence[Peer], count: int) -> list[Peer]:
        return [peer for peer in peers if not self._running[peer]][: max(0, count)]


def peer_of(name: str) -> Peer:
    """Returns a client that gRPC names (`ipv4:127.0.0.1:5000`, `ipv6:%5B::1%5D:5000`)."""
    address, _, port = urllib.parse.unquote(name).partition(":")[2].rpartition(":")
    return _plain(address.strip("[]")), int(port) if port.isdecimal() else 0


def descriptors_of(port: int) -> dict[Peer, int]:
    """Returns the connections that clients have made to a port of this process: their addresses, and descriptors."""
    found = {}
    for number in map(int, os.listdir(FOLDER)):
        with contextlib.suppress(OSError):  # no socket, or closed meanwhile
            connection = socket.socket(fileno=number)
            try:
                if peer := _client(connection, port):
                    found[peer] = number
            finally:
                connection.detach()  # it is gRPC's
    return found


def _shut_down(number: int, peer: Peer, port: int) -> None:
    """Ends a connection, if a descriptor is still its own."""
    with contextlib.suppress(OSError):
        copy = os.dup(number)
        try:
            connection = socket.socket(fileno=copy)
        except OSError:
            os.close(copy)
            raise
        with connection:
            if _client(connection, port) == peer:
                connection.shutdown(socket.SHUT_RDWR)


def _client(connection: socket.socket, port: int) -> Peer | None:
    """Returns who is at the other end of a connection to a port; None for another socket."""
    if connection.family not in (socket.AF_INET, socket.AF_INET6) or connection.getsockname()[1] != port:
        return None
    address, client_port = connection.getpeername()[:2]
    return _plain(address), client_port


def _plain(address: str) -> str:
    """Returns an address in one form: without its scope, and IPv4 that came over a socket of IPv6 as IPv4."""
    try:
        value = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    return str(getattr(value, "ipv4_mapped", None) or value)
