"""What REST and gRPC share: a request for a model becomes checked arrays, a place in a batch, and an answer."""

import asyncio
import contextlib
import dataclasses
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from official_bert.server.batching import Batcher
from official_bert.server.metrics import Metrics
from official_bert.server.model_manager import ModelManager, Version
from official_bert.server.request_checks import Limits, check_inputs, have_rows
from official_bert.server.servable import Arrays, Servable, Signature
from official_bert.server.statuses import RequestError, invalid


@dataclasses.dataclass(frozen=True)
class ModelAddress:
    """Which model a request means: a version by number, by label, or (neither) the highest."""

    name: str
    version: int | None = None
    label: str = ""

    @classmethod
    def of(cls, spec: Any) -> "ModelAddress":
        """From a `ModelSpec`."""
        return cls(spec.name, spec.version.value if spec.HasField("version") else None, spec.version_label)


@dataclasses.dataclass(frozen=True)
class Answer:
    """The outputs, and what gave them."""

    version: int
    signature: str
    outputs: Arrays


class RequestHandler:
    """Answers requests of any protocol; knows how many are under way and refuses them while the server stops."""

    def __init__(self, manager: ModelManager, batcher: Batcher | None, limits: Limits, metrics: Metrics):
        self.manager, self.batcher, self.limits, self.metrics = manager, batcher, limits, metrics
        self.in_flight = 0
        self.is_draining = False

    @contextlib.contextmanager
    def admitted(self, name: str, api: str, entrypoint: str) -> Iterator[None]:
        """Counts a request from here to its answer. RequestError UNAVAILABLE where there are too many, or no more wanted."""
        started, status = time.perf_counter(), "OK"
        try:
            if self.is_draining or self.in_flight >= self.limits.max_concurrent_requests:
                raise RequestError("UNAVAILABLE", "the server is stopping" if self.is_draining else
                                   f"more than {self.limits.max_concurrent_requests} requests at once")
            self.in_flight += 1
            self.metrics.in_flight(1)
            try:
                yield
            finally:
                self.in_flight -= 1
                self.metrics.in_flight(-1)
        except RequestError as error:
            status = error.code
            raise
        except asyncio.CancelledError:
            status = "CANCELLED"
            raise
        except BaseException:
            status = "INTERNAL"
            raise
        finally:
            known = name if name in self.manager.models else "(unknown)"
            self.metrics.request_done(known, status, api, entrypoint, time.perf_counter() - started)

    async def predict(self, address: ModelAddress, signature_name: str, read: Callable[[Signature], Arrays],
                      wanted: Sequence[str] = ()) -> Answer:
        """The outputs of a signature; `read` makes its inputs, `wanted` names the outputs (none: all of them)."""
        with self.manager.using(address.name, address.version, address.label) as servable:
            signature = servable.signature(signature_name)
            _check_wanted(signature, wanted)
            inputs = read(signature)
            check_inputs(signature, inputs, self.limits)
            outputs = await self._run(servable, signature, inputs)
            return Answer(servable.version, signature.name,
                          {name: outputs[name] for name in wanted} if wanted else outputs)

    async def _run(self, servable: Servable, signature: Signature, inputs: Arrays) -> Arrays:
        """Runs in a batch where the signature has rows and batching is on."""
        def run(batch: Arrays) -> dict[str, np.ndarray]:
            started = time.perf_counter()
            outputs = signature.run(batch)
            self.metrics.model_ran(servable.name, time.perf_counter() - started)
            return outputs

        if self.batcher is None:
            return await asyncio.to_thread(run, inputs)
        if not have_rows(signature, inputs):
            return await self.batcher.alone(inputs, run)
        return await self.batcher.answer((servable.name, servable.version, signature.name), inputs, run)

    def statuses(self, address: ModelAddress) -> list[Version]:
        """The versions of a model and their states."""
        return self.manager.statuses(address.name, address.version, address.label)

    def definitions(self, address: ModelAddress) -> tuple[int, dict[str, Any]]:
        """A version's number and its signatures' definitions (`SignatureDef`)."""
        with self.manager.using(address.name, address.version, address.label) as servable:
            return servable.version, servable.definitions


def _check_wanted(signature: Signature, wanted: Sequence[str]) -> None:
    """The names of an output filter exist, and stand once."""
    for name in wanted:
        if name not in signature.outputs:
            raise invalid(f"output tensor alias not found in signature: {name} Outputs expected to be in the set "
                          f"{{{','.join(signature.outputs)}}}.")
    if len(set(wanted)) < len(wanted):
        raise invalid(f"duplicate output tensor alias: {','.join(wanted)}")
