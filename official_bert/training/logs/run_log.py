"""A run's output: console lines with ETA, a JSON-lines log, TensorBoard, a profile of chosen steps."""

import contextlib
import json
import math
import os
import shlex
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from official_bert.reports.metric_text import shown
from official_bert.run_folder import BOARD_FOLDER, LOG_FILE, RunFolder
from official_bert.storage.temporaries import original_paths
from official_bert.training.logs import continued_log

SECONDS_BETWEEN_LINES = 60.0  # of training on the screen; the log has all of them


class Profile:
    """TensorFlow's profiler over steps first + 1 to last; `edges` are (first, last), empty for no profile."""

    def __init__(self, edges: tuple[int, ...], run: RunFolder):
        self.edges, self.folder, self.running = edges, run.file(BOARD_FOLDER), False

    @classmethod
    def parse(cls, text: str, run: RunFolder) -> "Profile":
        """Returns the profile of `first:last`; "" profiles nothing. Raises ValueError for any other text."""
        if not text:
            return cls((), run)
        first, _, last = text.partition(":")
        if not (first.isdecimal() and last.isdecimal() and int(first) < int(last)):
            raise ValueError(f"--profile_steps: expected first:last, as in 100:110, got {text!r}")
        return cls((int(first), int(last)), run)

    def check(self, steps: int) -> None:
        """Raises ValueError for a profile that begins after the last of a training's `steps`."""
        if self.edges and self.edges[0] >= steps:
            raise ValueError(
                f"--profile_steps: expected steps of a training of {steps}, got {self.edges[0]}:{self.edges[1]}"
            )

    def at(self, step: int) -> None:
        """Starts or stops the profiler if that is due after `step`."""
        if self.edges and not self.running and self.edges[0] <= step < self.edges[1]:
            tf.profiler.experimental.start(self.folder)
            self.running = True
        elif self.running and step >= self.edges[1]:
            self.stop()

    def stop(self) -> None:
        """Stops a running profiler and writes the profile."""
        if self.running:
            tf.profiler.experimental.stop()
            self.running, self.edges = False, ()


class Watcher:
    """Writes the metrics of training and evaluation; silent (`enabled=False`) on workers other than the chief.

    The log has every line of training. The screen shows the first line, then at most one a minute, and the newest one
    before any other message.
    """

    def __init__(
        self,
        run: RunFolder,
        total_steps: int,
        enabled: bool = True,
        log_file: str = LOG_FILE,
        board_folder: str = BOARD_FOLDER,
        done: int | None = None,
    ):
        # no total: the end is a time; the log is continued after the steps that are done
        self.run, self.total_steps, self.enabled, self.share = run, total_steps, enabled, 0.0
        self.next_line, self.shown_at = "", -math.inf
        if enabled:
            path = run.file(log_file)
            _remove_unfinished_line(path)
            if done is not None:
                continued_log.remove_later_lines(path, done)
            self.log = open(path, "a", encoding="utf-8")  # noqa: SIM115 (close)
            self.board = tf.summary.create_file_writer(run.file(board_folder))
            self.say(f"curves: tensorboard --logdir={shlex.quote(original_paths(run.file(board_folder)))}")

    def training(self, step: int, metrics: Mapping[str, float], steps_per_second: float) -> None:
        """Logs the means of the metrics since the last call, after `step`."""
        left = (self.total_steps - step) / steps_per_second if steps_per_second else 0
        of, end = (
            (f"/{self.total_steps}", f"ETA {_duration(left)}")
            if self.total_steps
            else ("", f"{self.share:.1%} of the time")
        )
        shown_metrics = [
            f"{name} {shown(name, value)}"
            for name, value in metrics.items()
            if name == "loss" or name.endswith("accuracy")
        ]
        shown_metrics += [f"{metrics['skipped']:.0f} skipped"] if metrics["skipped"] else []
        self.next_line = (
            f"step {step}{of}  {'  '.join(shown_metrics)}  lr {metrics['learning_rate']:.3g}  "
            f"|g| {metrics['gradient_norm']:.3g}  {metrics['tokens_per_second']:,.0f} tokens/s  {end}"
        )
        if time.monotonic() - self.shown_at >= SECONDS_BETWEEN_LINES:
            self._show_training()
        self._write("train", step, metrics)

    def evaluation(self, step: int, metrics: Mapping[str, float], facts: Sequence[str] = ()) -> None:
        """Logs the metrics of an evaluation after `step`, and prints `facts` behind them."""
        self.say(
            f"evaluation at step {step}:  "
            + "  ".join(f"{name} {shown(name, value)}" for name, value in metrics.items())
            + f"  ({', '.join(facts)})" * bool(facts)
        )
        self._write("eval", step, metrics)

    def write_share(self, step: int, share: float) -> None:
        """Logs the fraction of the time that passed before the step after `step`."""
        self.share = share
        if self.enabled:
            self._write_row(step, {"share": share})

    def note(self, step: int, name: str, text: str) -> None:
        """Logs and prints a text under a name, unless it is empty."""
        if text and self.enabled:
            self.say(f"{name.replace('_', ' ')}: {text}")
            self._write_row(step, {name: text})

    def say(self, line: str) -> None:
        """Prints a line after the newest training line."""
        if self.enabled:
            self._show_training()
            print(line, flush=True)

    def _show_training(self) -> None:
        if self.next_line and self.enabled:
            print(self.next_line, flush=True)
            self.next_line, self.shown_at = "", time.monotonic()

    def _write(self, kind: str, step: int, metrics: Mapping[str, float]) -> None:
        if not self.enabled:
            return
        # JSON has no NaN and no infinity.
        row = {f"{kind}/{name}": value if math.isfinite(value) else None for name, value in metrics.items()}
        self._write_row(step, row)
        with self.board.as_default(step=step):
            for name, value in metrics.items():
                tf.summary.scalar(f"{kind}/{name}", value)
        self.board.flush()

    def _write_row(self, step: int, row: Mapping[str, Any]) -> None:
        self.log.write(json.dumps({"step": step, "time": round(time.time(), 3), **row}, allow_nan=False) + "\n")
        self.log.flush()

    def close(self) -> None:
        if self.enabled:
            self._show_training()
            self.log.close()
            self.board.close()


class StepLog:
    """Collects the metrics of steps, and logs their means with the speed of training."""

    def __init__(self, watcher: Watcher):
        self.watcher = watcher
        self.begin(0)

    def begin(self, step: int) -> None:
        """Discards the collected metrics; training continues after `step`."""
        self.rows: list[np.ndarray] = []  # [steps, names]
        self.first, self.since = step, time.monotonic()

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Excludes the time spent inside from the speed of training."""
        began = time.monotonic()
        yield
        self.since += time.monotonic() - began

    def write(self, step: int, names: Sequence[str], batch_size: int) -> None:
        """Logs the metrics `names` of the collected steps, which end with `step`."""
        rows, steps_per_second = np.concatenate(self.rows), (step - self.first) / (time.monotonic() - self.since)
        self.begin(step)
        metrics = dict(zip(names, rows.mean(axis=0).tolist()))
        metrics["learning_rate"] = float(rows[-1, names.index("learning_rate")])
        metrics["skipped"] = float(rows[:, names.index("skipped")].sum())
        metrics |= {
            "sequences_per_second": steps_per_second * batch_size,
            "tokens_per_second": steps_per_second * metrics.pop("tokens"),
            "model_flops_per_second": steps_per_second * metrics.pop("flops"),
        }
        metrics.pop("failed")
        self.watcher.training(step, metrics, steps_per_second)


def _remove_unfinished_line(path: str) -> None:
    """Cuts off what a killed run left behind the last line end of a log."""
    with contextlib.suppress(FileNotFoundError), open(path, "r+b") as file:
        end = file.seek(0, os.SEEK_END)
        while end:
            start = max(0, end - 4096)
            file.seek(start)
            if (line_end := file.read(end - start).rfind(b"\n")) >= 0:
                break
            end = start
        file.truncate(start + line_end + 1 if end else 0)


def _duration(seconds: float) -> str:
    minutes, seconds = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"
