"""Dynamic batching: requests that wait at the same time run together, under TF Serving's batching parameters.

Tasks of one version, signature and inner shape are concatenated along the first axis. A batch starts when it is full,
or when its oldest task has waited `batch_timeout_micros` and a thread is free. So a busy server forms large batches by
itself. `batch_queue` chooses the tasks.

Differences from TF Serving:
- Tasks of other inner shapes form batches of their own. (TF Serving refuses them unless padding is on.)
- Padding is 0 along the last axis of numbers. (TF Serving pads all axes, also of strings, with the first value.)
- A batch that fails runs again in halves, so that only the request at fault gets the error.
- A batch is also bounded by its elements, not only by its rows.
"""

import asyncio
import concurrent.futures
import contextlib
import logging
from collections.abc import Callable, Coroutine, Hashable, Iterator, Sequence
from typing import Any

import numpy as np

from official_bert.server.metrics import Metrics
from official_bert.server.queue.batch_queue import (
    DEFAULT_RUN_COST,
    BatchingParameters,
    BatchQueue,
    BatchTask,
    Trim,
    most_rows,
    row_extents,
)
from official_bert.server.requests.request_checks import Limits, row_work
from official_bert.server.statuses import RequestError, answer_too_large, invalid
from official_bert.server.tensors import Arrays

LOG = logging.getLogger("official_bert.server")
Run = Callable[[Arrays, float | None], dict[str, np.ndarray]]  # the time (of `time.monotonic`) at which it must end


class Batcher:
    """Runs requests in batches: `answer(key, inputs, run)` returns the same as `run(inputs, None)`.

    Requests of the same key share batches. A batcher belongs to one event loop and calls `run` in `num_batch_threads`
    threads, which all keys share. A key may have its own parameters. `run_cost` influences the choice of batches
    (`BatchQueue`).
    """

    def __init__(
        self,
        parameters: BatchingParameters,
        metrics: Metrics,
        limits: Limits | None = None,
        run_cost: int = DEFAULT_RUN_COST,
    ):
        self.parameters, self.metrics, self.limits, self.run_cost = parameters, metrics, limits or Limits(), run_cost
        self._queues: dict[Hashable, BatchQueue] = {}
        self._executor = concurrent.futures.ThreadPoolExecutor(
            parameters.num_batch_threads, parameters.thread_pool_name
        )
        self._free_threads = asyncio.Semaphore(parameters.num_batch_threads)
        self._running: set[asyncio.Task] = set()

    async def answer(
        self,
        key: Hashable,
        inputs: Arrays,
        run: Run,
        deadline: float | None = None,
        parameters: BatchingParameters | None = None,
        trim: Trim | None = None,
    ) -> dict[str, np.ndarray]:
        """Returns the outputs for inputs that share their first axis. `trim` removes the padding that other requests'
        rows caused.

        Raises RequestError: UNAVAILABLE for a full queue, RESOURCE_EXHAUSTED if `deadline` passes in the queue,
        DEADLINE_EXCEEDED if it passes later, INVALID_ARGUMENT for more rows than `max_batch_size` or too large an
        answer.
        """
        parameters = parameters or self.parameters
        size = len(next(iter(inputs.values())))
        if size > parameters.max_batch_size:
            raise invalid(f"Task size {size} is larger than maximum input batch size {parameters.max_batch_size}")
        most = most_rows(row_extents(inputs), parameters, self.limits)
        if size <= most:
            return (await self._enqueue(key, inputs, run, deadline, parameters, trim))[0]
        waiting = [
            asyncio.ensure_future(self._enqueue(key, rows, run, deadline, parameters, trim))
            for rows in split_rows(inputs, most)
        ]
        total = 0
        try:
            for answer in asyncio.as_completed(waiting):
                total += (await answer)[1]
                if total > self.limits.max_answer_bytes:
                    raise answer_too_large(self.limits.max_answer_bytes)
        finally:
            for task in waiting:
                task.cancel()
        return join_outputs([task.result()[0] for task in waiting])

    async def alone(
        self, inputs: Arrays, run: Run, has_rows: bool, deadline: float | None = None
    ) -> dict[str, np.ndarray]:
        """Returns the outputs for inputs that are not batched, as `run_alone` does.

        Raises RequestError as `answer` does.
        """
        is_running = False
        try:
            async with asyncio.timeout_at(deadline), self._free_threads:
                is_running = True
                return await self._in_thread(run_alone, run, inputs, has_rows, deadline, self.limits)
        except TimeoutError:
            raise _late(is_running) from None

    def close(self) -> None:
        """Ends the threads. A thread that runs a model ends after that run."""
        self._executor.shutdown(wait=False, cancel_futures=True)

    async def _enqueue(
        self,
        key: Hashable,
        inputs: Arrays,
        run: Run,
        deadline: float | None,
        parameters: BatchingParameters,
        trim: Trim | None,
    ) -> tuple[dict[str, np.ndarray], int]:
        size = len(next(iter(inputs.values())))
        inner = tuple(
            (name, _unpadded_shape(array) if parameters.pad_variable_length_inputs else array.shape[1:])
            for name, array in sorted(inputs.items())
        )
        queue = self._queues.get((key, inner))
        if queue is None:
            queue = self._queues[key, inner] = BatchQueue(parameters, self.limits, self.run_cost)
            self._spawn(self._serve((key, inner), queue, run))
        limit = parameters.max_enqueued_batches * parameters.largest
        if queue.rows + size > limit:
            raise RequestError(
                "UNAVAILABLE",
                "The batch scheduling queue to which this task was submitted is full; "
                f"currently {queue.rows} rows of at most {limit}",
            )
        loop = asyncio.get_running_loop()
        task = BatchTask(inputs, size, row_work(inputs, self.limits), loop.create_future(), loop.time(), deadline, trim)
        queue.add(task)
        try:
            async with asyncio.timeout_at(deadline):
                return await task.future
        except TimeoutError:
            raise _late(task.is_running) from None
        finally:  # not only a deadline: the client may have gone
            queue.drop(task)

    async def _serve(self, key: Hashable, queue: BatchQueue, run: Run) -> None:
        """Forms and starts batches until the queue is empty, then removes the queue."""
        while queue.tasks:
            await self._until_full_or_late(queue)
            await self._free_threads.acquire()
            tasks = queue.take()
            if tasks:
                self._spawn(self._execute(queue, tasks, run))
            else:
                self._free_threads.release()
        del self._queues[key]

    async def _until_full_or_late(self, queue: BatchQueue) -> None:
        """Waits until the queue holds a full batch, or its oldest task has waited long enough."""
        deadline = queue.oldest.enqueued + queue.parameters.batch_timeout_micros / 1e6
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(deadline):
                while not queue.is_full:
                    queue.grew.clear()
                    await queue.grew.wait()

    async def _execute(self, queue: BatchQueue, tasks: Sequence[BatchTask], run: Run) -> None:
        """Runs a batch in the thread that `_serve` acquired, and gives each task its outputs."""
        now = asyncio.get_running_loop().time()
        self.metrics.batch_formed(sum(task.size for task in tasks), [now - task.enqueued for task in tasks])
        for task in tasks:
            task.is_running = True
        answers: list = [_internal(asyncio.CancelledError())] * len(tasks)
        try:
            answers = await self._in_thread(run_batch, run, queue.parameters, self.limits.max_answer_bytes, tasks)
            queue.row_bytes = max(
                [1.0, *(answer[1] / task.size for task, answer in zip(tasks, answers) if isinstance(answer, tuple))]
            )
        except Exception as error:
            answers = [_internal(error)] * len(tasks)
        finally:
            self._free_threads.release()
            for task, answer in zip(tasks, answers):
                if not task.future.done():
                    if isinstance(answer, Exception):
                        task.future.set_exception(answer)
                    else:
                        task.future.set_result(answer)

    async def _in_thread(self, function: Callable, *arguments: object) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self._executor, function, *arguments)

    def _spawn(self, coroutine: Coroutine) -> None:
        """Starts a coroutine and keeps it from being collected."""
        task = asyncio.ensure_future(coroutine)
        self._running.add(task)
        task.add_done_callback(self._running.discard)


def run_batch(run: Run, parameters: BatchingParameters, most_bytes: int, tasks: Sequence[BatchTask]) -> list:
    """Returns for each task its outputs and their size in bytes, or the exception that it causes.

    A batch that fails runs again in halves. So one bad request costs its neighbours a few runs, but not their answers.
    """
    if all(task.future.done() for task in tasks):  # all clients have gone
        return [_late(True)] * len(tasks)
    try:
        answers = [(outputs, answer_bytes(outputs)) for outputs in _run_together(run, parameters, tasks)]
        return [answer if answer[1] <= most_bytes else answer_too_large(most_bytes) for answer in answers]
    except Exception as error:
        failure = error if isinstance(error, RequestError) else _internal(error)
        if len(tasks) == 1:
            if failure is not error:
                LOG.exception("running a model")
            return [failure]
    middle = len(tasks) // 2
    return [
        *run_batch(run, parameters, most_bytes, tasks[:middle]),
        *run_batch(run, parameters, most_bytes, tasks[middle:]),
    ]


def run_alone(
    run: Run, inputs: Arrays, has_rows: bool, deadline: float | None, limits: Limits
) -> dict[str, np.ndarray]:
    """Returns the outputs for the inputs of one request. Its rows run in parts within the bounds of a batch.

    Raises RequestError if the outputs are too large.
    """
    most = (
        most_rows(row_extents(inputs), BatchingParameters(max_batch_size=limits.max_request_rows), limits)
        if has_rows
        else 0
    )
    answers, total = [], 0
    for rows in split_rows(inputs, most) if has_rows else [inputs]:
        answers.append(run(rows, deadline))
        total += answer_bytes(answers[-1])
        if total > limits.max_answer_bytes:
            raise answer_too_large(limits.max_answer_bytes)
    return join_outputs(answers)


def answer_bytes(outputs: Arrays) -> int:
    """Returns the size of outputs in memory, in bytes; a string takes its bytes and a pointer."""
    return sum(
        array.nbytes + (sum(map(len, array.ravel().tolist())) if array.dtype == object else 0)
        for array in outputs.values()
    )


def _internal(error: BaseException) -> RequestError:
    return RequestError("INTERNAL", f"internal error ({type(error).__name__}); the server's log says more")


def _late(is_running: bool) -> RequestError:
    """Returns TF Serving's error for a deadline that passes in the model (`is_running`) or in the queue."""
    if is_running:
        return RequestError("DEADLINE_EXCEEDED", "Run() timeout exceeded: no answer in time")
    return RequestError("RESOURCE_EXHAUSTED", "Run() timeout exceeded while waiting in batching queue")


def _run_together(run: Run, parameters: BatchingParameters, tasks: Sequence[BatchTask]) -> list[dict[str, np.ndarray]]:
    sizes = [task.size for task in tasks]
    # As in TF Serving, a batch may run as long as its most patient task allows.
    deadline = None if any(task.deadline is None for task in tasks) else max(task.deadline or 0 for task in tasks)
    total = sum(sizes)
    padded = parameters.filled(total)
    batch = {}
    for name in tasks[0].inputs:
        rows = join([task.inputs[name] for task in tasks])
        batch[name] = np.concatenate([rows, np.repeat(rows[:1], padded - total, 0)]) if padded > total else rows
    outputs = run(batch, deadline)
    for name, array in outputs.items():
        if not array.ndim or len(array) != padded:
            if len(tasks) == 1:
                return [run(tasks[0].inputs, deadline) if padded > total else outputs]
            raise RequestError(
                "FAILED_PRECONDITION",
                f"Batched output tensor's 0th dimension does not equal the sum of the 0th "
                f"dimension sizes of the input tensors: {name} has the shape {array.shape}",
            )
    ends = np.cumsum(sizes)
    answers = [{name: array[end - size : end] for name, array in outputs.items()} for size, end in zip(sizes, ends)]
    return [task.trim(task.inputs, answer) if task.trim else answer for task, answer in zip(tasks, answers)]


def _unpadded_shape(array: np.ndarray) -> tuple[int, ...]:
    """Returns the inner axes that are not padded: all but the last of numbers, and all of strings.

    A 0 after the ids of a text is masked. But a padded choice (0 or "") among a text's choices would get a share of the
    probability.
    """
    return array.shape[1:] if array.dtype == object else array.shape[1:-1]


def split_rows(inputs: Arrays, most: int) -> Iterator[dict[str, np.ndarray]]:
    """Yields the rows of inputs in parts of `most` rows."""
    for start in range(0, len(next(iter(inputs.values()))), most):
        yield {name: array[start : start + most] for name, array in inputs.items()}


def join_outputs(answers: Sequence[Arrays]) -> dict[str, np.ndarray]:
    """Returns the outputs for the parts of a request, joined."""
    return {name: join([answer[name] for answer in answers]) for name in answers[0]}


def join(arrays: Sequence[np.ndarray]) -> np.ndarray:
    """Returns arrays concatenated along the first axis; other axes are padded with 0 or "" to the longest."""
    if len(arrays) == 1:
        return arrays[0]
    inner = np.max([array.shape[1:] for array in arrays], axis=0, initial=0) if arrays[0].ndim > 1 else ()
    if all(array.shape[1:] == tuple(inner) for array in arrays):
        return np.concatenate(arrays)
    joined = np.full((sum(map(len, arrays)), *inner), b"" if arrays[0].dtype == object else 0, arrays[0].dtype)
    start = 0
    for array in arrays:
        joined[(slice(start, start + len(array)), *map(slice, array.shape[1:]))] = array
        start += len(array)
    return joined
