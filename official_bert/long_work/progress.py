"""Shows the progress of long work and the time left: a bar on a terminal, lines elsewhere."""

import contextlib
import sys
import threading
import time

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn, TimeRemainingColumn

FIRST_LINE = 10.0  # seconds after which a stage is first reported; the time between lines doubles
BETWEEN_LINES = 60.0  # seconds at most


class Reporter:
    """Shows the stages of a command one after another and, at the end, the seconds of each in one line; any thread may
    call `show`.

    Without a terminal, a separate thread writes the lines, so that they appear even while compiled code runs.
    """

    def __init__(self) -> None:
        console = Console(stderr=True)
        self._bar = Progress(
            TextColumn("{task.description:>20}"),
            BarColumn(),
            TextColumn("{task.percentage:>3.0f} %"),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=console,
            disable=not console.is_terminal,
            transient=True,
        )
        self._lock, self._end = threading.Lock(), threading.Event()
        self._stage, self._share, self._begin = "", 0.0, 0.0
        self._finished: list[str] = []
        self._task = TaskID(0)
        self._thread = threading.Thread(target=self._write_lines, daemon=True)

    def __enter__(self) -> "Reporter":
        self._bar.start()
        if self._bar.disable:
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        with contextlib.suppress(OSError):  # the terminal may be gone
            self._bar.stop()
        if self._finished:
            _write(", ".join(self._finished))

    def show(self, stage: str, share: float) -> None:
        """Notes that `share` of a stage is done; 1 ends the stage."""
        with self._lock:
            if stage != self._stage:
                self._stage, self._begin = stage, time.monotonic()
                self._task = self._bar.add_task(stage, total=1.0)
            self._share = share
            self._bar.update(self._task, completed=share)
            if share >= 1:
                self._finished.append(f"{stage}: {time.monotonic() - self._begin:.1f} s")
                self._stage = ""

    def _write_lines(self) -> None:
        """Writes a line for the current stage after 10, 20, 40 and 80 seconds, then every minute."""
        begin, wait, due = 0.0, FIRST_LINE, 0.0
        while not self._end.wait(0.1):
            with self._lock:
                if not self._stage:
                    continue
                if begin != self._begin:
                    begin, wait, due = self._begin, FIRST_LINE, self._begin + FIRST_LINE
                now = time.monotonic()
                if now >= due:
                    left = (
                        f", about {(now - begin) * (1 - self._share) / self._share:.0f} s left" if self._share else ""
                    )
                    _write(f"{self._stage}: {self._share:.0%}{left}")
                    due, wait = now + wait, min(2 * wait, BETWEEN_LINES)


def _write(line: str) -> None:
    with contextlib.suppress(OSError):  # the terminal may be gone
        print(line, file=sys.stderr, flush=True)
