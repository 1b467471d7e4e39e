"""Worker processes that leave signals to their parent process and end with it."""

import collections
import concurrent.futures
import contextlib
import itertools
import multiprocessing
import multiprocessing.connection
import multiprocessing.process
import os
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator

MOST_SECONDS = 5.0  # for jobs under way when an error has ended the others


@contextlib.contextmanager
def worker_pool(num_workers: int) -> Iterator[concurrent.futures.ProcessPoolExecutor]:
    """Yields a pool of processes. An error ends them within seconds, a signal at once; both cancel waiting jobs."""
    context = multiprocessing.get_context("forkserver")
    earlier_processes = set(multiprocessing.active_children())
    with concurrent.futures.ProcessPoolExecutor(num_workers, context, _begin) as pool:
        # Elsewhere than in the main thread no signal cuts off the start of a process, which would then be known to
        # nobody.
        starter = threading.Thread(target=lambda: [pool.submit(os.getpid) for _ in range(num_workers)])
        try:
            starter.start()
            starter.join()
            yield pool
        except BaseException as error:
            with contextlib.suppress(RuntimeError):  # a signal came before it began
                starter.join()
            pool.shutdown(wait=False, cancel_futures=True)
            if isinstance(error, Exception):
                # The pool waits for the rest of a result whose sender is killed. After a signal, nobody waits for it.
                _wait_for(set(multiprocessing.active_children()) - earlier_processes)
            for process in set(multiprocessing.active_children()) - earlier_processes:
                process.kill()  # one that is still importing would outlive this process and complain about its end
            raise


def in_order(pool: concurrent.futures.Executor, work: Callable, items: Iterable, ahead: int) -> Iterator:
    """Yields `work(item)` for each item, computed in a pool, in order and with at most `ahead` items in progress."""
    items = iter(items)
    waiting = collections.deque(pool.submit(work, item) for item in itertools.islice(items, ahead))
    while waiting:
        yield waiting.popleft().result()
        waiting.extend(pool.submit(work, item) for item in itertools.islice(items, 1))


def _wait_for(processes: Iterable[multiprocessing.process.BaseProcess]) -> None:
    """Waits until processes have ended, but not longer than `MOST_SECONDS`."""
    end, running = time.monotonic() + MOST_SECONDS, {process.sentinel for process in processes}
    while running and (left := end - time.monotonic()) > 0:
        running -= {*multiprocessing.connection.wait(running, left)}


def _begin() -> None:
    """Makes a worker ignore Ctrl-C, which a terminal sends to every process, and end when its parent ends."""
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    multiprocessing.connection.wait([parent.sentinel])
    os._exit(1)
