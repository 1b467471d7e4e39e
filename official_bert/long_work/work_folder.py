"""Resume of long commands: the folder beside an output that keeps finished pieces, so that the same command continues
after a kill.

    with WorkFolder("train.tfrecord.work", made_of) as work:
        if (facts := work.finished("part-0", is_whole)) is None:
            ...  # write work.path_of("part-0")
            work.finish("part-0", facts)

A piece may also be a result in memory, JSON values: `keep_result`, `result`.
"""

import contextlib
import fcntl
import glob
import json
import os
import shutil
import sys
import types
import zlib
from collections.abc import Callable
from typing import Any

from official_bert.limits import MOST_PACKED, MOST_UNPACKED
from official_bert.long_work.made_of import require_same
from official_bert.storage import files
from official_bert.storage.stores import locate

SUFFIX = ".work"
RESULT = ".result"  # ends the names of the files of results
UNFINISHED = ".tmp.[0-9]*." + "[0-9a-f]" * 8  # what a killed process was writing, behind the name of the output
LOCK, MADE_OF = "lock", "made_of.json"


class BusyError(ValueError):
    """Another process works in a folder."""


def work_path(output: str) -> str:
    """Returns the path of an output's work folder: beside it, or among temporary files if the output is on another
    machine.
    """
    return locate(output).beside(SUFFIX)


class WorkFolder:
    """Pieces of one run. `made_of` describes their inputs: {name that the user knows: value}, JSON values only.

    Entering makes the folder (mode 0700) or takes the one that a stopped run left, and removes the unfinished output of
    a killed one. Raises ValueError if that run had other inputs or if another user may have filled it, BusyError if
    another process works in the folder; `discard` first empties it. Leaving removes the folder, unless pieces are
    finished and the run was stopped or a disk failed.
    """

    def __init__(self, path: str, made_of: dict[str, Any], discard: bool = False):
        self.path, self.made_of, self.discard = path, made_of, discard

    def __enter__(self) -> "WorkFolder":
        self._lock()
        try:
            for unfinished in glob.glob(glob.escape(self.path.removesuffix(SUFFIX)) + UNFINISHED):
                files.remove(unfinished)
            if self.discard:
                self._empty()
            self._compare()
        except BaseException:
            self._file.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: types.TracebackType | None
    ) -> None:
        stopped = kind is not None and issubclass(kind, (KeyboardInterrupt, SystemExit, OSError, RuntimeError))
        if stopped and self._has_pieces():
            print(
                f"{self.path} keeps the finished work: the same command continues from it, --discard removes it",
                file=sys.stderr,
            )
        else:
            shutil.rmtree(self.path, ignore_errors=True)
        self._file.close()

    def _lock(self) -> None:
        """Opens and locks the lock file; again if the run that held it removes the folder meanwhile."""
        path = self.path_of(LOCK)
        while True:
            files.make_private_folder(self.path)
            self._file = open(path, "a", encoding="utf-8")  # noqa: SIM115  (closed when the folder is left)
            try:
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                self._file.close()
                raise BusyError(
                    f"{self.path}: another run is using it; wait for its end or give another name"
                ) from None
            except OSError:  # a file system without locks
                return
            if os.path.exists(path) and os.path.samestat(os.fstat(self._file.fileno()), os.stat(path)):
                return
            self._file.close()

    def _empty(self) -> None:
        """Removes everything but the lock."""
        for entry in os.scandir(self.path):
            if entry.name != LOCK:
                shutil.rmtree(entry.path) if entry.is_dir(follow_symlinks=False) else os.unlink(entry.path)

    def _compare(self) -> None:
        """Requires that the folder's pieces have the same inputs as this run; writes down this run's inputs."""
        before = self._read(MADE_OF)
        if isinstance(before, dict) and self._has_pieces():
            require_same(
                before,
                self.made_of,
                f"{self.path}: holds the finished work of a stopped run with",
                "the same command continues from it, --discard removes it",
            )
        else:
            self._empty()  # remains of a run that had finished nothing
            write_json(self.path_of(MADE_OF), self.made_of)

    def _has_pieces(self) -> bool:
        """Tells whether a piece is finished, or is partly done in a folder of its own."""
        return any(
            entry.is_dir() or entry.name.endswith((".json", RESULT))
            for entry in os.scandir(self.path)
            if entry.name != MADE_OF
        )

    def _read(self, name: str) -> Any:
        """Returns the value in a JSON file of the folder; None if the file is missing or damaged."""
        with contextlib.suppress(ValueError):
            return files.read_json(self.path_of(name))
        return None

    def path_of(self, name: str) -> str:
        """Returns the path of a piece."""
        return os.path.join(self.path, name)

    def finished(self, name: str, is_whole: Callable[[str, Any], bool], elsewhere: str = "") -> Any:
        """Returns the facts that `finish` stored for a piece; None if the piece is not finished or not complete.

        `is_whole(path, facts)` checks the file, which may already be in its final place, `elsewhere`.
        """
        facts = self._read(f"{name}.json")
        paths = [path for path in (self.path_of(name), elsewhere) if path and files.exists(path)]
        try:
            return facts if facts is not None and paths and is_whole(paths[0], facts) else None
        except (ValueError, KeyError, TypeError, OSError):  # damaged
            return None

    def finish(self, name: str, facts: Any) -> None:
        """Flushes a piece to the disk, then marks it as finished with `facts` (JSON values)."""
        path = self.path_of(name)
        if os.path.isfile(path):
            flush_to_disk(path)
        write_json(f"{path}.json", facts)

    def result(self, number: int, read: Callable[[Any], Any] = lambda value: value) -> Any:
        """Returns the result with a number; None if it is missing or damaged.

        `read` makes it from its JSON value, and raises ValueError for a damaged one.
        """
        try:
            return read(json.loads(_unpacked(files.read_bytes(self.path_of(f"{number}{RESULT}")))))
        except (OSError, ValueError, RecursionError, zlib.error):
            return None

    def keep_result(self, number: int, value: Any) -> None:
        """Writes a result (JSON values) whole or not at all, without waiting for the disk: `result` notices damage."""
        path = self.path_of(f"{number}{RESULT}")
        data = zlib.compress(json.dumps(value, separators=(",", ":")).encode(), 1)
        with files.temporary_for(path) as temporary:
            with open(temporary, "wb") as file:
                file.write(data)
            os.replace(temporary, path)

    def publish(self, name: str, target: str) -> None:
        """Moves a piece to its final path; a piece that is already there stays."""
        path = self.path_of(name)
        if os.path.exists(path):
            files.publish(path, target)


def part_name(number: int) -> str:
    """Returns the name of an unfinished output in a work folder."""
    return f"part-{number:05d}"


def flush_to_disk(path: str) -> None:
    """Waits until the content of a file is on its disk."""
    with open(path, "rb") as file:
        os.fsync(file.fileno())


def write_json(path: str, value: Any) -> None:
    """Writes a JSON file whole or not at all."""
    with files.written_beside(path) as temporary, open(temporary, "w", encoding="utf-8") as file:
        json.dump(value, file)


def _unpacked(data: bytes) -> bytes:
    """Unpacks a result. Raises ValueError if it is larger than any that a run writes, zlib.error if it is damaged."""
    unpacker = zlib.decompressobj()
    unpacked = unpacker.decompress(data, max(MOST_UNPACKED, MOST_PACKED * len(data)))
    if not unpacker.eof:
        raise ValueError("a result is cut off, or too large")
    return unpacked
