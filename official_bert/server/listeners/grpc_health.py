"""The gRPC health protocol, `grpc.health.v1`, for the whole server, from the moment it listens."""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any, Protocol

from grpc_health.v1 import health_pb2, health_pb2_grpc

from official_bert.server.protocols.kserve.messages import SERVICE
from official_bert.server.statuses import RequestError

WATCH_SECONDS = 0.5  # between looks at the state for those who watch it


class Readiness(Protocol):
    """The interface that tells whether the server is ready: of `RequestHandler`, and before that of `Starting`."""

    is_leaving: bool  # will stop in a moment: it answers, and says that it is not ready
    is_draining: bool  # refuses new requests

    def why_not_ready(self) -> str:
        """Returns why requests should go to another server; "" if every model is ready."""
        ...


class Health(health_pb2_grpc.HealthServicer):
    """Health of the server (the service "") and of its services: SERVING if every model is ready."""

    SERVICES = ("", "tensorflow.serving.PredictionService", "tensorflow.serving.ModelService", SERVICE)

    def __init__(self, readiness: Callable[[], Readiness]):
        self._readiness = readiness

    async def Check(self, request: Any, context: Any) -> Any:  # noqa: N802  the protocol's name
        """Returns the state of a service. Raises RequestError NOT_FOUND for an unknown service."""
        if request.service not in self.SERVICES:
            raise RequestError("NOT_FOUND", f"expected one of {list(self.SERVICES)}")
        return health_pb2.HealthCheckResponse(status=self._status())

    async def Watch(self, request: Any, context: Any) -> AsyncIterator[Any]:  # noqa: N802
        """Yields the state of a service now and at each change; ends when the server stops."""
        states = health_pb2.HealthCheckResponse
        last_status = None
        while True:
            is_last = self._readiness().is_draining
            status = self._status() if request.service in self.SERVICES else states.SERVICE_UNKNOWN
            if status != last_status:
                yield states(status=status)
            if is_last:
                return
            last_status = status
            await asyncio.sleep(WATCH_SECONDS)

    def _status(self) -> Any:
        states = health_pb2.HealthCheckResponse
        return states.NOT_SERVING if self._readiness().why_not_ready() else states.SERVING
