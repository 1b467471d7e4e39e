"""The queue of tasks that wait for a batch, and the choice of the next batch: the oldest task and tasks of similar
length.

A batch costs its number of rows times its longest row, because shorter rows are padded (or run as groups of their own).
So tasks are chosen by *work*: bytes of text, or numbers of ids (`request_checks.row_work`). Rows of other inputs have
no work and are chosen by age alone.
"""

import asyncio
import dataclasses
import itertools
import math
from collections.abc import Callable

import numpy as np

from official_bert.server.requests.request_checks import Limits, longest_string, row_extent
from official_bert.server.tensors import Arrays, type_name

WINDOW = 256  # tasks, the oldest, among which a batch is chosen
DEFAULT_RUN_COST = 512
# a batch is full when its work is so many times the cost of starting it: more would save little, and others wait for it
FULL = 16
# a row counts as at most this part of a full batch: models cut long text, and a few long rows should always run
# together
LONG = 4


@dataclasses.dataclass(frozen=True, kw_only=True)
class BatchingParameters:
    """TF Serving's `BatchingParameters`, field by field.

    The defaults suit a model whose single run keeps all cores busy.
    """

    max_batch_size: int = 32  # of a request; also of what runs at once, unless large requests are split
    batch_timeout_micros: int = 0
    max_enqueued_batches: int = 100
    num_batch_threads: int = 2
    allowed_batch_sizes: tuple[int, ...] = ()  # batches are filled up to the next of these
    pad_variable_length_inputs: bool = False
    enable_large_batch_splitting: bool = True
    max_execution_batch_size: int = 0  # of the parts of a large request; 0: max_batch_size
    thread_pool_name: str = "batching"

    def __post_init__(self) -> None:
        for name in ("max_batch_size", "max_enqueued_batches", "num_batch_threads"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}: expected at least 1, got {getattr(self, name)}")
        if self.batch_timeout_micros < 0 or not 0 <= self.max_execution_batch_size <= self.max_batch_size:
            raise ValueError(
                f"expected batch_timeout_micros >= 0 and 0 <= max_execution_batch_size <= max_batch_size, got "
                f"{self.batch_timeout_micros} and {self.max_execution_batch_size}"
            )
        sizes = self.allowed_batch_sizes
        if sizes and (list(sizes) != sorted(set(sizes)) or sizes[0] < 1 or sizes[-1] != self.max_batch_size):
            raise ValueError(
                f"allowed_batch_sizes: expected increasing sizes, the last of them {self.max_batch_size}, got "
                f"{list(sizes)}"
            )

    @property
    def largest(self) -> int:
        """The largest number of rows that run at once."""
        return (self.max_execution_batch_size if self.enable_large_batch_splitting else 0) or self.max_batch_size

    def filled(self, rows: int) -> int:
        """Returns the number of rows that run for `rows`: the next allowed batch size, or `rows` if none is set."""
        return next((size for size in self.allowed_batch_sizes if size >= rows), rows)


Trim = Callable[[Arrays, Arrays], dict[str, np.ndarray]]  # of a request's inputs and outputs


# For models without a file of parameters: requests of any allowed size, in parts of 32 rows.
DEFAULT_PARAMETERS = BatchingParameters(max_batch_size=1024, max_execution_batch_size=32)


@dataclasses.dataclass(eq=False)
class BatchTask:
    """Waiting rows, and the future of their (outputs, size of the outputs in bytes).

    `length` is the work of the longest row.
    """

    inputs: Arrays
    size: int
    length: int
    future: asyncio.Future
    enqueued: float
    deadline: float | None = None  # None: it may take any time
    trim: Trim | None = None  # takes what only other rows of the batch need from its outputs
    is_running: bool = False

    def __post_init__(self) -> None:
        self.extents = row_extents(self.inputs)


class BatchQueue:
    """Tasks that may share a batch, the oldest first.

    `run_cost` is the cost of starting a run of the model, in the unit of work. With 0, batches are chosen by age and
    bounded by rows alone.
    """

    def __init__(self, parameters: BatchingParameters, limits: Limits, run_cost: int = 0):
        self.parameters, self.limits, self.run_cost = parameters, limits, run_cost
        self.full_work = run_cost * FULL or math.inf  # of a batch
        self.tasks: dict[BatchTask, None] = {}  # ordered, and quick to remove from
        self.rows = self.work = 0
        self.row_bytes = 1.0  # of the answers of the last batch
        self.grew = asyncio.Event()

    @property
    def oldest(self) -> BatchTask:
        """The task that has waited longest."""
        return next(iter(self.tasks))

    @property
    def is_full(self) -> bool:
        """Whether the waiting tasks are enough for a batch."""
        return self.rows >= self.parameters.largest or self.work >= self.full_work

    def add(self, task: BatchTask) -> None:
        """Appends a task."""
        task.length = min(task.length, self.run_cost * FULL // LONG)
        self.tasks[task] = None
        self.rows += task.size
        self.work += task.size * task.length
        self.grew.set()

    def drop(self, task: BatchTask) -> None:
        """Removes a task: one that was taken or answered, or whose client has disconnected."""
        if task in self.tasks:
            del self.tasks[task]
            self.rows -= task.size
            self.work -= task.size * task.length

    def take(self) -> list[BatchTask]:
        """Removes and returns the tasks of the next batch, with the oldest among them; [] if the queue is empty."""
        batch = self._choose() if self.tasks else []
        for task in batch:
            self.drop(task)
        return batch

    def _choose(self) -> list[BatchTask]:
        """Returns the oldest task and those nearest to it in length: the number that saves most work compared with
        single runs.
        """
        window = list(itertools.islice(self.tasks, max(WINDOW, self.parameters.largest)))
        if self.run_cost:
            length = self.oldest.length
            window.sort(key=lambda task: abs(task.length - length))  # stable: of equal distances the older first
        rows, longest, extents = 0, 0, np.zeros(1, int)
        alone, most_saved, count = 0, 0, 1
        for number, task in enumerate(window, 1):
            rows, longest, extents = rows + task.size, max(longest, task.length), np.maximum(extents, task.extents)
            work = self.parameters.filled(rows) * longest
            if number > 1 and (rows > self._most_rows(extents) or work > self.full_work):
                break
            alone += self.parameters.filled(task.size) * task.length + self.run_cost
            saved = alone - work - self.run_cost
            if saved >= most_saved or not self.run_cost:
                most_saved, count = saved, number
        return window[:count]

    def _most_rows(self, extents: np.ndarray) -> float:
        """Returns how many rows of these extents may run at once without exceeding the limits of a batch and of its
        answers.
        """
        return min(most_rows(extents, self.parameters, self.limits), self.limits.max_answer_bytes / self.row_bytes)


def row_extents(inputs: Arrays) -> np.ndarray:
    """Returns [2, inputs]: the elements and the squares of one row of each input (`request_checks.row_extent`)."""
    return np.array(
        [row_extent(type_name(array), array.shape, max(1, longest_string(array))) for array in inputs.values()]
    ).T


def most_rows(extents: np.ndarray, parameters: BatchingParameters, limits: Limits) -> int:
    """Returns how many rows of these extents may run at once: at least one, and an allowed batch size if one is small
    enough.
    """
    width, square = np.maximum(1, extents.sum(axis=1)).tolist()
    most = min(parameters.largest, limits.max_batch_elements // width, limits.max_batch_squares // square)
    return max((size for size in parameters.allowed_batch_sizes if size <= most), default=max(1, most))
