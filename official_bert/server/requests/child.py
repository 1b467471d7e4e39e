"""The process that parses large requests: it reads them from a pipe, one after the other, until the pipe is closed."""

import json
import os
import resource
import sys
from multiprocessing.connection import Connection
from typing import Any

from google.protobuf import descriptor_pool, message_factory

from official_bert.server.memory import resident
from official_bert.server.requests.process import send_reading
from official_bert.server.requests.readers import readers
from official_bert.server.requests.reading import Reading
from official_bert.server.requests.request_checks import Limits
from official_bert.server.statuses import RequestError

MOST_MEMORY = 2 << 30
KEPT_MEMORY = 300 << 20  # holding more after a request, the process ends, and a new one is started when it is needed


def main() -> None:
    """Reads the limits and the message's definition from the pipe, then parses requests."""
    resource.setrlimit(resource.RLIMIT_AS, (MOST_MEMORY, MOST_MEMORY))
    os.nice(1)  # what is small goes first
    pipe = Connection(int(sys.argv[1]))
    limits = Limits(**json.loads(pipe.recv_bytes()))
    read_by = readers(_message(pipe))
    stays = True
    while stays:
        try:
            task = json.loads(pipe.recv_bytes())
        except EOFError:
            return
        send_reading(pipe, _read(read_by[task.pop("protocol")], pipe.recv_bytes(), limits, task))
        stays = resident() < KEPT_MEMORY
        # said, because the server cannot see in time that a process is about to end
        pipe.send_bytes(b"stays" if stays else b"")


def _message(pipe: Connection) -> Any:
    """Returns the class of the message whose name and definition come next in the pipe."""
    name, pool = pipe.recv_bytes().decode(), descriptor_pool.DescriptorPool()
    while data := pipe.recv_bytes():
        pool.AddSerializedFile(data)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(name))


def _read(reader: Any, body: bytes, limits: Limits, task: dict) -> Reading | RequestError:
    try:
        return reader(body, limits, **task)
    except RequestError as error:
        return error
    except MemoryError:
        return RequestError("RESOURCE_EXHAUSTED", f"a request of {len(body)} bytes takes too much memory to read")
    except Exception as error:
        return RequestError("INTERNAL", f"{type(error).__name__} while the request was read")


if __name__ == "__main__":
    main()
