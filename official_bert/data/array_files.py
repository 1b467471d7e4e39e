"""Arrays in memory-mapped files, which may be larger than memory."""

import errno
import os
from collections.abc import Sequence
from typing import IO

import numpy as np

NOT_OFFERED = (errno.EINVAL, errno.EOPNOTSUPP, errno.ENOSYS)  # by a file system
ZEROS = bytes(1 << 20)


def make_array(path: str, shape: Sequence[int]) -> np.memmap:
    """Creates a .npy file of float32 zeros with all its disk space allocated, and maps it for writing.

    Otherwise the file would be sparse, and writing to it on a full disk would kill the process with a signal. Raises
    OSError, naming the path, if the disk has no room.
    """
    try:
        array = np.lib.format.open_memmap(path, "w+", np.float32, tuple(shape))
        with open(path, "r+b") as file:
            _allocate(file, array.offset, os.path.getsize(path))
        return array
    except OSError as error:
        raise OSError(error.errno, error.strerror, path) from None


def _allocate(file: IO[bytes], start: int, end: int) -> None:
    """Takes room on the disk for a file, whose bytes from `start` on are zeros."""
    try:
        os.posix_fallocate(file.fileno(), 0, end)
        return
    except AttributeError:  # macOS has no such call
        pass
    except OSError as error:
        if error.errno not in NOT_OFFERED:
            raise
    file.seek(start)
    for place in range(start, end, len(ZEROS)):
        file.write(ZEROS[: end - place])
