"""Runs commands of this checkout and measures them: seconds, processor time, memory of their own, disk."""

import contextlib
import os
import pathlib
import re
import resource
import subprocess
import sys
import threading
import time

ROOT = pathlib.Path(__file__).parent.parent


def processes(root: int) -> list[int]:
    """Returns the numbers of a process and all that it has started."""
    numbers, waiting = [], [root]
    while waiting:
        numbers.append(pid := waiting.pop())
        with contextlib.suppress(OSError):  # it has ended
            for task in pathlib.Path(f"/proc/{pid}/task").iterdir():
                waiting += map(int, (task / "children").read_text(encoding="utf-8").split())
    return numbers


def anonymous_memory(root: int) -> int:
    """Returns RssAnon in bytes of a process and its children."""
    total = 0
    for pid in processes(root):
        with contextlib.suppress(OSError):
            line = re.search(r"RssAnon:\s+(\d+) kB", pathlib.Path(f"/proc/{pid}/status").read_text(encoding="utf-8"))
            total += int(line[1]) * 1024 if line else 0
    return total


def cpu_seconds(pid: int) -> float:
    """Returns the processor time of a process so far; that of processes that it has waited for is not in it."""
    with contextlib.suppress(OSError):
        user, system = pathlib.Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[11:13]
        return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")
    return 0.0


def disk(root: int, folder: pathlib.Path) -> int:
    """Returns the bytes on disk of the files in a folder, and of those without a name there that a process and its
    children hold open.
    """
    place, sizes = folder.stat().st_dev, {}
    opened = [path for pid in processes(root) for path in _listed(pathlib.Path(f"/proc/{pid}/fd"))]
    for path in [*folder.rglob("*"), *opened]:
        with contextlib.suppress(OSError):
            facts = path.stat()
            if facts.st_dev == place and (facts.st_nlink == 0 or path not in opened):
                sizes[facts.st_ino] = 512 * facts.st_blocks
    return sum(sizes.values())


def _listed(folder: pathlib.Path) -> list[pathlib.Path]:
    try:
        return list(folder.iterdir())
    except OSError:
        return []


def timed(*command: str, cache: str = "", folder: pathlib.Path | None = None) -> dict:
    """Runs a command of Python; returns its seconds, its CPU seconds, its peak of anonymous memory, and its output.

    CPU seconds are those of all its processes, as last seen: a command may end without waiting for those of its
    workers. With a folder, also the peak of what it takes on disk there, beyond what was there before.
    """
    environment = dict(os.environ, PYTHONPATH=str(ROOT), TF_CPP_MIN_LOG_LEVEL="3")
    if cache:
        environment["NUMBA_CACHE_DIR"] = cache
    before = disk(os.getpid(), folder) if folder else 0
    began, used = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
    of_processes: dict[int, float] = {}
    process = subprocess.Popen(
        [sys.executable, *command], env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    peaks = {"memory": 0, "disk": 0}

    def watch() -> None:
        while process.poll() is None:
            of_processes.update(
                (pid, max(cpu_seconds(pid), of_processes.get(pid, 0.0))) for pid in processes(process.pid)
            )
            peaks["memory"] = max(peaks["memory"], anonymous_memory(process.pid))
            if folder:
                peaks["disk"] = max(peaks["disk"], disk(process.pid, folder) - before)
            time.sleep(0.5 if folder else 0.02)

    watcher = threading.Thread(target=watch)
    watcher.start()
    output, errors = process.communicate()
    seconds = time.perf_counter() - began
    watcher.join()
    now = resource.getrusage(resource.RUSAGE_CHILDREN)
    waited_for = now.ru_utime + now.ru_stime - used.ru_utime - used.ru_stime
    if process.returncode:
        raise SystemExit(errors)
    return {
        "seconds": seconds,
        "cpu_seconds": max(waited_for, sum(of_processes.values())),
        "output": output,
        "errors": errors,
    } | peaks
