"""Gives memory that the process no longer uses back to the system, which the C library keeps after a flood of small
pieces.
"""

import asyncio
import contextlib
import ctypes
import os

GROWTH = 16 << 20  # bytes; a smaller growth is not worth the work
SECONDS = 0.5  # between looks, and at least between two givings back: what is in use again and again is better kept


def resident() -> int:
    """Returns the bytes of this process in memory. Raises OSError where the system does not say it."""
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def trim() -> None:
    """Gives unused memory back. Does nothing on systems without glibc."""
    with contextlib.suppress(OSError, AttributeError, TypeError):
        ctypes.CDLL(None).malloc_trim(0)


async def give_back() -> None:
    """Gives unused memory back whenever the process has grown, and once more when it grows no longer, because what grew
    may be free then; ends only if cancelled, or at once on systems that do not say how large a process is.
    """
    with contextlib.suppress(OSError):
        least, grew = resident(), False
        while True:
            await asyncio.sleep(SECONDS)
            grows = resident() > least + GROWTH
            if grows or grew:
                await asyncio.to_thread(trim)
                least = resident()
            least, grew = min(least, resident()), grows
