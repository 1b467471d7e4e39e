"""What REST and gRPC share: a request for a model becomes checked arrays, a place in a batch, and an answer."""

import asyncio
import contextlib
import dataclasses
import math
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
    label: str | None = None

    @classmethod
    def of(cls, spec: Any) -> "ModelAddress":
        """Reads a `ModelSpec`."""
        kind = spec.WhichOneof("version_choice")
        return cls(spec.name, spec.version.value if kind == "version" else None,
                   spec.version_label if kind == "version_label" else None)


@dataclasses.dataclass(frozen=True)
class Answer:
    """The outputs, and what gave them."""

    version: int
    signature: str
    outputs: Arrays


class RequestHandler:
    """Answers requests of any protocol; knows how many are under way and refuses them while the server stops."""

    def __init__(self, manager: ModelManager, batcher: Batcher | None, limits: Limits, metrics: Metrics,
                 max_run_seconds: float = math.inf):
        self.manager, self.batcher, self.limits, self.metrics = manager, batcher, limits, metrics
        self.max_run_seconds = max_run_seconds
        self.in_flight = 0
        self.is_draining = False

    @contextlib.contextmanager
    def admitted(self, name: str, api: str, entrypoint: str, deadline: float | None = None) -> Iterator[None]:
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
        except asyncio.CancelledError:  # the client has gone, or its time is over
            status = "DEADLINE_EXCEEDED" if deadline is not None and time.monotonic() >= deadline else "CANCELLED"
            raise
        except BaseException:
            status = "INTERNAL"
            raise
        finally:
            known = name if name in self.manager.models else "(unknown)"
            self.metrics.request_done(known, status, api, entrypoint, time.perf_counter() - started)

    async def predict(self, address: ModelAddress, signature_name: str, read: Callable[[Signature], Arrays],
                      wanted: Sequence[str] = (), deadline: float | None = None) -> Answer:
        """Runs a signature; `read` makes its inputs, `wanted` names the outputs (none: all of them).

        Raises RequestError, DEADLINE_EXCEEDED or RESOURCE_EXHAUSTED if there is no answer by `deadline` (of `time.monotonic`).
        """
        with self.manager.using(address.name, address.version, address.label) as servable:
            signature = servable.signature(signature_name)
            _check_wanted(signature, wanted)
            inputs = read(signature)
            check_inputs(signature, inputs, self.limits)
            outputs = await self._run(servable, signature, inputs, deadline)
            return Answer(servable.version, signature.name,
                          {name: outputs[name] for name in wanted} if wanted else outputs)

    async def _run(self, servable: Servable, signature: Signature, inputs: Arrays, deadline: float | None) -> Arrays:
        """Runs in a batch if the signature has rows and batching is on."""
        def run(batch: Arrays, batch_deadline: float | None) -> dict[str, np.ndarray]:
            started = time.perf_counter()
            latest = min(batch_deadline or math.inf, time.monotonic() + self.max_run_seconds)
            outputs = signature.run(batch, None if latest == math.inf else latest)
            self.metrics.model_ran(servable.name, time.perf_counter() - started)
            return outputs

        if self.batcher is None:
            return await asyncio.to_thread(run, inputs, deadline)
        if servable.batching is None or not have_rows(signature, inputs):
            return await self.batcher.alone(inputs, run, deadline)
        return await self.batcher.answer((servable.name, servable.version, signature.name), inputs, run, deadline,
                                         servable.batching)

    def statuses(self, address: ModelAddress) -> list[Version]:
        """Returns the versions of a model and their states. A label does not choose among them: TF Serving ignores it here."""
        return self.manager.statuses(address.name, address.version)

    def why_not_ready(self) -> str:
        """Says why requests should go elsewhere; empty if every model answers."""
        return "the server is stopping" if self.is_draining else "; ".join(self.manager.errors())

    def describe(self, address: ModelAddress) -> tuple[int, dict[str, Any], list[str]]:
        """Returns a version's number, its signatures' definitions (`SignatureDef`), and the names of its classes."""
        with self.manager.using(address.name, address.version, address.label) as servable:
            return servable.version, servable.definitions, servable.labels


def _check_wanted(signature: Signature, wanted: Sequence[str]) -> None:
    """The names of an output filter exist, and stand once."""
    for name in wanted:
        if name not in signature.outputs:
            raise invalid(f"output tensor alias not found in signature: {name} Outputs expected to be in the set "
                          f"{{{','.join(signature.outputs)}}}.")
    if len(set(wanted)) < len(wanted):
        raise invalid(f"duplicate output tensor alias: {','.join(wanted)}")
