"""Records of many files by their numbers, each read from its own place and checked."""

import contextlib
import functools
import os
import weakref
from collections.abc import Callable, Sequence

import numpy as np

from official_bert.data.record_files.local_records import cache_folder, check_space, local_records, needs_copy
from official_bert.data.record_files.record_encoding import (
    FRAME_FOOTER_BYTES,
    FRAME_HEADER_BYTES,
    crc_tables,
    first_broken_frame,
)
from official_bert.data.record_files.record_index import RecordIndex, find_index, make_index
from official_bert.data.record_files.records import read_records
from official_bert.long_work.progress import Reporter
from official_bert.storage.files import size_of

SHOWN_FROM = 1 << 28  # bytes of records to copy or to walk through: what takes less than a second needs no progress
OPEN_FILES = 128  # as many as a window of `RecordOrder` needs
OPEN_INDICES = 16  # a window needs each once
BROKEN = ("its length does not match its checksum or its place in the index", "its bytes do not match their checksum")


class BrokenRecordError(ValueError):
    """A record that cannot be read: its number, and why."""

    def __init__(self, number: int, reason: str):
        super().__init__(f"record {number} {reason}")
        self.number, self.reason = number, reason


class IndexedRecords:
    """The records of TFRecord files, plain or gzip, on this machine or elsewhere, numbered through all files.

    The constructor makes missing files, with progress: an index of each file, and in `cache_dir` a plain copy of gzip
    and remote files; with "", copies are deleted at exit. Raises ValueError for broken files.
    """

    def __init__(self, paths: Sequence[str], cache_dir: str = ""):
        self.paths = list(paths)
        self.indices = indices = _open_all(self.paths, cache_folder(cache_dir))
        self.counts = [index.count for index in indices]
        self._firsts = np.cumsum([0, *self.counts])
        self._file = functools.lru_cache(OPEN_FILES)(lambda number: _OpenFile(indices[number]))
        self._bounds = functools.lru_cache(OPEN_INDICES)(lambda number: indices[number].bounds())

    def locate(self, number: int) -> str:
        """Returns `file: record number` of a record."""
        file = int(np.searchsorted(self._firsts, number, side="right")) - 1
        return f"{self.paths[file]}: record {number - self._firsts[file]}"

    def places(self, numbers: np.ndarray) -> np.ndarray:
        """Returns the file number, first byte and end of each record: int64 [3,n].

        Raises BrokenRecordError if an index is no longer there.
        """
        places = np.empty((3, len(numbers)), np.int64)
        places[0] = np.searchsorted(self._firsts, numbers, side="right") - 1
        order = np.argsort(places[0], kind="stable")
        files, begins = np.unique(places[0][order], return_index=True)
        for file, rows in zip(files.tolist(), np.split(order, begins[1:])):
            try:
                bounds = self._bounds(file)
            except (OSError, ValueError) as error:
                why = f"{error.filename}: {error.strerror}" if isinstance(error, OSError) else str(error)
                raise BrokenRecordError(
                    int(numbers[rows[0]]), f"cannot be found: {why}; start again to make a new index"
                ) from None
            within = numbers[rows] - self._firsts[file]
            places[1:, rows] = bounds[within], bounds[within + 1]
        return places

    def read(self, numbers: np.ndarray, places: np.ndarray) -> list[bytes]:
        """Returns the records with these numbers, which are at these `places`.

        Raises BrokenRecordError for the first that cannot be read, or does not match its checksums.
        """
        parts = []
        for number, file, start, stop in zip(numbers.tolist(), *places.tolist()):
            try:
                parts.append(self._file(file).read(start, stop))
            except OSError as error:
                raise BrokenRecordError(number, f"cannot be read: {error.strerror}") from None
            if len(parts[-1]) != stop - start:
                raise BrokenRecordError(
                    number, f"is truncated: expected {stop - start} bytes, {len(parts[-1])} are left"
                )
        bounds = np.cumsum([0, *map(len, parts)])
        row, kind = first_broken_frame(np.frombuffer(b"".join(parts), np.uint8), bounds, crc_tables())
        if row >= 0:
            raise BrokenRecordError(int(numbers[row]), f"is corrupted: {BROKEN[kind]}")
        return [part[FRAME_HEADER_BYTES:-FRAME_FOOTER_BYTES] for part in parts]


def check_readable(paths: Sequence[str], cache_dir: str = "") -> None:
    """Reads the first record of each file, and makes the indices of local plain files, as a run does at its start.

    Raises ValueError, naming the file, for records that are broken; OSError if it cannot be read.
    """
    for path in paths:
        next(read_records(path), None)
    IndexedRecords([path for path in paths if not needs_copy(path)], cache_dir)


class _OpenFile:
    """A record file, which is closed when no thread uses it. Raises OSError if it is not the file of the index."""

    def __init__(self, index: RecordIndex):
        self._descriptor = os.open(index.path, os.O_RDONLY)
        weakref.finalize(self, os.close, self._descriptor)
        state = os.fstat(self._descriptor)
        if (state.st_size, state.st_mtime_ns) != (index.key["size"], index.key["modified"]):
            raise OSError(None, f"{index.path} has changed since this run began")

    def read(self, start: int, stop: int) -> bytes:
        """Reads bytes `start` to `stop` - 1, fewer at the end of the file. The file stays open until they are there."""
        return os.pread(self._descriptor, stop - start, start)


def _open_all(paths: Sequence[str], folder: str) -> list[RecordIndex]:
    """Returns the index of each file, or of its plain copy."""
    with contextlib.ExitStack() as stack:
        show: Callable[[str, float], None] = lambda stage, share: None  # noqa: E731
        if sum(size_of(path) for path in paths) >= SHOWN_FROM:
            show = stack.enter_context(Reporter()).show
        elsewhere = list(filter(needs_copy, paths))
        check_space(elsewhere, folder)
        copies = _each("copying records", elsewhere, show, lambda path, part: local_records(path, folder, part))
        plain = [copies.get(path, path) for path in paths]
        names = dict(zip(plain, paths))
        indices = {path: index for path in names if (index := find_index(path, folder))}
        indices |= _each(
            "indexing records",
            [path for path in names if path not in indices],
            show,
            lambda path, part: make_index(path, folder, names[path], part),
        )
        return [indices[path] for path in plain]


def _each(stage: str, paths: Sequence[str], show: Callable[[str, float], None], function: Callable) -> dict:
    """Returns the result of `function(path, show)` for each file; `show` gets the share of the whole stage."""
    sizes = {path: size_of(path) for path in paths}
    total, done, results = max(sum(sizes.values()), 1), 0, {}
    for path, size in sizes.items():

        def part(share: float, done: int = done, size: int = size) -> None:
            show(stage, min((done + share * size) / total, 0.999))

        results[path] = function(path, part)
        done += size
    if paths:
        show(stage, 1.0)
    return results
