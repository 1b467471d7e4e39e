"""An index of a TFRecord file: the offset of each record, in a file that is made once and mapped into memory.

`.train.tfrecord.record_index` lies beside `train.tfrecord`, or in a cache if that folder cannot be written. It is used
as long as the name, size and time of the record file are those in it; an index that is damaged or too old is made
again. Other facts about the records of a file are kept beside its index in the same way (`write_facts`, `read_facts`).
"""

import contextlib
import dataclasses
import json
import os
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, BinaryIO

import numpy as np
from absl import logging

from official_bert.data.cache import name_of
from official_bert.data.record_files.record_encoding import FRAME_BYTES, crc_tables, find_frames
from official_bert.storage.files import folder_of, make_folder, modified, size_of, written_beside

SUFFIX = ".record_index"
FORMAT = 1
HEADER_BYTES = 512  # a line of JSON, filled up with spaces
CHUNK = 1 << 24  # bytes of records read at once


@dataclasses.dataclass(frozen=True)
class RecordIndex:
    """The offsets of the records of the file at `path`; `key` has its name, size and time when the index was made."""

    path: str
    index_path: str
    count: int
    key: Mapping[str, Any]

    def bounds(self) -> np.ndarray:
        """Returns the memory-mapped offset of each record and the end of the last one: int64 [count + 1]."""
        return np.memmap(self.index_path, np.dtype("<i8"), "r", HEADER_BYTES, (self.count + 1,))


def paths_of_index(path: str, folder: str) -> list[str]:
    """Returns the possible paths of a file's index: beside the file, and in `folder`."""
    beside = os.path.join(folder_of(path), f".{os.path.basename(path)}{SUFFIX}")
    return [beside, os.path.join(folder, f"{name_of(path)}{SUFFIX}")]


def find_index(path: str, folder: str) -> RecordIndex | None:
    """Returns the index of a file if there is one beside it or in `folder`; warns of a damaged or outdated index."""
    for index_path in paths_of_index(path, folder):
        try:
            return _read(path, index_path)
        except FileNotFoundError:
            continue
        except (OSError, ValueError) as error:
            logging.warning("%s: %s; its records are indexed again", path, error)
    return None


def make_index(path: str, folder: str, called: str = "", show: Callable[[float], None] = lambda _: None) -> RecordIndex:
    """Makes the index of a file beside it, or in `folder` if that cannot be written. `show` gets the share that is
    done.

    Raises ValueError for a record that is truncated or whose length does not match its checksum; `called` is the user's
    name of the file. Other bytes of records are not checked.
    """
    beside, cached = paths_of_index(path, folder)
    with contextlib.suppress(OSError):
        return _write(path, beside, called or path, show)
    make_folder(folder)
    return _write(path, cached, called or path, show)


def _write(path: str, index_path: str, called: str, show: Callable[[float], None]) -> RecordIndex:
    key = _key(path)

    def parts() -> Iterator[np.ndarray]:
        with open(path, "rb", buffering=0) as records:
            for bounds in _all_bounds(records, key["size"], called):
                yield bounds.astype("<i8")
                show(int(bounds[-1]) / max(key["size"], 1))

    count = write_facts(index_path, key, parts(), extra=1)
    return RecordIndex(path, index_path, count, key)


def write_facts(target: str, key: Mapping[str, Any], parts: Iterable[np.ndarray], extra: int = 0) -> int:
    """Writes rows of numbers about the records of a file, and returns how many records there are: the rows less
    `extra`.

    `key` identifies the record file. Raises OSError if `target` cannot be written.
    """
    checksum, count = 0, -extra
    with written_beside(target) as temporary, open(temporary, "wb") as file:
        file.write(b" " * HEADER_BYTES)
        for part in parts:
            data = part.tobytes()
            file.write(data)
            checksum, count = zlib.crc32(data, checksum), count + len(part)
        file.seek(0)
        file.write(json.dumps({"format": FORMAT, **key, "count": count, "checksum": checksum}).encode())
        file.flush()
    return count


def _all_bounds(file: BinaryIO, size: int, called: str) -> Iterator[np.ndarray]:
    """Yields the places of the records of a file, part by part, and at last its end."""
    starts = np.empty(CHUNK // FRAME_BYTES + 1, np.int64)
    position, number = 0, 0
    while position < size:
        file.seek(position)
        data = np.frombuffer(file.read(CHUNK), np.uint8)
        count, position = find_frames(data, position, size, crc_tables(), starts)
        if not count:
            raise ValueError(f"{called}: record {number} is truncated or corrupted")
        yield starts[:count]
        number += count
    yield np.array([size])


def _read(path: str, index_path: str) -> RecordIndex:
    """Reads an index. Raises ValueError if it is damaged or its record file changed, OSError if it cannot be read."""
    key = _key(path)
    return RecordIndex(path, index_path, read_facts(index_path, key, 8, extra=1), key)


def read_facts(source: str, key: Mapping[str, Any], row_bytes: int, extra: int = 0) -> int:
    """Checks a file of `write_facts` and returns how many records there are; its rows begin after HEADER_BYTES.

    Raises ValueError if it is damaged or has another key, OSError if it cannot be read.
    """
    with open(source, "rb") as file:
        header = file.read(HEADER_BYTES)
        try:
            facts: dict[str, Any] = json.loads(header)
            count, checksum, is_known_format = facts["count"], facts["checksum"], facts["format"] == FORMAT
            if type(count) is not int:
                raise ValueError
        except (ValueError, TypeError, KeyError):
            raise ValueError(f"{source} is damaged") from None
        if not is_known_format or {name: facts.get(name) for name in key} != key:
            raise ValueError(f"{source} is that of other records")
        seen = bytes_left = 0
        while data := file.read(CHUNK):
            seen, bytes_left = zlib.crc32(data, seen), bytes_left + len(data)
    if seen != checksum or bytes_left != row_bytes * (count + extra):
        raise ValueError(f"{source} is damaged")
    return count


def _key(path: str) -> dict[str, Any]:
    return {"name": os.path.basename(path), "size": size_of(path), "modified": modified(path)}
