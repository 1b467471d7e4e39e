"""The process that reads large requests: one after the other from its standard input, until that ends."""

import json
import os
import resource
import sys
from typing import IO, Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from official_bert.server.protocols.readers import READERS
from official_bert.server.reading import requests
from official_bert.server.reading.process import receive, send, send_reading, specs_of
from official_bert.server.request_checks import Limits
from official_bert.server.statuses import RequestError

MOST_MEMORY = 2 << 30
KEPT_MEMORY = 300 << 20  # holding more after a request, the process ends, and a new one is started when it is needed


def main() -> None:
    """Reads the limits and the message's definition, then requests."""
    resource.setrlimit(resource.RLIMIT_AS, (MOST_MEMORY, MOST_MEMORY))
    os.nice(1)  # what is small goes first
    tasks, answers = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # nothing that is printed may come between the answers
    settings = json.loads(receive(tasks))
    limits = Limits(**{**settings, "text_inputs": tuple(settings["text_inputs"])})
    message = _message(tasks)
    stays = True
    while stays:
        try:
            head = receive(tasks)
        except ConnectionResetError:
            return
        send_reading(answers, _read(json.loads(head), receive(tasks), message, limits))
        stays = _held_memory() < KEPT_MEMORY
        send(answers, b"stays" if stays else b"")  # said, because the server cannot see in time that a process is about to end


def _held_memory() -> int:
    """Bytes in memory. (`ru_maxrss` begins at what the parent had.)"""
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * resource.getpagesize()


def _message(tasks: IO[bytes]) -> Any:
    """The class of the message whose name and definition come next."""
    name, pool = receive(tasks).decode(), descriptor_pool.DescriptorPool()
    while data := receive(tasks):
        pool.Add(descriptor_pb2.FileDescriptorProto.FromString(data))
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(name))


def _read(task: dict, data: bytes, message: Any, limits: Limits) -> requests.Reading | RequestError:
    try:
        if "protocol" in task:
            return READERS[task.pop("protocol")](data, limits, **task)
        if "signatures" in task:
            return requests.read_rest(data, specs_of(task), limits)
        return requests.read_grpc(message, data, limits)
    except RequestError as error:
        return error
    except MemoryError:
        return RequestError("RESOURCE_EXHAUSTED", f"a request of {len(data)} bytes takes too much memory to read")
    except Exception as error:
        return RequestError("INTERNAL", f"{type(error).__name__} while the request was read")


if __name__ == "__main__":
    main()
