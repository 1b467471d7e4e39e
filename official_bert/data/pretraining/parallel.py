"""Runs jobs in several threads and gives their results in the order of the jobs, so the number of threads changes no
byte.

Threads suffice: the compiled kernels, zlib and file access all release the interpreter.
"""

import collections
import concurrent.futures
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

J = TypeVar("J")
R = TypeVar("R")


def in_order(function: Callable[[J], R], jobs: Iterable[J], num_workers: int) -> Iterator[tuple[J, R]]:
    """Yields (job, function(job)) in the order of `jobs`; takes at most 3 jobs per worker in advance.

    An error of a job is raised when its turn comes; jobs that have not begun are then cancelled.
    """
    waiting: collections.deque[tuple[J, concurrent.futures.Future[R]]] = collections.deque()
    with concurrent.futures.ThreadPoolExecutor(num_workers) as pool:
        try:
            for job in jobs:
                waiting.append((job, pool.submit(function, job)))
                if len(waiting) > 3 * num_workers:
                    first, future = waiting.popleft()
                    yield first, future.result()
            while waiting:
                first, future = waiting.popleft()
                yield first, future.result()
        finally:
            pool.shutdown(cancel_futures=True)
