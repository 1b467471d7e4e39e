"""The embedded server: answers requests for a folder of SavedModels over REST and gRPC, in one process.

For trying models out, for tests, and where a container is too much. It speaks TF Serving's protocols, so what is
written against it runs against TF Serving; and those of other servers (`protocols/`), translated onto the same queue of
requests.
"""

import asyncio
import contextlib
import dataclasses
import logging
import os
import signal
import sys
import threading
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import grpc
import tensorflow as tf
from aiohttp import web
from grpc_health.v1 import health_pb2_grpc
from tensorflow_serving.apis import model_service_pb2_grpc, predict_pb2, prediction_service_pb2_grpc

from official_bert.copies import local_copy
from official_bert.server.access import AccessRules
from official_bert.server.batch_queue import DEFAULT_PARAMETERS, DEFAULT_RUN_COST, BatchingParameters
from official_bert.server.batching import Batcher
from official_bert.server.engines import use_engine
from official_bert.server.gates import AccessLog, GrpcGate, Tls, rest_gate
from official_bert.server.grpc_connections import GrpcConnections
from official_bert.server.memory import give_back
from official_bert.server.metrics import Metrics
from official_bert.server.model_manager import ModelManager
from official_bert.server.protocols.kserve.grpc_service import InferenceService
from official_bert.server.protocols.rest_service import RestService
from official_bert.server.protocols.tensorflow_serving.grpc_service import Health, ModelService, PredictionService
from official_bert.server.reading.process import RequestReader
from official_bert.server.request_checks import Limits
from official_bert.server.request_handler import RequestHandler
from official_bert.server.servable import Servable
from official_bert.server.server_config import METRICS_PATH, PER_MODEL_BATCHING_FILE, ServedModelConfig, read_batching

LOG = logging.getLogger("official_bert.server")
LEAVING_SECONDS = 1.0  # for closing what is left when the time for requests is over
IDLE_MILLISECONDS = 5 * 60_000  # that a gRPC connection without a request is kept
# A connection may hold so many requests at once (its client lets others wait), with so many bytes of headers each, and
# without a table from which a byte of a header becomes kilobytes: what a flood of headers can take is the product.
STREAMS, HEADER_BYTES = 16, 8 << 10
# then its client is asked to reconnect, so that an unfinished message is not kept forever
OLDEST_MILLISECONDS = 30 * 60_000


@dataclasses.dataclass(frozen=True, kw_only=True)
class ServerOptions:
    """The models to serve, the addresses, the clients to answer, and the limits."""

    models: Sequence[ServedModelConfig]
    host: str = "127.0.0.1"  # on other addresses, anyone who reaches the port may ask unless there are tokens
    rest_port: int | None = 8501  # 0: any that is free; None: no REST
    grpc_port: int | None = 8500
    batching: BatchingParameters | None = DEFAULT_PARAMETERS  # None: each request alone
    # only versions with a file of their own (`batching_params.pbtxt`) are batched, by it
    per_model_batching: bool = False
    run_cost: int = DEFAULT_RUN_COST  # bytes of text or numbers of ids; 0: batches are chosen by age and rows alone
    limits: Limits = dataclasses.field(default_factory=Limits)
    default_model: str = ""  # that answers requests which name none; "": the only one
    metrics_path: str = METRICS_PATH
    poll_seconds: float = 1.0  # between looks at the folders of models
    timeout_seconds: float = 30.0  # of a REST request; gRPC requests bring their own
    max_run_seconds: float = 300.0  # of one run of a model, however long its clients wait
    access: AccessRules | None = None  # None: what suits `host`, without tokens
    tls_certificate_file: str = ""  # PEM; both or none, for REST and gRPC
    tls_key_file: str = ""
    access_log: str = ""  # a file; `-`: standard error
    drain_seconds: float = 30.0  # for requests under way when the server is stopped
    enable_warmup: bool = True
    intra_op_threads: int = 0  # of TensorFlow; 0: one a core
    inter_op_threads: int = 0
    engine: str = ""  # that computes models (`runtimes`); "": TensorFlow


class Server:
    """`start`, then `stop`, in one event loop; or `run`, which serves until a signal."""

    def __init__(self, options: ServerOptions):
        self.options = options
        self.metrics = Metrics()
        self.manager = ModelManager(options.models, self._load, self.metrics, settle_seconds=options.poll_seconds)
        self.rest_port: int | None = None
        self.grpc_port: int | None = None
        self._stack = contextlib.AsyncExitStack()
        self._listening: list[Callable[[], Awaitable[None]]] = []  # how to stop it
        self._access = options.access or AccessRules.for_server(options.host)
        self._tls = Tls.read(options.tls_certificate_file, options.tls_key_file)
        self._access_log = AccessLog(options.access_log)

    def _load(self, name: str, version: int, folder: str) -> Servable:
        config = tf.compat.v1.ConfigProto(intra_op_parallelism_threads=self.options.intra_op_threads,
                                          inter_op_parallelism_threads=self.options.inter_op_threads)
        folder_here = local_copy(folder)
        servable = Servable(name, version, folder_here, config, self._batching_of(folder_here), folder_here != folder)
        try:
            if self.options.engine:
                engine = use_engine(servable, folder, self.options.engine, self.options.intra_op_threads)
                LOG.info("%s version %d: %s", name, version, engine)
            count = servable.warm_up(folder_here) if self.options.enable_warmup else 0
        except BaseException:
            servable.close()
            raise
        LOG.info("%s version %d: loaded, %d warm-up requests", name, version, count)
        return servable

    def _batching_of(self, folder: str) -> BatchingParameters | None:
        """Returns the parameters of a version. As in TF Serving, a per-model file that is not there means no batching.
        """
        if self.options.batching is None or not self.options.per_model_batching:
            return self.options.batching
        path = os.path.join(folder, PER_MODEL_BATCHING_FILE)
        return read_batching(path) if os.path.exists(path) else None

    async def start(self) -> None:
        """Loads the models, then listens. Raises ValueError if a model has no version that loads, OSError for a port in
        use.
        """
        options = self.options
        await self._load_models()
        batcher = Batcher(options.batching, self.metrics, options.limits,
                          options.run_cost) if options.batching else None
        reader = RequestReader(options.limits, predict_pb2.PredictRequest)
        self.handler = RequestHandler(self.manager, batcher, options.limits, self.metrics, reader,
                                      options.max_run_seconds)
        # In the reverse of this order it is taken down again: first no new connections, last the models.
        self._stack.callback(self._access_log.close)
        self._stack.callback(self.manager.close, 0)  # no request is left that would use them
        if batcher is not None:
            self._stack.callback(batcher.close)
        self._stack.callback(reader.close)
        self._stack.push_async_callback(self._stop_listening)
        try:
            self._stack.callback(asyncio.create_task(self._poll()).cancel)
            if options.rest_port is not None:
                await self._start_rest(options.rest_port)
            if options.grpc_port is not None:
                await self._start_grpc(options.grpc_port)
        except BaseException:
            await self._stack.aclose()
            raise

    async def _load_models(self) -> None:
        """Polls twice: a folder that was written a moment ago counts as complete at the second poll only."""
        await asyncio.to_thread(self.manager.poll)
        if self.manager.waiting():
            await asyncio.sleep(self.options.poll_seconds)
            await asyncio.to_thread(self.manager.poll)
        if errors := self.manager.errors():
            await asyncio.to_thread(self.manager.close)
            raise ValueError("; ".join(errors))

    async def _poll(self) -> None:
        while True:
            await asyncio.sleep(self.options.poll_seconds)
            try:
                await asyncio.to_thread(self.manager.poll)
            except Exception:
                LOG.exception("looking at the folders of models")

    async def _start_rest(self, port: int) -> None:
        service = RestService(self.handler, self.options.metrics_path, self.options.timeout_seconds,
                              rest_gate(self._access, self._access_log), self.options.default_model)
        service.connections.tls_context = self._tls.context if self._tls else None
        runner = web.ServerRunner(service.connections, handle_signals=False,
                                  shutdown_timeout=self.options.drain_seconds)
        await runner.setup()

        async def stop() -> None:
            try:
                async with asyncio.timeout(self.options.drain_seconds):
                    await runner.cleanup()
            except TimeoutError:
                service.connections.abort()
        self._listening.append(stop)
        site = web.TCPSite(runner, self.options.host, port)
        await site.start()
        self.rest_port = runner.addresses[0][1]

    async def _stop_listening(self) -> None:
        """Ends REST and gRPC at the same time, after what they are answering, but not later than `drain_seconds`."""
        await asyncio.gather(*(stop() for stop in self._listening))

    async def _start_grpc(self, port: int) -> None:
        limits = self.options.limits
        connections = GrpcConnections(limits)
        server = grpc.aio.server(interceptors=[GrpcGate(self._access, self._access_log, connections)], options=[
            ("grpc.max_receive_message_length", limits.max_request_bytes), ("grpc.max_send_message_length", -1),
            ("grpc.so_reuseport", 0), ("grpc.max_allowed_incoming_connections", 2 * limits.max_connections),
            ("grpc.server_handshake_timeout_ms", int(1000 * limits.keepalive_seconds)),
            ("grpc.max_connection_idle_ms", IDLE_MILLISECONDS), ("grpc.max_connection_age_ms", OLDEST_MILLISECONDS),
            ("grpc.max_connection_age_grace_ms", int(1000 * self.options.max_run_seconds)),
            ("grpc.max_concurrent_streams", min(STREAMS, limits.max_concurrent_requests)),
            ("grpc.max_metadata_size", HEADER_BYTES), ("grpc.absolute_max_metadata_size", HEADER_BYTES),
            ("grpc.http2.hpack_table_size.decoder", 0)])
        prediction_service_pb2_grpc.add_PredictionServiceServicer_to_server(PredictionService(self.handler), server)
        model_service_pb2_grpc.add_ModelServiceServicer_to_server(ModelService(self.handler), server)
        server.add_generic_rpc_handlers([InferenceService(self.handler).handlers()])
        health_pb2_grpc.add_HealthServicer_to_server(Health(self.handler), server)
        address = f"{self._host}:{port}"
        try:
            self.grpc_port = server.add_secure_port(
                address, self._tls.credentials) if self._tls else server.add_insecure_port(address)
        except RuntimeError:
            raise OSError(f"--port={port}: cannot listen on {address}; is it in use?") from None
        await server.start()
        self._stack.callback(asyncio.create_task(give_back()).cancel)
        self._stack.callback(asyncio.create_task(connections.watch(self.grpc_port)).cancel)
        self._listening.append(lambda: server.stop(self.options.drain_seconds))

    async def stop(self) -> None:
        """Refuses new requests, answers those under way (up to `drain_seconds`), and frees everything."""
        self.handler.is_draining = True
        await self._stack.aclose()

    def addresses(self) -> str:
        """Says where the server listens."""
        scheme = "https" if self._tls else "http"
        rest = f"REST and a page to try it: {scheme}://{self._host}:{self.rest_port}" if self.rest_port else ""
        return "; ".join(filter(None, [rest, f"gRPC: {self._host}:{self.grpc_port}" if self.grpc_port else ""]))

    @property
    def _host(self) -> str:
        """Returns the host as it stands before a port."""
        return f"[{self.options.host}]" if ":" in self.options.host else self.options.host

    async def run(self, started: Callable[["Server"], Any] = lambda server: None) -> None:
        """Serves until SIGINT or SIGTERM; `started` is called when it listens.

        From the signal on, the process lives `drain_seconds` and a little longer at most, whatever its threads are
        doing; while models are loaded, not even that: there is nothing to answer.
        """
        stopping = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, stopping.set)
        starting, waiting = asyncio.ensure_future(self.start()), asyncio.ensure_future(stopping.wait())
        await asyncio.wait({starting, waiting}, return_when=asyncio.FIRST_COMPLETED)
        if not starting.done():
            LOG.info("stopping, before the models are loaded")
            _leave()
        await starting
        started(self)
        await waiting
        LOG.info("stopping: %d requests under way are answered first, for %g s at most", self.handler.in_flight,
                 self.options.drain_seconds)
        end = threading.Timer(self.options.drain_seconds + LEAVING_SECONDS, _leave)
        end.daemon = True
        end.start()
        await self.stop()


def _leave() -> None:
    """Ends the process without waiting for threads, which TensorFlow cannot interrupt."""
    logging.shutdown()
    sys.stdout.flush()
    os._exit(0)
