"""Parses requests: small ones at once, large ones in a second process, so that no body can block the server.

Parsing holds Python's interpreter lock in any thread: up to a second for 8 MiB of JSON, five for gRPC. The second
process starts with the first large request, parses one at a time, and ends with the server. The pipe carries JSON and
the arrays' bytes; no pickles.
"""

import asyncio
import concurrent.futures
import dataclasses
import json
import logging
import multiprocessing
import subprocess
import sys
import threading
from multiprocessing.connection import Connection
from typing import Any

from official_bert.server.requests.readers import readers
from official_bert.server.requests.reading import ModelAddress, Reading
from official_bert.server.requests.request_checks import Limits
from official_bert.server.statuses import RequestError
from official_bert.server.tensors import from_bytes, to_bytes, type_name

LOG = logging.getLogger("official_bert.server")
LARGE_BYTES = 16 << 10  # what is smaller is read in about a millisecond, whatever it holds
LONGEST_SECONDS = 20.0  # that the process may take for one request


class RequestReader:
    """Parses requests of all protocols within `limits`. `message` is the class `PredictRequest`."""

    def __init__(self, limits: Limits, message: Any):
        self.limits, self._message, self._readers = limits, message, readers(message)
        self._process: subprocess.Popen | None = None
        self._pipe: Connection
        self._waiting = 0  # bytes
        self._thread = concurrent.futures.ThreadPoolExecutor(1, "reading")

    async def read(self, protocol: str, body: bytes, **task: Any) -> Reading:
        """Returns a parsed request of a protocol (a name in `readers`); `task` are further arguments of its reader.

        A large request waits until the process is free, and is dropped if its client disconnects before. Raises
        RequestError if the request is invalid, or if too many large ones wait.
        """
        if len(body) < LARGE_BYTES:
            return self._readers[protocol](body, self.limits, **task)
        if self._waiting + len(body) > self.limits.max_unfinished_bytes:
            raise RequestError("UNAVAILABLE", "too many large requests wait to be read")
        self._waiting += len(body)
        try:
            task_json = json.dumps({"protocol": protocol, **task}).encode()
            return await asyncio.get_running_loop().run_in_executor(self._thread, self._exchange, task_json, body)
        finally:
            self._waiting -= len(body)

    def close(self) -> None:
        """Kills the process, also while it parses a request."""
        self._thread.shutdown(wait=False, cancel_futures=True)
        self._end()

    def _exchange(self, task: bytes, body: bytes) -> Reading:
        process = self._process
        if process is None or process.poll() is not None:
            self._end()
            process = self._start()
        timer = threading.Timer(LONGEST_SECONDS, process.kill)
        timer.start()
        try:
            self._pipe.send_bytes(task)
            self._pipe.send_bytes(body)
            try:
                return receive_reading(self._pipe)
            finally:
                if not self._pipe.recv_bytes():  # it ends, and would take the next request with it
                    self._end()
        except (OSError, EOFError, ValueError) as error:  # it was killed, ended by itself, or its pipe was closed
            self._end()
            LOG.warning("the process that reads large requests ended: %s", error)
            raise RequestError(
                "RESOURCE_EXHAUSTED",
                f"a request of {len(body)} bytes could not be read within {LONGEST_SECONDS:g} s and its memory limit",
            ) from None
        finally:
            timer.cancel()

    def _start(self) -> subprocess.Popen:
        """Starts the process and sends it the limits and the message's definition, which it cannot import without
        TensorFlow.
        """
        self._pipe, other_end = multiprocessing.Pipe()
        with other_end:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "official_bert.server.requests.child", str(other_end.fileno())],
                stdin=subprocess.DEVNULL,
                pass_fds=[other_end.fileno()],
                start_new_session=True,  # Ctrl-C is for the server alone
            )
        definition = self._message.DESCRIPTOR
        for data in (
            json.dumps(dataclasses.asdict(self.limits)).encode(),
            definition.full_name.encode(),
            *(file.serialized_pb for file in _files(definition.file)),
            b"",
        ):
            self._pipe.send_bytes(data)
        return self._process

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()


def _files(file: Any) -> list[Any]:
    """Returns a protocol buffer file, preceded by all files that it imports; a file may appear several times."""
    return [*(needed for dependency in file.dependencies for needed in _files(dependency)), file]


def send_reading(pipe: Connection, answer: Reading | RequestError) -> None:
    """Writes a parsed request, or the error, to a pipe."""
    if isinstance(answer, RequestError):
        pipe.send_bytes(json.dumps({"code": answer.code, "message": answer.message}).encode())
        return
    arrays = [(name, type_name(array), array.shape) for name, array in answer.inputs.items()]
    fields = {field.name: getattr(answer, field.name) for field in dataclasses.fields(answer) if field.name != "inputs"}
    pipe.send_bytes(json.dumps({"arrays": arrays, "reading": fields}).encode())
    for array in answer.inputs.values():
        pipe.send_bytes(to_bytes(array))


def receive_reading(pipe: Connection) -> Reading:
    """Reads the parsed request that `send_reading` wrote. Raises RequestError if it wrote an error."""
    head = json.loads(pipe.recv_bytes())
    if "code" in head:
        raise RequestError(head["code"], head["message"])
    inputs = {
        name: from_bytes(name, dtype, shape, memoryview(pipe.recv_bytes())) for name, dtype, shape in head["arrays"]
    }
    return Reading(inputs=inputs, **{**head["reading"], "address": ModelAddress(*head["reading"]["address"])})
