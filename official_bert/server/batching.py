"""Dynamic batching: requests that wait together run together, under TF Serving's batching parameters.

Tasks of one version, signature and inner shape are concatenated along the first axis. A batch is formed when it is full, or
when its oldest task has waited `batch_timeout_micros` and a thread is free; so a busy server forms large batches by itself.

Unlike TF Serving: tasks of other inner shapes form batches of their own (there they are refused unless padding is on);
padding is with 0 and "" (there with the first value); where a batch fails, its tasks run one by one, so that only the
guilty one gets the error.
"""

import asyncio
import collections
import concurrent.futures
import contextlib
import dataclasses
import functools
from collections.abc import Callable, Hashable, Mapping, Sequence

import numpy as np

from official_bert.server.metrics import Metrics
from official_bert.server.statuses import RequestError, invalid

Arrays = Mapping[str, np.ndarray]
Run = Callable[[Arrays, float | None], dict[str, np.ndarray]]  # the time (of `time.monotonic`) at which it must end


@dataclasses.dataclass(frozen=True, kw_only=True)
class BatchingParameters:
    """The fields of TF Serving's `BatchingParameters`; the defaults suit a model that keeps all cores busy by itself."""

    max_batch_size: int = 32  # of a request; also of what runs at once, unless large requests are split
    batch_timeout_micros: int = 0
    max_enqueued_batches: int = 100
    num_batch_threads: int = 2
    allowed_batch_sizes: tuple[int, ...] = ()  # batches are filled up to the next of these
    pad_variable_length_inputs: bool = False
    enable_large_batch_splitting: bool = True
    max_execution_batch_size: int = 0  # of the parts of a large request; 0: max_batch_size
    thread_pool_name: str = "batching"

    def __post_init__(self):
        for name in ("max_batch_size", "max_enqueued_batches", "num_batch_threads"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}: expected at least 1, got {getattr(self, name)}")
        if self.batch_timeout_micros < 0 or not 0 <= self.max_execution_batch_size <= self.max_batch_size:
            raise ValueError(f"expected batch_timeout_micros from 0 and max_execution_batch_size up to max_batch_size, got "
                             f"{self.batch_timeout_micros} and {self.max_execution_batch_size}")
        sizes = self.allowed_batch_sizes
        if sizes and (list(sizes) != sorted(set(sizes)) or sizes[0] < 1 or sizes[-1] != self.max_batch_size):
            raise ValueError(f"allowed_batch_sizes: expected increasing sizes, the last of them {self.max_batch_size}, "
                             f"got {list(sizes)}")

    @property
    def largest(self) -> int:
        """The most rows that run at once."""
        return (self.max_execution_batch_size if self.enable_large_batch_splitting else 0) or self.max_batch_size


# For models without a file of parameters: requests of any allowed size, in parts of 32 rows.
DEFAULT_PARAMETERS = BatchingParameters(max_batch_size=1024, max_execution_batch_size=32)


@dataclasses.dataclass(eq=False)
class Task:
    """Rows that wait, and the future of their outputs."""

    inputs: Arrays
    size: int
    future: asyncio.Future
    enqueued: float
    deadline: float | None = None  # None: it may take any time
    is_running: bool = False


class _Queue:
    """Tasks that may share a batch."""

    def __init__(self, run: Run, parameters: BatchingParameters):
        self.run, self.parameters = run, parameters
        self.tasks: collections.deque[Task] = collections.deque()
        self.rows = 0
        self.grew = asyncio.Event()

    def take(self, most: int) -> list[Task]:
        """The oldest tasks that fit into a batch of `most` rows, without those whose clients have gone."""
        taken: list[Task] = []
        while self.tasks:
            if not self.tasks[0].future.done():
                if sum(task.size for task in taken) + self.tasks[0].size > most:
                    break
                taken.append(self.tasks[0])
            self.rows -= self.tasks.popleft().size
        return taken


class Batcher:
    """`answer(key, inputs, run)` gives what `run(inputs, None)` would, in a batch with others of the same key.

    Lives in one event loop; `run` is called in `num_batch_threads` threads. A key has its own parameters if they are given;
    the threads are shared.
    """

    def __init__(self, parameters: BatchingParameters, metrics: Metrics):
        self.parameters, self.metrics = parameters, metrics
        self._queues: dict[Hashable, _Queue] = {}
        self._executor = concurrent.futures.ThreadPoolExecutor(parameters.num_batch_threads, parameters.thread_pool_name)
        self._free_threads = asyncio.Semaphore(parameters.num_batch_threads)
        self._running: set[asyncio.Task] = set()

    async def answer(self, key: Hashable, inputs: Arrays, run: Run, deadline: float | None = None,
                     parameters: BatchingParameters | None = None) -> dict[str, np.ndarray]:
        """Returns the outputs for inputs that share their first axis.

        Raises RequestError: UNAVAILABLE for a full queue, RESOURCE_EXHAUSTED if `deadline` passes in the queue and
        DEADLINE_EXCEEDED if it passes later, INVALID_ARGUMENT for more rows than `max_batch_size`.
        """
        parameters = parameters or self.parameters
        size = len(next(iter(inputs.values())))
        if size > parameters.max_batch_size:
            raise invalid(f"Task size {size} is larger than maximum input batch size {parameters.max_batch_size}")
        largest = parameters.largest
        if size <= largest:
            return await self._enqueue(key, inputs, size, run, deadline, parameters)
        parts = [{name: array[start:start + largest] for name, array in inputs.items()} for start in range(0, size, largest)]
        waiting = [asyncio.ensure_future(self._enqueue(key, part, min(largest, size - index * largest), run, deadline, parameters))
                   for index, part in enumerate(parts)]
        try:
            answers = await asyncio.gather(*waiting)
        finally:
            for part_answer in waiting:
                part_answer.cancel()
        return {name: join([answer[name] for answer in answers]) for name in answers[0]}

    async def alone(self, inputs: Arrays, run: Run, deadline: float | None = None) -> dict[str, np.ndarray]:
        """Returns the outputs for inputs that are not batched. Raises RequestError as `answer` does."""
        is_running = False
        try:
            async with asyncio.timeout_at(deadline), self._free_threads:
                is_running = True
                return await self._in_thread(run, inputs, deadline)
        except TimeoutError:
            raise _late(is_running) from None

    def close(self) -> None:
        """Ends the threads, after what they are running."""
        self._executor.shutdown(wait=True, cancel_futures=True)

    async def _enqueue(self, key: Hashable, inputs: Arrays, size: int, run: Run, deadline: float | None,
                       parameters: BatchingParameters) -> dict[str, np.ndarray]:
        inner = () if parameters.pad_variable_length_inputs else tuple(
            (name, array.shape[1:]) for name, array in sorted(inputs.items()))
        queue = self._queues.get((key, inner))
        if queue is None:
            queue = self._queues[key, inner] = _Queue(run, parameters)
            self._spawn(self._serve((key, inner), queue))
        limit = parameters.max_enqueued_batches * parameters.largest
        if queue.rows + size > limit:
            raise RequestError("UNAVAILABLE", "The batch scheduling queue to which this task was submitted is full; "
                                              f"currently {queue.rows} rows of at most {limit}")
        loop = asyncio.get_running_loop()
        task = Task(inputs, size, loop.create_future(), loop.time(), deadline)
        queue.tasks.append(task)
        queue.rows += size
        queue.grew.set()
        try:
            async with asyncio.timeout_at(deadline):
                return await task.future
        except TimeoutError:
            raise _late(task.is_running) from None

    async def _serve(self, key: Hashable, queue: _Queue) -> None:
        """Forms and starts batches until the queue is empty, which ends it."""
        while queue.tasks:
            await self._until_full_or_late(queue)
            await self._free_threads.acquire()
            tasks = queue.take(queue.parameters.largest)
            if tasks:
                self._spawn(self._execute(queue.run, queue.parameters, tasks))
            else:
                self._free_threads.release()
        del self._queues[key]

    async def _until_full_or_late(self, queue: _Queue) -> None:
        """Returns when the queue holds a full batch, or its oldest task has waited long enough."""
        deadline = queue.tasks[0].enqueued + queue.parameters.batch_timeout_micros / 1e6
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(deadline):
                while queue.rows < queue.parameters.largest:
                    queue.grew.clear()
                    await queue.grew.wait()

    async def _execute(self, run: Run, parameters: BatchingParameters, tasks: Sequence[Task]) -> None:
        """Runs a batch in a thread that was waited for, and gives every task its rows."""
        now = asyncio.get_running_loop().time()
        self.metrics.batch_formed(sum(task.size for task in tasks), [now - task.enqueued for task in tasks])
        for task in tasks:
            task.is_running = True
        try:
            answers = await self._in_thread(functools.partial(run_batch, run, parameters), tasks)
            for task, answer in zip(tasks, answers):
                if not task.future.done():
                    if isinstance(answer, Exception):
                        task.future.set_exception(answer)
                    else:
                        task.future.set_result(answer)
        except BaseException as error:
            for task in tasks:
                if not task.future.done():
                    task.future.set_exception(RequestError("INTERNAL", f"{type(error).__name__}: {error}"))
            if not isinstance(error, Exception):
                raise
        finally:
            self._free_threads.release()

    async def _in_thread(self, function, *arguments):
        return await asyncio.get_running_loop().run_in_executor(self._executor, function, *arguments)

    def _spawn(self, coroutine) -> None:
        """Starts a coroutine and keeps it from being collected."""
        task = asyncio.ensure_future(coroutine)
        self._running.add(task)
        task.add_done_callback(self._running.discard)


def run_batch(run: Run, parameters: BatchingParameters, tasks: Sequence[Task]) -> list:
    """The outputs of each task, or the exception that it alone causes."""
    try:
        return _run_together(run, parameters, tasks)
    except RequestError as error:
        if len(tasks) == 1:
            return [error]
    return [run_batch(run, parameters, [task])[0] for task in tasks]


def _late(is_running: bool) -> RequestError:
    """TF Serving's statuses for a deadline that passes while the model runs, or before."""
    if is_running:
        return RequestError("DEADLINE_EXCEEDED", "Run() timeout exceeded: no answer in time")
    return RequestError("RESOURCE_EXHAUSTED", "Run() timeout exceeded while waiting in batching queue")


def _run_together(run: Run, parameters: BatchingParameters, tasks: Sequence[Task]) -> list[dict[str, np.ndarray]]:
    sizes = [task.size for task in tasks]
    # As in TF Serving, a batch may run as long as its most patient task allows.
    deadline = None if any(task.deadline is None for task in tasks) else max(task.deadline or 0 for task in tasks)
    total = sum(sizes)
    wanted = next((size for size in parameters.allowed_batch_sizes if size >= total), total)
    batch = {}
    for name in tasks[0].inputs:
        rows = join([task.inputs[name] for task in tasks])
        batch[name] = np.concatenate([rows, np.repeat(rows[:1], wanted - total, 0)]) if wanted > total else rows
    outputs = run(batch, deadline)
    for name, array in outputs.items():
        if not array.ndim or len(array) != wanted:
            if len(tasks) == 1:
                return [run(tasks[0].inputs, deadline) if wanted > total else outputs]
            raise RequestError("FAILED_PRECONDITION", f"Batched output tensor's 0th dimension does not equal the sum of the 0th "
                                                      f"dimension sizes of the input tensors: {name} has the shape {array.shape}")
    ends = np.cumsum(sizes)
    return [{name: array[end - size:end] for name, array in outputs.items()} for size, end in zip(sizes, ends)]


def join(arrays: Sequence[np.ndarray]) -> np.ndarray:
    """Arrays one behind the other along the first axis, padded with 0 or "" where their inner sizes differ."""
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
