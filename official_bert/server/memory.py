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


async def give_back() -> None:
    """Gives unused memory back whenever the process has grown; ends only if cancelled, or at once on systems without
    glibc.
    """
    with contextlib.suppress(OSError, AttributeError, TypeError):
        trim = ctypes.CDLL(None).malloc_trim
        least = resident()
        while True:
            await asyncio.sleep(SECONDS)
            if resident() > least + GROWTH:
                await asyncio.to_thread(trim, 0)
                least = resident()
            least = min(least, resident())
