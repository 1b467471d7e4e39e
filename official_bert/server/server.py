"""The embedded server: serves a folder of SavedModels over REST and gRPC, in one process.

It is meant for trying models out, for tests, and for deployments without containers. It speaks TF Serving's protocols,
so a client of TF Serving works unchanged. It also speaks those of other servers (`protocols/`), on the same queue.
"""

import asyncio
import contextlib
import gc
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from official_bert.dotted_names import by_name
from official_bert.server.listeners.ports import Ports
from official_bert.server.server_config import ServerOptions

if TYPE_CHECKING:
    from official_bert.server.services import Services

LOG = logging.getLogger(__package__)
LEAVING_SECONDS = 1.0  # for closing what is left when the time for requests is over


class Server:
    """The server: call `start`, then `stop`, in one event loop, or `run`, which serves until a signal."""

    def __init__(self, options: ServerOptions):
        self.options = options
        self.ports = Ports(options)
        self.services: Services | None = None

    async def start(self) -> None:
        """Opens the ports, then imports TensorFlow and loads the models; returns when all of them are ready.

        Raises OSError if a port is not available, ValueError if a model has no version that loads.
        """
        try:
            await self.ports.open()
            LOG.info(
                "listening, with %s: %s", ", ".join(model.name for model in self.options.models), self.ports.addresses()
            )
            make: type[Services] = await asyncio.to_thread(by_name, "official_bert.server.services:Services")
            gc.freeze()  # a search for garbage, during which no request goes on, leaves out what was imported
            self.services = services = make(self.options, self.ports.connections)
            self.ports.serve(services.rest.answer, services.grpc_services(), services.handler)
            await services.load()
        except BaseException:
            await self.stop()
            raise

    async def stop(self) -> None:
        """Refuses new requests, waits up to `drain_seconds` for the running ones, and frees everything."""
        self.ports.readiness.is_leaving = self.ports.readiness.is_draining = True
        await self.ports.close()
        if self.services is not None:
            self.services.close()

    async def run(self, started: Callable[["Server"], Any] = lambda server: None) -> None:
        """Serves until SIGINT or SIGTERM; calls `started` when the models are ready.

        After SIGTERM it answers for `lame_duck_seconds` more but reports that it is not ready, so that balancers choose
        other servers; a second signal ends that. Then running requests have `drain_seconds`, and the process ends
        shortly after, whatever its threads do. A signal during the start ends the process at once.
        """
        signals = asyncio.Queue[int]()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, signals.put_nowait, number)
        starting, waiting = asyncio.ensure_future(self.start()), asyncio.ensure_future(signals.get())
        await asyncio.wait({starting, waiting}, return_when=asyncio.FIRST_COMPLETED)
        if not starting.done():
            LOG.info("stopping, before the models are loaded")
            _leave()
        await starting
        started(self)
        if await waiting == signal.SIGTERM and self.options.lame_duck_seconds:
            LOG.info("stopping: no longer ready; requests are answered for %g s more", self.options.lame_duck_seconds)
            self.ports.readiness.is_leaving = True
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(signals.get(), self.options.lame_duck_seconds)
        LOG.info(
            "stopping: %d running requests are answered first, for %g s at most",
            self.services.handler.in_flight if self.services else 0,
            self.options.drain_seconds,
        )
        end = threading.Timer(self.options.drain_seconds + LEAVING_SECONDS, _leave)
        end.daemon = True
        end.start()
        await self.stop()


def _leave() -> None:
    """Ends the process without waiting for its threads, because TensorFlow cannot be interrupted."""
    logging.shutdown()
    sys.stdout.flush()
    os._exit(0)
