"""Journal of finished pieces: their results in a file, in order, so a continued run does not compute them again."""

import json
import os
import struct
import zlib
from collections.abc import Callable, Iterator
from typing import Any

from official_bert.limits import MOST_PACKED, MOST_UNPACKED

_HEADER = struct.Struct("<QI")  # bytes of an entry, its CRC-32


class Journal:
    """A file of results (JSON values), each with its checksum. Read all of them with `replay` first, then `append`
    more.

    The first damaged or incomplete entry (after a kill) and all entries after it are dropped.
    """

    def __init__(self, path: str):
        self._file = open(path, "a+b", buffering=0)  # noqa: SIM115  (closed by `close`)

    def replay(self, read: Callable[[Any], Any] = lambda result: result) -> Iterator[Any]:
        """Gives the results of earlier runs in order, and truncates the file after the last complete one.

        `read` makes the result from its JSON value; an entry for which it raises ValueError is a damaged one.
        """
        self._file.seek(0)
        end = 0
        while len(header := self._file.read(_HEADER.size)) == _HEADER.size:
            size, checksum = _HEADER.unpack(header)
            if size > os.fstat(self._file.fileno()).st_size or zlib.crc32(data := self._file.read(size)) != checksum:
                break
            try:
                result = read(json.loads(_unpacked(data)))
            except (zlib.error, ValueError, RecursionError):
                break
            end = self._file.tell()
            yield result
        self._file.truncate(end)

    def append(self, result: Any) -> None:
        """Adds a result; if the disk is full, the file stays unchanged."""
        data = zlib.compress(json.dumps(result, separators=(",", ":")).encode(), 1)
        end = self._file.seek(0, os.SEEK_END)
        try:
            for part in (_HEADER.pack(len(data), zlib.crc32(data)), data):
                unwritten = memoryview(part)
                while unwritten:
                    unwritten = unwritten[self._file.write(unwritten) :]
        except BaseException:
            self._file.truncate(end)
            raise

    def close(self) -> None:
        """Closes the file."""
        self._file.close()


def _unpacked(data: bytes) -> bytes:
    """Unpacks an entry. Raises ValueError if it is larger than any that a run writes, zlib.error if it is damaged."""
    unpacker = zlib.decompressobj()
    unpacked = unpacker.decompress(data, max(MOST_UNPACKED, MOST_PACKED * len(data)))
    if not unpacker.eof:
        raise ValueError("an entry is cut off, or too large")
    return unpacked
