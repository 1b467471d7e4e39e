"""Returns unused memory to the system. The C library keeps it after many small allocations."""

import asyncio
import contextlib
import ctypes
import os

GROWTH = 16 << 20  # bytes; a smaller growth is not worth the work
SECONDS = 0.5  # between looks, and at least between two givings back: what is in use again and again is better kept


def resident() -> int:
    """Returns the resident memory of this process in bytes. Raises OSError if the system has no /proc."""
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def trim() -> None:
    """Returns unused memory to the system. Does nothing without glibc."""
    with contextlib.suppress(OSError, AttributeError, TypeError):
        ctypes.CDLL(None).malloc_trim(0)


async def give_back() -> None:
    """Returns unused memory to the system whenever the process has grown, and once more when it stops growing.

    Runs until it is cancelled; returns at once on systems without /proc.
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
