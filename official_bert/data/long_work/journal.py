"""A file of the results of finished pieces, in order, so that a continued run does not compute them again."""

import os
import pickle
import struct
import zlib
from collections.abc import Iterator
from typing import Any

_HEADER = struct.Struct("<QI")  # bytes of an entry, its CRC-32


class Journal:
    """A file of results, each with its checksum. Read all of them with `replay` first, then `append` more.

    The first damaged or incomplete entry (after a kill) and all entries after it are dropped.
    """

    def __init__(self, path: str):
        self._file = open(path, "a+b", buffering=0)  # noqa: SIM115  (closed by `close`)

    def replay(self) -> Iterator[Any]:
        """Gives the results of earlier runs in order, and truncates the file after the last complete one."""
        self._file.seek(0)
        end = 0
        while len(header := self._file.read(_HEADER.size)) == _HEADER.size:
            size, checksum = _HEADER.unpack(header)
            if size > os.fstat(self._file.fileno()).st_size or zlib.crc32(data := self._file.read(size)) != checksum:
                break
            end = self._file.tell()
            yield pickle.loads(zlib.decompress(data))
        self._file.truncate(end)

    def append(self, result: Any) -> None:
        """Adds a result; if the disk is full, the file stays unchanged."""
        data = zlib.compress(pickle.dumps(result), 1)
        end = self._file.seek(0, os.SEEK_END)
        try:
            for part in (_HEADER.pack(len(data), zlib.crc32(data)), data):
                left = memoryview(part)
                while left:
                    left = left[self._file.write(left):]
        except BaseException:
            self._file.truncate(end)
            raise

    def close(self) -> None:
        """Closes the file."""
        self._file.close()
