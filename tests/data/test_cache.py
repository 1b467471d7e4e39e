"""Arrays kept between runs."""

import stat

import numpy as np
import pytest

from official_bert.data.cache import cached, file_digest
from official_bert.data.record_files import local_records


def make_arrays(calls):
    def make():
        calls.append(1)
        return {"ids": np.arange(7, dtype=np.int32), "starts": np.array([0, 3, 3, 7])}

    return make


def test_arrays_are_made_once_and_come_back_as_they_were(tmp_path):
    calls = []
    made = [cached(str(tmp_path / "cache"), {"length": 8}, make_arrays(calls)) for _ in range(2)]
    assert len(calls) == 1
    for name, array in made[0].items():
        np.testing.assert_array_equal(made[1][name], array)
        assert made[1][name].dtype == array.dtype


def test_other_data_and_other_settings_are_made_anew(tmp_path):
    data, calls, cache = tmp_path / "data.txt", [], str(tmp_path / "cache")
    for text, length in (("one", 8), ("one", 9), ("two", 9), ("one", 8)):
        data.write_text(text)
        cached(cache, {"length": length, "data": file_digest(str(data))}, make_arrays(calls))
    assert len(calls) == 3


def test_a_damaged_file_is_made_anew_and_no_folder_keeps_nothing(tmp_path):
    calls, cache = [], tmp_path / "cache"
    wanted = cached(str(cache), {}, make_arrays(calls))
    (stored,) = cache.iterdir()
    stored.write_bytes(stored.read_bytes()[:100])
    for folder in (str(cache), ""):
        np.testing.assert_array_equal(cached(folder, {}, make_arrays(calls))["ids"], wanted["ids"])
    assert len(calls) == 3


def test_a_folder_that_cannot_be_written_is_done_without(tmp_path):
    (tmp_path / "file").write_text("")
    assert len(cached(str(tmp_path / "file"), {}, make_arrays([]))["ids"]) == 7


@pytest.mark.parametrize(
    "use", [lambda folder: cached(folder, {"length": 8}, make_arrays([])), local_records.cache_folder]
)
def test_a_cache_that_others_can_write_in_is_refused_and_a_new_one_is_private(tmp_path, use):
    use(str(tmp_path / "own"))
    assert stat.S_IMODE((tmp_path / "own").stat().st_mode) == 0o700
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared").chmod(0o777)
    (tmp_path / "link").symlink_to(tmp_path / "own")
    for name, told in (("shared", "others can write in"), ("link", "got a link")):
        with pytest.raises(ValueError, match=f"{name}: expected a folder that nobody else can write in, .*{told}"):
            use(str(tmp_path / name))
    assert not list((tmp_path / "shared").iterdir())
