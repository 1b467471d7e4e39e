"""The embedded server: what a folder of SavedModels needs to be asked over REST and gRPC, in one process.

For trying models out, for tests, and where a container is too much. It speaks TF Serving's protocols, so what is written
against it runs against TF Serving.
"""

import asyncio
import contextlib
import dataclasses
import logging
import signal
from collections.abc import Callable, Sequence
from typing import Any

import grpc
import tensorflow as tf
from aiohttp import web
from tensorflow_serving.apis import model_service_pb2_grpc, prediction_service_pb2_grpc

from official_bert.server.batching import Batcher, BatchingParameters
from official_bert.server.grpc_service import ModelService, PredictionService, RefuseGarbage
from official_bert.server.metrics import Metrics
from official_bert.server.model_manager import ModelManager
from official_bert.server.request_checks import Limits
from official_bert.server.request_handler import RequestHandler
from official_bert.server.rest import RestService
from official_bert.server.servable import Servable
from official_bert.server.server_config import METRICS_PATH, ServedModelConfig

LOG = logging.getLogger("official_bert.server")


@dataclasses.dataclass(frozen=True, kw_only=True)
class ServerOptions:
    """What is served, where, and within which bounds."""

    models: Sequence[ServedModelConfig]
    host: str = "127.0.0.1"  # whoever reaches the port may ask: other addresses only behind something that checks
    rest_port: int | None = 8501  # 0: any that is free; None: no REST
    grpc_port: int | None = 8500
    batching: BatchingParameters | None = dataclasses.field(default_factory=BatchingParameters)  # None: each request alone
    limits: Limits = dataclasses.field(default_factory=Limits)
    metrics_path: str = METRICS_PATH
    poll_seconds: float = 1.0  # between looks at the folders of models
    timeout_seconds: float = 30.0  # of a REST request; gRPC requests bring their own
    drain_seconds: float = 30.0  # for requests under way when the server is stopped
    enable_warmup: bool = True
    intra_op_threads: int = 0  # of TensorFlow; 0: one a core
    inter_op_threads: int = 0


class Server:
    """`start`, then `stop`, in one event loop; or `run`, which serves until a signal."""

    def __init__(self, options: ServerOptions):
        self.options = options
        self.metrics = Metrics()
        self.manager = ModelManager(options.models, self._load, self.metrics, settle_seconds=options.poll_seconds)
        self.rest_port: int | None = None
        self.grpc_port: int | None = None
        self._stack = contextlib.AsyncExitStack()

    def _load(self, name: str, version: int, folder: str) -> Servable:
        config = tf.compat.v1.ConfigProto(intra_op_parallelism_threads=self.options.intra_op_threads,
                                          inter_op_parallelism_threads=self.options.inter_op_threads)
        servable = Servable(name, version, folder, config)
        try:
            count = servable.warm_up(folder) if self.options.enable_warmup else 0
        except BaseException:
            servable.close()
            raise
        LOG.info("%s version %d: loaded, %d warm-up requests", name, version, count)
        return servable

    async def start(self) -> None:
        """Loads the models, then listens. ValueError where a model has no version that loads, OSError for a port in use."""
        options = self.options
        await self._load_models()
        batcher = Batcher(options.batching, self.metrics) if options.batching else None
        self.handler = RequestHandler(self.manager, batcher, options.limits, self.metrics)
        # In the reverse of this order it is taken down again: first no new connections, last the models.
        self._stack.callback(self.manager.close, options.drain_seconds)
        if batcher is not None:
            self._stack.callback(batcher.close)
        try:
            await self._start_polling()
            if options.rest_port is not None:
                await self._start_rest(options.rest_port)
            if options.grpc_port is not None:
                await self._start_grpc(options.grpc_port)
        except BaseException:
            await self._stack.aclose()
            raise

    async def _load_models(self) -> None:
        """Looks twice: what was written a moment ago counts as complete at the second look only."""
        await asyncio.to_thread(self.manager.poll)
        if self.manager.waiting():
            await asyncio.sleep(self.options.poll_seconds)
            await asyncio.to_thread(self.manager.poll)
        if errors := self.manager.errors():
            await asyncio.to_thread(self.manager.close)
            raise ValueError("; ".join(errors))

    async def _start_polling(self) -> None:
        async def poll() -> None:
            while True:
                await asyncio.sleep(self.options.poll_seconds)
                try:
                    await asyncio.to_thread(self.manager.poll)
                except Exception:
                    LOG.exception("looking at the folders of models")

        task = asyncio.create_task(poll())

        async def end() -> None:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
        self._stack.push_async_callback(end)

    async def _start_rest(self, port: int) -> None:
        service = RestService(self.handler, self.options.metrics_path, self.options.timeout_seconds)
        runner = web.AppRunner(service.make_app(), access_log=None, handle_signals=False,
                               shutdown_timeout=self.options.drain_seconds)
        await runner.setup()
        self._stack.push_async_callback(runner.cleanup)
        site = web.TCPSite(runner, self.options.host, port)
        await site.start()
        self.rest_port = runner.addresses[0][1]

    async def _start_grpc(self, port: int) -> None:
        limit = self.options.limits.max_request_bytes
        server = grpc.aio.server(interceptors=[RefuseGarbage()], options=[
            ("grpc.max_receive_message_length", limit), ("grpc.max_send_message_length", -1), ("grpc.so_reuseport", 0)])
        prediction_service_pb2_grpc.add_PredictionServiceServicer_to_server(PredictionService(self.handler), server)
        model_service_pb2_grpc.add_ModelServiceServicer_to_server(ModelService(self.handler), server)
        host = f"[{self.options.host}]" if ":" in self.options.host else self.options.host
        try:
            self.grpc_port = server.add_insecure_port(f"{host}:{port}")
        except RuntimeError:
            raise OSError(f"--port={port}: cannot listen on {host}:{port}; is it in use?") from None
        await server.start()
        self._stack.push_async_callback(server.stop, self.options.drain_seconds)

    async def stop(self) -> None:
        """Takes no more requests, answers those under way (up to `drain_seconds`), and gives everything back."""
        self.handler.is_draining = True
        await self._stack.aclose()

    def addresses(self) -> str:
        """Where the server listens, in words."""
        host = f"[{self.options.host}]" if ":" in self.options.host else self.options.host
        rest = f"REST and a page to try it: http://{host}:{self.rest_port}" if self.rest_port else ""
        return "; ".join(filter(None, [rest, f"gRPC: {host}:{self.grpc_port}" if self.grpc_port else ""]))

    async def run(self, started: Callable[["Server"], Any] = lambda server: None) -> None:
        """Serves until SIGINT or SIGTERM; `started` is called when it listens."""
        stopping = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, stopping.set)
        await self.start()
        started(self)
        await stopping.wait()
        LOG.info("stopping")
        await self.stop()
