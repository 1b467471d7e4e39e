"""Compiled functions: they work without a place for Numba's cache too."""

import numba
import pytest

from official_bert.text.compiling import compiled


def function_without_source():
    """A function of a file that is not there: Numba finds no place for its cache."""
    names = {}
    exec(compile("def double(number):\n    return 2 * number\n", "/nowhere/double.py", "exec"), names)
    return names["double"]


def test_a_function_without_a_place_for_its_cache_is_compiled_all_the_same():
    with pytest.raises(RuntimeError, match="cannot cache"):
        numba.njit(cache=True)(function_without_source())
    assert compiled(nogil=True)(function_without_source())(21) == 42
