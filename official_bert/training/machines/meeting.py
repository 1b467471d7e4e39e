"""The workers of a cluster connect before TensorFlow is imported.

TensorFlow silently waits an hour for a missing worker, and takes seconds to import. So the workers meet first: the
first worker listens on its port, and the others connect and keep the connection open. It tells all of them which
workers are missing and which cannot begin.
"""

import contextlib
import functools
import json
import select
import socket
import time
from collections.abc import Iterator, Sequence

from absl import logging

from official_bert.training.machines.cluster import HERE, Placement, workers_of

WARNS_AFTER = 20.0  # seconds until a line says which worker is awaited, where more than the default are waited for
CALL_SECONDS, RETRY_SECONDS = 2.0, 0.2  # for one attempt to call another worker, and until the next one
LONGEST_MESSAGE = 1 << 20  # bytes
REASON_SECONDS = 10.0  # for the first worker to say why one of them has ended
ENDED = "ended before the training began; see its own output"


@functools.cache  # a process meets the others once; then TensorFlow's own server listens on its port
def join(placement: Placement) -> "Meeting":
    """Returns the meeting once all workers have connected; raises ValueError as `meet` does."""
    return Meeting(*workers_of(placement), placement.join_seconds)


class Line:
    """A connection to another worker, open until that worker ends. Each message is a line of JSON."""

    def __init__(self, connection: socket.socket):
        self._connection, self._reader = connection, connection.makefile("rb")
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)  # a machine that is lost says nothing
        for name, value in (("TCP_KEEPIDLE", 10), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 3)):
            if option := getattr(socket, name, None):
                connection.setsockopt(socket.IPPROTO_TCP, option, value)
        connection.settimeout(CALL_SECONDS)

    def fileno(self) -> int:
        """Returns the file descriptor to wait for."""
        return self._connection.fileno()

    def send(self, message: dict) -> None:
        """Sends a message, unless the other worker has ended."""
        with contextlib.suppress(OSError):
            self._connection.sendall(f"{json.dumps(message)}\n".encode())

    def receive(self) -> dict:
        """Returns a message, or {} if the other process has ended, is silent, or is no worker."""
        try:
            message = json.loads(self._reader.readline(LONGEST_MESSAGE))
        except (OSError, ValueError):
            return {}
        return message if isinstance(message, dict) else {}

    def without_haste(self) -> None:
        """Removes the time limit: waits for messages as long as the other worker lives."""
        self._connection.settimeout(None)

    def close(self) -> None:
        """Closes the connection."""
        self._reader.close()
        self._connection.close()


class Meeting:
    """The connections between the first worker of a cluster, which decides, and each of the others."""

    def __init__(self, hosts: Sequence[str], index: int, seconds: float):
        self.hosts, self.index, self.seconds = list(hosts), index, seconds
        self.lines: dict[int, Line] = {}  # to each of the others; to the first one alone if this is not that
        self.own_error = ""  # why this worker has left
        self._until, self._has_warned = time.monotonic() + seconds, False
        with _listening(hosts[index]) as listening:
            self._gather(listening) if index == 0 else self._call()
            self.agree()
            # All of them listen until all have called: TensorFlow wants each worker to reach each other.
            if silent := [host for host in self.hosts if host != hosts[index] and not answers(host)]:
                self.leave(error := f"{hosts[index]} does not reach {', '.join(silent)}")
                raise ValueError(HERE + error)
            self.agree()

    def agree(self) -> None:
        """Waits until all workers are ready. Raises ValueError if one has left, with its error."""
        error = self._first_error() if self.index == 0 else self._ask()
        if error:
            raise ValueError(HERE + error)

    def leave(self, error: str) -> None:
        """Tells the other workers why this one ends."""
        self.own_error = error
        self._send_all({"error": f"{self.hosts[self.index]}: {error}"})

    def reason(self) -> str:
        """Returns the error with which a worker left after training had begun, or "" if it left no message."""
        error = ""
        for line in select.select(list(self.lines.values()), [], [], REASON_SECONDS)[0]:
            error = error or line.receive().get("error", "")
        if self.index == 0:
            self._send_all({"error": error})
        return error and HERE + error

    def end(self) -> None:
        """Closes the connections."""
        for line in self.lines.values():
            line.close()

    def _send_all(self, message: dict) -> None:
        for line in self.lines.values():
            line.send(message)

    def _gather(self, listening: socket.socket) -> None:
        """Takes the calls of all others; raises ValueError, having told those who came, with those who did not."""
        listening.settimeout(RETRY_SECONDS)
        while missing := [host for number, host in enumerate(self.hosts) if number and number not in self.lines]:
            with contextlib.suppress(OSError):
                self._take(Line(listening.accept()[0]))
            self._check_time(missing)

    def _take(self, line: Line) -> None:
        """Takes a call, unless it is no worker's of this cluster."""
        call = line.receive()
        if call.get("hosts") != self.hosts or call.get("index") not in range(1, len(self.hosts)):
            if call:
                line.send(
                    {"error": f"expected the same hosts on every worker, {self.hosts[0]} has {','.join(self.hosts)}"}
                )
            line.close()
            return
        line.send({"joined": True})
        line.without_haste()
        self.lines[call["index"]] = line

    def _call(self) -> None:
        """Calls the first worker until it answers; raises ValueError if it does not."""
        while not self.lines:
            with contextlib.suppress(OSError):
                line = Line(socket.create_connection(_address(self.hosts[0]), timeout=CALL_SECONDS))
                line.send({"hosts": self.hosts, "index": self.index})
                answer = line.receive()
                if error := answer.get("error"):
                    raise ValueError(HERE + error)
                if answer:
                    line.without_haste()
                    self.lines[0] = line
                    return
                line.close()
            self._check_time(self.hosts[:1])
            time.sleep(RETRY_SECONDS)

    def _check_time(self, missing: Sequence[str]) -> None:
        """Raises ValueError if the time to start is over, after telling those who came; warns if it lasts."""
        names = f"{', '.join(missing)} {'does' if len(missing) == 1 else 'do'} not answer"
        left = self._until - time.monotonic()
        if left < 0:
            error = f"expected every worker to be started within {self.seconds:g} s (--join_seconds), {names}"
            self._send_all({"error": error})
            raise ValueError(HERE + error)
        if self.seconds - left > WARNS_AFTER and not self._has_warned:
            self._has_warned = True
            logging.warning("%swaiting for the other workers: %s", HERE, names)

    def _first_error(self) -> str:
        """Waits for a message of each of the others, tells all of them the first error, "" if there is none, and
        returns it.
        """
        waiting, error = dict(self.lines), ""
        while waiting and not error:
            ready, _, _ = select.select(list(waiting.values()), [], [])
            for number in [number for number, line in waiting.items() if line in ready]:
                message = waiting.pop(number).receive() or {"error": f"{self.hosts[number]} {ENDED}"}
                error = error or message.get("error", "")
        self._send_all({"error": error})
        return error

    def _ask(self) -> str:
        """Says that this worker is ready; returns the answer of the first one, which speaks for all."""
        line = self.lines[0]
        if not select.select([line], [], [], 0.0)[0]:  # otherwise that has said already that one has left
            line.send({"error": ""})
        return line.receive().get("error", f"{self.hosts[0]} {ENDED}")


@contextlib.contextmanager
def _listening(host: str) -> Iterator[socket.socket]:
    try:
        listening = socket.create_server(("", _address(host)[1]))
    except OSError as error:
        raise ValueError(f"{HERE}{host}: this worker's port cannot be opened: {error.strerror}") from None
    with listening:
        yield listening


def _address(host: str) -> tuple[str, int]:
    name, _, port = host.rpartition(":")
    if not name or not port.isdigit():
        raise ValueError(f"--worker_hosts: expected host:port,host:port,..., got {host!r}")
    return name, int(port)


def answers(host: str) -> bool:
    """Returns whether a process listens at host:port."""
    try:
        socket.create_connection(_address(host), timeout=CALL_SECONDS).close()
    except OSError:  # no such host, nobody listens, no route
        return False
    return True
