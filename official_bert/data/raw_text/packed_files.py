"""Opens plain and compressed files, which their first bytes tell apart, and standard input."""

import bz2
import contextlib
import dataclasses
import gzip
import io
import itertools
import lzma
import sys
import zlib
from collections.abc import Callable, Iterator
from typing import Any, AnyStr, BinaryIO

from official_bert.limits import LONGEST_LINE, MOST_PACKED
from official_bert.storage.files import open_bytes as store_bytes

STANDARD_INPUT = "-"
_MAGIC = {
    b"\x1f\x8b": "gzip",
    b"BZh": "bzip2",
    b"\xfd7zXZ\x00": "xz",
    b"\x28\xb5\x2f\xfd": "zstd",
    b"PAR1": "parquet",
    b"ARROW1": "arrow",
    b"\xff\xff\xff\xff": "arrow",
    b"PK\x03\x04": "zip",
}


@dataclasses.dataclass
class Opened:
    """The number of bytes read so far from an open file."""

    bytes_read: Callable[[], int] = dataclasses.field(default=int, kw_only=True)  # 0 if no file is open


def kind_of(path: str) -> str:
    """Returns the kind of a file by its first bytes: `gzip`, `bzip2`, `xz`, `zstd`, `parquet`, `arrow`, or `text`."""
    if path == STANDARD_INPUT:
        return "text"
    with store_bytes(path) as file:
        return _kind_of_start(file.read(8))


def _kind_of_start(start: bytes) -> str:
    return next((kind for magic, kind in _MAGIC.items() if start.startswith(magic)), "text")


@contextlib.contextmanager
def open_bytes(path: str, opened: Opened) -> Iterator[BinaryIO]:
    """Opens a file, decompressed if its first bytes say that it is compressed; `-` is standard input.

    While it is open, `opened.bytes_read` counts the bytes read from it, before decompression. Raises ValueError for
    archives.
    """
    with contextlib.ExitStack() as stack:
        file: Any
        if path == STANDARD_INPUT:
            file = io.BufferedReader(sys.stdin.buffer)  # type: ignore[arg-type]
            kind = _kind_of_start(file.peek(8))
        else:
            file, kind = stack.enter_context(store_bytes(path)), kind_of(path)
            opened.bytes_read = file.tell
            stack.callback(setattr, opened, "bytes_read", int)
        if kind in ("zip", "parquet", "arrow"):
            raise ValueError(f"{path}: expected lines of text, plain or compressed, got a {kind} file")
        yield OPENERS[kind](file) if kind in OPENERS else file


def _open_zstd(raw: BinaryIO) -> io.BufferedReader:
    """Opens a zstd file of one or several frames; one that is cut off raises OSError."""
    import pyarrow

    return io.BufferedReader(pyarrow.CompressedInputStream(raw, "zstd"))


OPENERS: dict[str, Callable[..., Any]] = {"gzip": gzip.open, "bzip2": bz2.open, "xz": lzma.open, "zstd": _open_zstd}
DAMAGE = (EOFError, zlib.error, lzma.LZMAError, OSError)  # what decompressors raise for damaged files


def read_head(path: str, size: int) -> bytes:
    """Returns the first bytes of a file, decompressed; b"" if it is damaged there, because the reader of its lines
    reports that.
    """
    with open_bytes(path, Opened()) as file, contextlib.suppress(*DAMAGE):
        return file.read(size)
    return b""


def check_encoding(encoding: str) -> None:
    """Raises ValueError for an encoding of text that Python does not know."""
    try:
        "".encode(encoding or "utf-8")
    except LookupError:
        raise ValueError(
            f"--encoding={encoding}: expected an encoding that Python knows, such as cp1252, utf-16 or gb18030"
        ) from None


def bounded_lines(readline: Callable[[int], AnyStr], path: str, opened: Opened, remedy: str) -> Iterator[AnyStr]:
    """Yields the lines of a packed file; without a `remedy`, of one whose size needs no bounds.

    Raises ValueError, naming line and remedy, for a line of too many bytes, or too high a ratio of unpacked to packed
    bytes.
    """
    unpacked = 0
    for number in itertools.count(1):
        if not (line := readline(LONGEST_LINE + 1 if remedy else -1)):
            return
        unpacked, packed = unpacked + len(line), opened.bytes_read() if remedy else 0  # 0: not known
        if remedy and len(line) > LONGEST_LINE:
            raise ValueError(
                f"{path}:{number}: expected lines of at most {LONGEST_LINE:,} bytes in a packed file, got a longer "
                f"one; {remedy}"
            )
        if packed and unpacked > LONGEST_LINE + MOST_PACKED * packed:
            raise ValueError(
                f"{path}:{number}: expected at most {MOST_PACKED} bytes for each packed byte, got {unpacked:,} of "
                f"{packed:,}; {remedy}"
            )
        yield line
