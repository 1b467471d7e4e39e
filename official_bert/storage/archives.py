"""Opens zip files of unknown origin.

A damaged file, or one that unpacks to far more than it holds, is a one-line error.
"""

import contextlib
import lzma
import os
import struct
import zipfile
import zlib
from collections.abc import Iterator
from typing import BinaryIO

from official_bert.limits import MOST_PACKED, MOST_UNPACKED

# What Python's reader raises for damaged, encrypted and unknown entries.
DAMAGE = (
    zipfile.BadZipFile,
    zlib.error,
    lzma.LZMAError,
    struct.error,
    EOFError,
    NotImplementedError,
    RuntimeError,
    LookupError,
    OverflowError,
    MemoryError,
    UnicodeError,
)


@contextlib.contextmanager
def opened_zip(source: str | BinaryIO, where: str, most: int = 0) -> Iterator[zipfile.ZipFile]:
    """Opens a zip file on this machine. Its entries may claim `most` bytes together; by default as much as text may
    unpack to.

    Raises ValueError that names `where` if the entries claim more, or if the file is damaged, also if the damage shows
    only when an entry is read.
    """
    try:
        with zipfile.ZipFile(source) as archive:
            packed = os.path.getsize(source) if isinstance(source, str) else source.seek(0, os.SEEK_END)
            most = most or max(MOST_UNPACKED, MOST_PACKED * packed)
            if (claimed := sum(entry.file_size for entry in archive.infolist())) > most:
                raise ValueError(
                    f"{where}: expected a zip file that unpacks to at most {most:,} bytes, its entries claim "
                    f"{claimed:,}"
                )
            yield archive
    except DAMAGE as error:
        raise ValueError(f"{where}: damaged zip file: {str(error) or type(error).__name__}") from None
