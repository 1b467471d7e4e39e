"""Reads requests: small ones at once, large ones in a process of its own, so that no body can hold up the server.

Parsing holds Python's interpreter lock for as long as it takes, in whatever thread: up to a second for 8 MiB of JSON, five
for gRPC. The other process is started for the first large request, reads one at a time, and ends with the server.
The pipes carry lengths, JSON and the arrays' own bytes; no pickles.
"""

import asyncio
import concurrent.futures
import dataclasses
import json
import logging
import math
import struct
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from typing import IO, Any

import numpy as np

from official_bert.server.protocols.readers import READERS
from official_bert.server.reading import requests
from official_bert.server.reading.requests import Reading
from official_bert.server.reading.tensors import NUMPY_TYPES, Specs, TensorSpec, type_name
from official_bert.server.request_checks import Limits
from official_bert.server.statuses import RequestError

LOG = logging.getLogger("official_bert.server")
LARGE_BYTES = 16 << 10  # what is smaller is read in about a millisecond, whatever it holds
LONGEST_SECONDS = 20.0  # that the process may take for one request
LENGTH = struct.Struct("<q")


class RequestReader:
    """Reads requests of all protocols within `limits`. `message` is the class `PredictRequest`."""

    def __init__(self, limits: Limits, message: Any):
        self.limits, self._message = limits, message
        self._process: subprocess.Popen | None = None
        self._waiting = 0  # bytes
        self._thread = concurrent.futures.ThreadPoolExecutor(1, "reading")

    async def rest(self, body: bytes, signatures: Mapping[str, Specs]) -> Reading:
        """Returns what a JSON body for a model with these signatures holds. Raises RequestError."""
        if len(body) < LARGE_BYTES:
            return requests.read_rest(body, signatures, self.limits)
        return await self._elsewhere({"signatures": {key: {name: [spec.dtype, spec.shape] for name, spec in specs.items()}
                                                     for key, specs in signatures.items()}}, body)

    async def read(self, protocol: str, body: bytes, **task: Any) -> Reading:
        """Returns what a request of another protocol (`READERS`) holds; `task` are further arguments of its reader. Raises RequestError."""
        if len(body) < LARGE_BYTES:
            return READERS[protocol](body, self.limits, **task)
        return await self._elsewhere({"protocol": protocol, **task}, body)

    async def grpc(self, data: bytes) -> Reading:
        """Returns what a serialized `PredictRequest` holds. Raises RequestError."""
        if len(data) < LARGE_BYTES:
            return requests.read_grpc(self._message, data, self.limits)
        return await self._elsewhere({}, data)

    def close(self) -> None:
        """Ends the process, whatever it is reading."""
        self._thread.shutdown(wait=False, cancel_futures=True)
        self._end()

    async def _elsewhere(self, task: dict, data: bytes) -> Reading:
        """Waits for the process to be free, then for its answer. A request whose client goes while it waits is dropped."""
        if self._waiting + len(data) > self.limits.max_unfinished_bytes:
            raise RequestError("UNAVAILABLE", "too many large requests wait to be read")
        self._waiting += len(data)
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, self._exchange, task, data)
        finally:
            self._waiting -= len(data)

    def _exchange(self, task: dict, data: bytes) -> Reading:
        if self._process is None or self._process.poll() is not None:
            self._end()
            self._process = start(self._message, self.limits)
        process = self._process
        assert process.stdin is not None and process.stdout is not None
        timer = threading.Timer(LONGEST_SECONDS, process.kill)
        timer.start()
        try:
            send(process.stdin, json.dumps(task).encode(), data)
            try:
                return receive_reading(process.stdout)
            finally:
                if not receive(process.stdout):  # it ends, and would take the next request with it
                    self._end()
        except (OSError, ValueError) as error:  # it was killed, ended by itself, or its pipes were closed
            self._end()
            LOG.warning("the process that reads large requests ended: %s", error)
            raise RequestError("RESOURCE_EXHAUSTED", f"a request of {len(data)} bytes could not be read within "
                                                     f"{LONGEST_SECONDS:g} s and the memory for it") from None
        finally:
            timer.cancel()

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.communicate()


def start(message: Any, limits: Limits) -> subprocess.Popen:
    """Starts the process, and gives it the limits and the definition of `message`, which it cannot import without TensorFlow."""
    process = subprocess.Popen([sys.executable, "-m", "official_bert.server.reading.child"], stdin=subprocess.PIPE,
                               stdout=subprocess.PIPE, start_new_session=True)  # Ctrl-C is for the server alone
    assert process.stdin is not None
    files = _files(message.DESCRIPTOR.file)
    send(process.stdin, json.dumps(dataclasses.asdict(limits)).encode(), message.DESCRIPTOR.full_name.encode(),
         *(file.serialized_pb for file in files))
    send(process.stdin, b"")
    return process


def _files(file: Any) -> list[Any]:
    """Returns a definition file of protocol buffers, preceded by all that it needs."""
    opened: dict[str, Any] = {}

    def add(file: Any) -> None:
        for needed in file.dependencies:
            add(needed)
        opened[file.name] = file
    add(file)
    return list(opened.values())


def send(stream: IO[bytes], *parts: bytes) -> None:
    """Writes byte strings, each behind its length."""
    for part in parts:
        stream.write(LENGTH.pack(len(part)))
        stream.write(part)
    stream.flush()


def receive(stream: IO[bytes]) -> bytes:
    """Returns the next byte string. Raises ConnectionResetError at the end."""
    (length,) = LENGTH.unpack(_exactly(stream, LENGTH.size))
    return _exactly(stream, length)


def _exactly(stream: IO[bytes], length: int) -> bytes:
    data = stream.read(length)
    if len(data) < length:
        raise ConnectionResetError("no more bytes")
    return data


def send_reading(stream: IO[bytes], answer: Reading | RequestError) -> None:
    """Writes a request that was read, or the error."""
    if isinstance(answer, RequestError):
        send(stream, json.dumps({"code": answer.code, "message": answer.message}).encode())
        return
    arrays = [(name, type_name(array), array.shape) for name, array in answer.inputs.items()]
    parts: list[bytes] = []
    for array in answer.inputs.values():
        if array.dtype == object:
            lengths, joined = requests.pack_strings(array)
            parts += [lengths.tobytes(), joined]
        else:
            parts.append(np.ascontiguousarray(array).tobytes())
    fields = {field.name: getattr(answer, field.name) for field in dataclasses.fields(answer) if field.name != "inputs"}
    send(stream, json.dumps({"arrays": arrays, "reading": fields}).encode(), *parts)


def receive_reading(stream: IO[bytes]) -> Reading:
    """Reads what `send_reading` wrote. Raises RequestError if it wrote one."""
    head = json.loads(receive(stream))
    if "code" in head:
        raise RequestError(head["code"], head["message"])
    inputs = {}
    for name, dtype, shape in head["arrays"]:
        if dtype == "string":
            lengths = np.frombuffer(receive(stream), np.int64)
            inputs[name] = requests.unpack_strings(lengths, receive(stream)).reshape(shape)
        else:
            inputs[name] = np.frombuffer(receive(stream), NUMPY_TYPES[dtype], count=math.prod(shape)).reshape(shape)
    return Reading(inputs=inputs, **{**head["reading"], "outputs": tuple(head["reading"]["outputs"])})


def specs_of(task: Mapping[str, Any]) -> dict[str, Specs]:
    """Returns the signatures in a task, as `RequestReader.rest` writes them."""
    def tuple_of(shape: Sequence | None) -> tuple | None:
        return None if shape is None else tuple(shape)

    return {key: {name: TensorSpec("", dtype, tuple_of(shape)) for name, (dtype, shape) in specs.items()}
            for key, specs in task["signatures"].items()}
