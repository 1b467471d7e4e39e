"""Gives memory that the process no longer uses back to the system, which the C library keeps after a flood of small pieces."""

import asyncio
import contextlib
import ctypes
import os

GROWTH = 16 << 20  # bytes; a smaller growth is not worth the work
SECONDS = 0.5  # between looks, and at least between two givings back: what is in use again and again is better kept
SETTLED = 10  # looks after a growth: what a first request took, copies of a graph with its weights, is free by then


def resident() -> int:
    """Returns the bytes of this process in memory. Raises OSError where the system does not say it."""
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


async def give_back() -> None:
    """Gives unused memory back whenever the process has grown, and once more later; ends only if cancelled, or at once on systems without
    glibc.
    """
    with contextlib.suppress(OSError, AttributeError, TypeError):
        trim = ctypes.CDLL(None).malloc_trim
        least, looks = resident(), 0
        while True:
            await asyncio.sleep(SECONDS)
            grown = resident() > least + GROWTH
            looks = SETTLED if grown else max(0, looks - 1)
            if grown or looks == 1:
                await asyncio.to_thread(trim, 0)
                least = resident()
            least = min(least, resident())
