"""The client over REST. It keeps HTTP connections between requests, and its deadline also ends answers that arrive
slowly.
"""

import contextlib
import functools
import http.client
import io
import json
import socket
import ssl
import time
import urllib.parse
from collections.abc import Sequence
from typing import Any

from urllib3.util import wait_for_read

from official_bert.server.statuses import HTTP_STATUS
from official_bert.tools.client.messages import (
    Signatures,
    from_json,
    signatures_of_json,
    to_json,
    wrong_number_of_rows,
)
from official_bert.tools.client.model_client import ModelClient
from official_bert.tools.client.retries import ServingError, read_retry_after

# Of the codes that share a status, the commonest.
CODES = {
    **{status: code for code, status in HTTP_STATUS.items()},
    400: "INVALID_ARGUMENT",
    413: "RESOURCE_EXHAUSTED",
    500: "INTERNAL",
}


class RestClient(ModelClient):
    """A client over REST. `url` is the server's, such as http://127.0.0.1:8501 or https://models.example.org."""

    def __init__(self, url: str, model: str, **options: Any):
        super().__init__(model, **options)
        self._server = urllib.parse.urlsplit(url)
        if self._server.scheme not in ("http", "https") or not self._server.netloc:
            raise ValueError(f"url: expected an address that begins with http:// or https://, got {url!r}")
        self._new_connection = functools.partial(http.client.HTTPConnection, self._server.netloc)
        if self._server.scheme == "https":
            try:
                tls = ssl.create_default_context(cafile=self.ca_file or None)
            except OSError as error:
                raise ValueError(
                    f"ca_file={self.ca_file}: expected certificates (PEM): {error.strerror or error}"
                ) from None
            self._new_connection = functools.partial(http.client.HTTPSConnection, self._server.netloc, context=tls)
        version_path = f"/versions/{self.version}" if self.version is not None else ""
        version_path = f"/labels/{urllib.parse.quote(self.label, safe='')}" if self.label else version_path
        self._path = (
            f"{self._server.path.rstrip('/')}/v1/models/{urllib.parse.quote(self.model, safe='')}{version_path}"
        )
        self._idle: list[http.client.HTTPConnection] = []
        self._in_use: set[http.client.HTTPConnection] = set()

    def _predict_batch(self, rows: Sequence[Any], signature: str) -> list[dict[str, Any]]:
        body: dict[str, Any] = {"instances": [to_json(row) for row in rows]}
        if signature:
            body["signature_name"] = signature
        answers = [from_json(answer) for answer in self._ask("POST", ":predict", body)["predictions"]]
        if len(answers) != len(rows):
            raise wrong_number_of_rows(len(rows), f"{len(answers)} rows")
        if all(isinstance(answer, dict) for answer in answers):
            return answers
        if self.version is None:
            self.known_signatures = None  # a newer version may have answered, and one output comes without its name
        (name,) = self._names("outputs", signature)
        return [{name: answer} for answer in answers]

    def signatures(self) -> Signatures:
        return signatures_of_json(self._ask("GET", "/metadata"))

    def versions(self) -> dict[int, str]:
        return {int(entry["version"]): entry["state"] for entry in self._ask("GET", "")["model_version_status"]}

    def _disconnect(self) -> None:
        for connection in [*self._in_use, *self._idle]:
            with contextlib.suppress(OSError, TypeError):  # it is closed
                # another thread may be reading, which then sees the end
                socket.socket.shutdown(connection.sock, socket.SHUT_RDWR)

    def _ask(self, method: str, path: str, body: Any = None) -> Any:
        """Sends a request and returns the JSON of the answer. Raises ServingError."""
        data = None if body is None else json.dumps(body).encode("utf-8")
        return self.retry_policy.call(lambda deadline: self._send(method, self._path + path, data, deadline))

    def _send(self, method: str, path: str, data: bytes | None, deadline: float) -> Any:
        """Sends a request once."""
        if self.is_closed:
            raise ServingError("CANCELLED", "the client is closed")
        connection = self._idle_connection(max(0.001, deadline - time.monotonic()))
        connection.response_class = lambda sock, **options: http.client.HTTPResponse(  # type: ignore[assignment]
            _AnswerReader(sock, deadline),  # type: ignore[arg-type]
            **options,
        )
        self._in_use.add(connection)
        try:
            connection.request(
                method, path, data, self.headers | ({"Content-Type": "application/json"} if data else {})
            )
            response = connection.getresponse()
            content = response.read()
        except (OSError, http.client.HTTPException) as error:
            connection.close()
            raise ServingError("UNAVAILABLE", f"{self._server.geturl()}: {error or type(error).__name__}") from None
        finally:
            self._in_use.discard(connection)
            self._idle.append(connection)
        return _read_answer(path, response, content)

    def _idle_connection(self, timeout: float) -> http.client.HTTPConnection:
        """Returns a connection that no thread uses; it opens at its next request if it is closed.

        `timeout` is for connecting and for sending, in seconds.
        """
        try:
            connection = self._idle.pop()
        except IndexError:
            return self._new_connection(timeout=timeout)
        connection.timeout = timeout
        if connection.sock is not None:
            connection.sock.settimeout(timeout)
            if wait_for_read(connection.sock, 0):  # before a request, nothing but the end can come
                connection.close()
        return connection


class _AnswerReader(io.RawIOBase):
    """Reads from a socket until a deadline. (The socket's own timeout starts again with each piece of an answer.)"""

    def __init__(self, sock: socket.socket, deadline: float):
        self._socket, self._deadline, self._stream = sock, deadline, sock.makefile("rb", buffering=0)

    def makefile(self, _mode: str) -> io.BufferedReader:
        """Returns the file that HTTPResponse reads."""
        return io.BufferedReader(self)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        self._socket.settimeout(max(0.001, self._deadline - time.monotonic()))
        return self._stream.readinto(buffer)

    def close(self) -> None:
        self._stream.close()
        super().close()


def _read_answer(path: str, response: http.client.HTTPResponse, content: bytes) -> Any:
    """Returns the JSON of an answer. Raises ServingError for any status but 200."""
    try:
        answer = json.loads(content)
        if response.status == 200:
            return answer
        message = str(answer.get("error", answer) if isinstance(answer, dict) else answer)
    except ValueError:
        message = f"{path}: expected JSON, got status {response.status} and {content[:80]!r}"
    raise ServingError(
        CODES.get(response.status, "UNKNOWN"), message, read_retry_after(response.headers.get("Retry-After", ""))
    )
