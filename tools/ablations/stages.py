"""Runs the commands of a long job one after another, each once."""

import contextlib
import ctypes
import json
import os
import pathlib
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import yaml

from official_bert.long_work.made_of import require_same
from official_bert.storage.files import read_json, write_json, written_whole

TELL_EVERY = 60.0  # seconds between lines about a running stage
END_SECONDS = 60.0  # that a stopped stage gets to end


class Stages:
    """Runs commands one after another, each once. A finished one has a JSON file with its result."""

    def __init__(self, work_dir: pathlib.Path, root: pathlib.Path, environment: Mapping[str, str]):
        """`root` is the checkout in which the commands run and from which they import; `environment` is that of this
        process.
        """
        self.work_dir, self.root, self.stages_left = work_dir, root, 1
        path = os.pathsep.join(filter(None, [str(root), environment.get("PYTHONPATH")]))
        self.environment = {**environment, "PYTHONPATH": path}
        self.seconds: list[float] = []

    def run(
        self,
        folder: str,
        name: str,
        command: Sequence[object],
        collect: Callable[[pathlib.Path], dict] = lambda log: {},
        config: Mapping[str, Any] | None = None,
    ) -> dict:
        """Runs a command of ours unless it was run before; returns what `collect` reads from its log and its files.

        `config` is written to `NAME.yaml`, the command's --config. Raises ValueError if the command fails, or if the
        stage was run with another command or configuration.
        """
        place = self.work_dir / folder
        place.mkdir(parents=True, exist_ok=True)
        marker, log = place / f"{name}.json", place / f"{name}.log"
        if config is not None:
            command = [*command, f"--config={place / f'{name}.yaml'}"]
        stage = {
            "command": [self._portable(part) for part in command if not str(part).startswith("--num_workers")],
            "config": json.loads(self._portable(json.dumps(config))),
        }
        if marker.exists():
            stored = read_json(str(marker))
            before = {key: stored.get(key) for key in stage}
            require_same(
                before,
                stage,
                f"{marker}: this stage was run with",
                f"give another --work_dir, or remove {place} to run it again",
            )
        else:
            if config is not None:
                with written_whole(str(place / f"{name}.yaml")) as file:
                    yaml.safe_dump(config, file, sort_keys=False)
            begin = time.monotonic()
            self._execute(command, log, f"{folder}: {name}")
            stored = stage | {"seconds": round(time.monotonic() - begin, 1)} | collect(log)
            write_json(str(marker), stored, indent=1)
        self.stages_left -= 1
        self.seconds.append(stored["seconds"])
        return stored

    def _portable(self, part: object) -> str:
        return (
            str(part)
            .replace(str(self.work_dir), "WORK")
            .replace(str(self.root), "ROOT")
            .replace(sys.executable, "python")
        )

    def _execute(self, command: Sequence[object], log: pathlib.Path, title: str) -> None:
        print(f"{title}{self._remaining()}", flush=True)
        begin = last_told = time.monotonic()
        with (
            open(log, "ab") as file,
            _ending(
                subprocess.Popen(
                    list(map(str, command)),
                    stdout=file,
                    stderr=subprocess.STDOUT,
                    stdin=subprocess.DEVNULL,
                    cwd=self.root,
                    env=self.environment,
                    preexec_fn=_end_with_parent,
                )
            ) as process,
        ):
            while process.poll() is None:
                time.sleep(0.2)
                if time.monotonic() - last_told > TELL_EVERY:
                    last_told = time.monotonic()
                    print(f"  {(last_told - begin) / 60:.0f} min: {last_line(log)}", flush=True)
        if process.returncode:
            raise ValueError(f"{log}: the command ended with status {process.returncode}: {last_line(log)}")

    def _remaining(self) -> str:
        """Returns how many stages remain and, from the mean of the finished ones, about how long they will take."""
        if not self.seconds:
            return f"; {self.stages_left} stages left"
        minutes = self.stages_left * sum(self.seconds) / len(self.seconds) / 60
        return f"; {self.stages_left} stages left, about " + (
            f"{minutes / 60:.1f} h" if minutes > 90 else f"{minutes:.0f} min"
        )


@contextlib.contextmanager
def _ending(process: subprocess.Popen) -> Iterator[subprocess.Popen]:
    """Ends the process if the block ends early."""
    try:
        yield process
    finally:
        if process.poll() is None:
            process.terminate()
            try:
                process.wait(END_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _end_with_parent() -> None:
    """Asks Linux to end this process when its parent dies in any way, so that no stage goes on unnoticed."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(1, signal.SIGTERM)


def last_line(log: pathlib.Path) -> str:
    """Returns the last line that a command has printed."""
    with open(log, "rb") as file:
        file.seek(max(0, os.path.getsize(log) - 4096))
        lines = [
            line for line in file.read().decode("utf-8", "replace").replace("\r", "\n").splitlines() if line.strip()
        ]
    return lines[-1].strip()[:200] if lines else "nothing printed yet"
