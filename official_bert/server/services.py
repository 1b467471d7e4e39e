"""The services behind the ports: the models, the queue of requests, the protocols. Imports TensorFlow."""

import asyncio
import contextlib
import logging
import os
import time
import weakref
from collections.abc import Callable
from typing import Any

import tensorflow as tf
from tensorflow_serving.apis import model_service_pb2_grpc, predict_pb2, prediction_service_pb2_grpc

from official_bert.server.listeners.connections import Connections
from official_bert.server.metrics import Metrics
from official_bert.server.models.engine_choice import AUTO, choose_engine
from official_bert.server.models.engine_servable import use_engine
from official_bert.server.models.model_manager import ModelManager
from official_bert.server.models.servable import LoadedGraph, Servable
from official_bert.server.models.version_folders import fingerprint
from official_bert.server.protocols.kserve.grpc_service import InferenceService
from official_bert.server.protocols.rest_service import RestService
from official_bert.server.protocols.tensorflow_serving.grpc_service import ModelService, PredictionService
from official_bert.server.queue.batch_queue import BatchingParameters
from official_bert.server.queue.batching import Batcher
from official_bert.server.requests.process import RequestReader
from official_bert.server.requests.request_handler import RequestHandler
from official_bert.server.server_config import PER_MODEL_BATCHING_FILE, ServerOptions, read_batching

LOG = logging.getLogger("official_bert.server")


class Services:
    """The services of a server. Make them in an event loop, then `load`, at the end `close`."""

    def __init__(self, options: ServerOptions, connections: Connections):
        self.options = options
        self._graphs = weakref.WeakValueDictionary[tuple, LoadedGraph]()  # nothing is kept of one that is unloaded
        self._stack = contextlib.ExitStack()
        metrics = Metrics()
        self.manager = ModelManager(options.models, self._load, metrics, settle_seconds=options.poll_seconds)
        batcher = None
        if options.batching:
            batcher = Batcher(options.batching, metrics, options.limits, options.run_cost)
        reader = RequestReader(options.limits, predict_pb2.PredictRequest)
        self.handler = RequestHandler(self.manager, batcher, options.limits, metrics, reader, options.max_run_seconds)
        self.rest = RestService(
            self.handler, connections, options.metrics_path, options.timeout_seconds, options.default_model
        )
        # In the reverse of this order it is taken down again: the models last.
        self._stack.callback(self.manager.close, 0)  # no request is left that would use them
        if batcher is not None:
            self._stack.callback(batcher.close)
        self._stack.callback(reader.close)

    def grpc_services(self) -> list[Callable[[Any], None]]:
        """Returns functions that add the services to a gRPC server."""
        return [
            lambda server: prediction_service_pb2_grpc.add_PredictionServiceServicer_to_server(
                PredictionService(self.handler), server
            ),
            lambda server: model_service_pb2_grpc.add_ModelServiceServicer_to_server(
                ModelService(self.handler), server
            ),
            lambda server: server.add_generic_rpc_handlers([InferenceService(self.handler).handlers()]),
        ]

    async def load(self) -> None:
        """Loads the models, then watches their folders. Raises ValueError if a model has no version that loads."""
        await asyncio.to_thread(self.manager.poll)
        if self.manager.waiting():  # a folder written a moment ago counts as complete at the second look only
            await asyncio.sleep(self.options.poll_seconds)
            await asyncio.to_thread(self.manager.poll)
        if errors := self.manager.errors():
            raise ValueError("; ".join(errors))
        self._stack.callback(asyncio.create_task(self._watch()).cancel)

    def close(self) -> None:
        """Cancels the watch and frees models, queue and threads."""
        self._stack.close()

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(self.options.poll_seconds)
            try:
                await asyncio.to_thread(self.manager.poll)
            except Exception:
                LOG.exception("looking at the folders of models")

    def _load(self, name: str, version: int, folder: str) -> Servable:
        started = time.monotonic()
        config = tf.compat.v1.ConfigProto(
            intra_op_parallelism_threads=self.options.intra_op_threads,
            inter_op_parallelism_threads=self.options.inter_op_threads,
        )
        graph = self._graph(folder, config)
        servable = Servable(
            name,
            version,
            folder_here := graph.folder,
            config,
            self._batching_of(graph.folder),
            self.manager.models[name].task,
            graph,
        )
        try:
            if self.options.engine == AUTO:
                lines = choose_engine(
                    servable, folder, self.options.intra_op_threads, self.options.most_loss, self.options.cache_dir
                )
                for line in lines:
                    LOG.info("%s version %d: %s", name, version, line)
            elif self.options.engine:
                engine = use_engine(servable, folder, self.options.engine, self.options.intra_op_threads)
                LOG.info("%s version %d: %s", name, version, engine)
            loaded = time.monotonic()
            count = servable.warm_up(folder_here) if self.options.enable_warmup else 0
        except BaseException:
            servable.close()
            raise
        LOG.info(
            "%s version %d: loaded in %.1f s, %d warm-up requests in %.1f s",
            name,
            version,
            loaded - started,
            count,
            time.monotonic() - loaded,
        )
        return servable

    def _graph(self, folder: str, config: tf.compat.v1.ConfigProto) -> LoadedGraph:
        """Returns a version's graph, which all its tasks share. It is read again if its files have changed."""
        key = folder, fingerprint(folder)
        graph = self._graphs.get(key)
        if graph is None or not graph.users:
            graph = self._graphs[key] = LoadedGraph(folder, config)
        return graph

    def _batching_of(self, folder: str) -> BatchingParameters | None:
        """Returns the batching parameters of a version.

        As in TF Serving, a missing per-model file means no batching.
        """
        if self.options.batching is None or not self.options.per_model_batching:
            return self.options.batching
        path = os.path.join(folder, PER_MODEL_BATCHING_FILE)
        return read_batching(path) if os.path.exists(path) else None
