"""Numba's compiler, with a cache on disk if there is a place for it that nobody else can write in."""

import contextlib
import inspect
import os
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import ModuleType
from typing import Any

import numba
import numpy as np

from official_bert.storage.files import make_private_folder, why_not_private

OWN_FOLDER = os.path.join("~", ".cache", "official_bert", "numba")


def compiled(parts: Sequence[ModuleType] = (), **options: Any) -> Callable:
    """Returns a decorator like `numba.njit(cache=True, **options)` that skips the cache if no folder for it is
    writable.

    Cached code is executed, so the folder must belong to the user: where Numba puts it (`NUMBA_CACHE_DIR`, beside the
    source, or the home), else OWN_FOLDER. If none is writable, as in a read-only container, each process compiles
    again, which takes some seconds.

    `parts` are the modules of inlined functions. Numba renews a cache only if the function's own file changes, so the
    names of its files have a checksum of the parts.
    """

    def compile_function(function: Callable) -> Any:
        for part in parts:
            with contextlib.suppress(OSError):  # without source there is no cache
                function.__qualname__ += f"_{zlib.crc32(inspect.getsource(part).encode()):08x}"
        cached = _cached(function, options)
        if cached is not None and _is_own(cached.stats.cache_path):
            return cached
        with _cache_in(os.path.expanduser(OWN_FOLDER)) as has_place:
            cached = _cached(function, options) if has_place else None
        return numba.njit(**options)(function) if cached is None else cached

    return compile_function


def _cached(function: Callable, options: Mapping[str, Any]) -> Any:
    """Returns the compiled function with its cache; None if Numba finds no place for one."""
    try:
        return numba.njit(cache=True, **options)(function)
    except RuntimeError as error:
        if "cannot cache" not in str(error):
            raise
        return None


def _is_own(folder: str) -> bool:
    """Whether only this user can have put files into a folder."""
    with contextlib.suppress(OSError):
        return not why_not_private(folder)
    return False


@contextlib.contextmanager
def _cache_in(folder: str) -> Iterator[bool]:
    """Lets Numba put caches into a folder of the user's own, and says whether there is one."""
    try:
        make_private_folder(folder)
    except (OSError, ValueError):
        yield False
        return
    before, numba.config.CACHE_DIR = numba.config.CACHE_DIR, folder  # type: ignore[attr-defined]
    try:
        yield True
    finally:
        numba.config.CACHE_DIR = before  # type: ignore[attr-defined]


def read_only(array: np.ndarray) -> np.ndarray:
    """Returns a read-only view, so that Numba gives mapped arrays and arrays in memory the same type.

    Otherwise it would compile a function twice, which takes up to ten seconds.
    """
    view = array.view()
    view.flags.writeable = False
    return view
