"""Finds, reads and writes the files that a user names; knows nothing of what they hold."""

import contextlib
import os
from collections.abc import Iterator
from typing import TextIO


@contextlib.contextmanager
def written_beside(path: str) -> Iterator[str]:
    """Gives a temporary path beside `path` to write; flushes it to the disk and renames it at the end, removes it after an error."""
    temporary = f"{path}.tmp.{os.getpid()}"
    try:
        yield temporary
        with open(temporary, "rb") as file:
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)


@contextlib.contextmanager
def written_whole(path: str) -> Iterator[TextIO]:
    """Gives a UTF-8 file to write, line ends unchanged, that appears at `path` once it is whole; makes its folder."""
    os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
    with written_beside(path) as temporary, open(temporary, "w", encoding="utf-8", newline="") as file:
        yield file
        file.close()
