"""Answers requests of every protocol within deadlines: finds the model, checks the inputs, runs batches."""

import asyncio
import contextlib
import dataclasses
import math
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from typing import TypeVar

import numpy as np

from official_bert.runtimes.finite import not_finite
from official_bert.server.metrics import Metrics
from official_bert.server.models.model_manager import ModelManager, Version
from official_bert.server.models.servable import Servable, Signature
from official_bert.server.queue.batching import Batcher, run_alone
from official_bert.server.requests.process import RequestReader
from official_bert.server.requests.reading import ModelAddress, Reading
from official_bert.server.requests.request_checks import Limits, check_inputs, have_rows
from official_bert.server.statuses import RequestError, invalid
from official_bert.server.tensors import Arrays

LARGE_ANSWER = 10_000  # values
Body = TypeVar("Body")
CLOCK_SECONDS = 0.1  # a client that goes so shortly before its deadline goes because of it: its clock is a little ahead


@dataclasses.dataclass(frozen=True)
class Answer:
    """The outputs, and the version and signature that computed them."""

    version: int
    signature: str
    outputs: Arrays

    async def written(self, write: Callable[[], Body]) -> Body:
        """Returns the result of `write`, which writes or checks the outputs.

        Runs it in a thread if that takes milliseconds.
        """
        return await asyncio.to_thread(write) if self.is_large else write()

    @property
    def is_large(self) -> bool:
        """Whether the outputs have many values."""
        return sum(array.size for array in self.outputs.values()) > LARGE_ANSWER


@dataclasses.dataclass
class Admission:
    """A running request. The name of its model may become known only when the request is parsed."""

    name: str = ""


class RequestHandler:
    """Answers requests of any protocol; counts the running ones and refuses new ones while the server stops."""

    def __init__(
        self,
        manager: ModelManager,
        batcher: Batcher | None,
        limits: Limits,
        metrics: Metrics,
        reader: RequestReader,
        max_run_seconds: float = math.inf,
    ):
        self.manager, self.batcher, self.limits, self.metrics, self.reader = manager, batcher, limits, metrics, reader
        self.max_run_seconds = max_run_seconds
        self.in_flight = 0
        self.is_leaving = self.is_draining = False
        self._waking: dict[str, asyncio.Future[None]] = {}

    @contextlib.contextmanager
    def admitted(self, name: str, api: str, entrypoint: str, deadline: float | None = None) -> Iterator[Admission]:
        """Counts a request as running inside the block, from its complete body to its answer.

        Raises RequestError UNAVAILABLE if too many are running, or the server is stopping.
        """
        started, status, admission = time.perf_counter(), "OK", Admission(name)
        try:
            if self.is_draining or self.in_flight >= self.limits.max_concurrent_requests:
                raise RequestError(
                    "UNAVAILABLE",
                    "the server is stopping"
                    if self.is_draining
                    else f"more than {self.limits.max_concurrent_requests} requests at once",
                )
            self.in_flight += 1
            self.metrics.in_flight(1)
            try:
                yield admission
            finally:
                self.in_flight -= 1
                self.metrics.in_flight(-1)
        except RequestError as error:
            status = error.code
            raise
        except asyncio.CancelledError:  # the client has gone, or its time is over
            is_late = deadline is not None and time.monotonic() > deadline - CLOCK_SECONDS
            status = "DEADLINE_EXCEEDED" if is_late else "CANCELLED"
            raise
        except BaseException:
            status = "INTERNAL"
            raise
        finally:
            known = admission.name if admission.name in self.manager.models else "(unknown)"
            self.metrics.request_done(known, status, api, entrypoint, time.perf_counter() - started)

    async def predict(self, servable: Servable, request: Reading, deadline: float | None = None) -> Answer:
        """Runs the signature that a request names and returns its answer.

        Raises RequestError: DEADLINE_EXCEEDED or RESOURCE_EXHAUSTED if there is no answer by `deadline` (of
        `time.monotonic`), INTERNAL if an output is not finite.
        """
        signature = servable.signature(request.signature)
        _check_outputs(signature, request.outputs)
        check_inputs(signature, request.inputs, self.limits)
        outputs = await self._run(servable, signature, request.inputs, deadline)
        if request.outputs:
            outputs = {name: outputs[name] for name in request.outputs}
        answer = Answer(servable.version, signature.name, outputs)
        await answer.written(lambda: check_finite(outputs, have_rows(signature, request.inputs)))
        return answer

    async def _run(self, servable: Servable, signature: Signature, inputs: Arrays, deadline: float | None) -> Arrays:
        """Runs a request: in a batch if the signature has rows and batching is on."""

        def run(batch: Arrays, batch_deadline: float | None) -> dict[str, np.ndarray]:
            started = time.perf_counter()
            latest = min(batch_deadline or math.inf, time.monotonic() + self.max_run_seconds)
            outputs = signature.run(batch, None if latest == math.inf else latest)
            self.metrics.model_ran(servable.name, time.perf_counter() - started)
            return outputs

        has_rows = have_rows(signature, inputs)
        if self.batcher is None:
            return await asyncio.to_thread(run_alone, run, inputs, has_rows, deadline, self.limits)
        if servable.batching is None or not has_rows:
            return await self.batcher.alone(inputs, run, has_rows, deadline)
        return await self.batcher.answer(
            (servable.name, servable.version, signature.name),
            inputs,
            run,
            deadline,
            servable.batching,
            signature.without_padding,
        )

    def statuses(self, address: ModelAddress) -> list[Version]:
        """Returns the versions of a model and their states. As in TF Serving, a label in the address is ignored."""
        return self.manager.statuses(address.name, address.version)

    def why_not_ready(self) -> str:
        """Returns why requests should go to another server; "" if all models but those loaded on demand are ready."""
        if self.is_leaving or self.is_draining:
            return "the server is stopping"
        errors, total = self.manager.errors(), sum(not model.on_demand for model in self.manager.models.values())
        return f"{total - len(errors)} of {total} models answer; {'; '.join(errors)}" if errors else ""

    @contextlib.asynccontextmanager
    async def using(self, name: str, version: int | None = None, label: str | None = None) -> AsyncIterator[Servable]:
        """Lends a version as `ModelManager.using` does. A model that is loaded on demand is loaded first."""
        if self.manager.is_asleep(name) and name not in self._waking:
            self._waking[name] = asyncio.ensure_future(asyncio.to_thread(self.manager.wake, name))
            self._waking[name].add_done_callback(lambda _: self._waking.pop(name))
        if name in self._waking:
            await asyncio.shield(self._waking[name])  # a client that goes does not end it for the others
        with self.manager.using(name, version, label) as servable:
            yield servable


def check_finite(outputs: Arrays, has_rows: bool = True) -> None:
    """Raises RequestError for an answer with NaN or infinity.

    It names the row, because no protocol has errors of rows.
    """
    if found := not_finite(outputs, has_rows):
        row, name = found
        place = f"row {row}, output {name!r}" if has_rows else f"output {name!r}"
        raise RequestError("INTERNAL", f"{place}: the model's answer is not a finite number")


def _check_outputs(signature: Signature, names: Sequence[str]) -> None:
    """Raises RequestError if a request names an unknown output, or an output twice."""
    for name in names:
        if name not in signature.outputs:
            raise invalid(
                f"output tensor alias not found in signature: {name} Outputs expected to be in the set "
                f"{{{','.join(signature.outputs)}}}."
            )
    if len(set(names)) < len(names):
        raise invalid(f"duplicate output tensor alias: {','.join(names)}")
