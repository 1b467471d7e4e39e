"""Numba's compiler, with a cache on disk if there is a place for it."""

from collections.abc import Callable
from typing import Any

import numba
import numpy as np


def compiled(**options: Any) -> Callable:
    """Returns a decorator like `numba.njit(cache=True, **options)` that does without the cache if it has no place.

    Numba raises RuntimeError if neither the folder of the source nor a home can be written, as in a read-only container.
    Each process then compiles again, which takes some seconds.
    """
    def compile_function(function: Callable) -> Any:
        try:
            return numba.njit(cache=True, **options)(function)
        except RuntimeError as error:
            if "cannot cache" not in str(error):
                raise
            return numba.njit(**options)(function)
    return compile_function


def read_only(array: np.ndarray) -> np.ndarray:
    """Returns a view that cannot be written: arrays of a file and arrays in memory are then of one type for Numba.

    It compiles a function again, which takes up to ten seconds, for arguments that differ only in that.
    """
    view = array.view()
    view.flags.writeable = False
    return view
