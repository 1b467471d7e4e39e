"""Compiled functions: they work without a place for Numba's cache too."""

import importlib
import pathlib
import sys

import numba
import numpy as np
import pytest

from official_bert.text import compiling
from official_bert.text.compiling import compiled, read_only


def function_without_source():
    """A function of a file that is not there: Numba finds no place for its cache."""
    names = {}
    exec(compile("def double(number):\n    return 2 * number\n", "/nowhere/double.py", "exec"), names)
    return names["double"]


def test_a_function_without_a_place_for_its_cache_is_compiled_all_the_same():
    with pytest.raises(RuntimeError, match="cannot cache"):
        numba.njit(cache=True)(function_without_source())
    assert compiled(nogil=True)(function_without_source())(21) == 42


def test_an_array_of_a_file_and_one_in_memory_share_a_compiled_function(tmp_path):
    np.save(tmp_path / "numbers.npy", np.arange(5))
    in_memory, of_file = np.arange(5), np.load(tmp_path / "numbers.npy", mmap_mode="r")
    total = numba.njit(lambda numbers: numbers.sum())
    assert [total(read_only(numbers)) for numbers in (in_memory, of_file, in_memory[:0])] == [10, 10, 0]
    assert len(total.signatures) == 1
    in_memory[0] = 7  # only the view cannot be written
    assert total(read_only(in_memory)) == 17


@pytest.fixture
def compile_in(tmp_path, monkeypatch):
    """Compiles a function while Numba's cache is in a folder, and returns the folder of its cache."""
    monkeypatch.setattr(compiling, "OWN_FOLDER", str(tmp_path / "home" / "numba"))

    def compile_function(folder):
        monkeypatch.setattr(numba.config, "CACHE_DIR", str(folder))
        return compiled()(lambda number: 2 * number).stats.cache_path

    return compile_function


def test_the_cache_of_compiled_functions_is_the_users_own_or_not_used(compile_in, tmp_path):
    own, shared = tmp_path / "own", tmp_path / "shared"
    assert compile_in(own).startswith(str(own))
    place = compile_in(shared)
    assert place.startswith(str(shared))
    pathlib.Path(place).chmod(0o777)  # another user may have put programs there
    assert compile_in(shared).startswith(str(tmp_path / "home" / "numba")) and str(shared) == numba.config.CACHE_DIR
    (tmp_path / "home" / "numba").chmod(0o777)
    assert compile_in(shared) is None


def test_a_change_of_an_inlined_part_renews_the_cache(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(numba.config, "CACHE_DIR", "")  # beside the source
    (tmp_path / "whole_of_parts.py").write_text(
        "import part_of_whole\nfrom official_bert.text.compiling import compiled\n\n"
        "@compiled((part_of_whole,))\ndef run(x):\n    return part_of_whole.step(x)\n"
    )

    def result_and_hits(step):
        (tmp_path / "part_of_whole.py").write_text(
            f"from numba import njit\n\n@njit\ndef step(x):\n    return {step}\n"
        )
        for name in ("whole_of_parts", "part_of_whole"):
            sys.modules.pop(name, None)
        importlib.invalidate_caches()
        run = importlib.import_module("whole_of_parts").run
        return run(40), sum(run.stats.cache_hits.values())

    assert result_and_hits("x + 1") == (41, 0)
    assert result_and_hits("x + 1") == (41, 1)
    assert result_and_hits("x + 100") == (140, 0)
