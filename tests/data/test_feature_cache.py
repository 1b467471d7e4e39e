"""Features kept between runs."""

import numpy as np

from official_bert.data.feature_cache import cached_rows


def make_rows(calls):
    def make():
        calls.append(1)
        return [{"ids": np.arange(count, dtype=np.int32), "label": np.int32(count), "score": np.float32(0.5)} for count in (3, 0, 5)]
    return make


def equal(rows, wanted):
    for row, other in zip(rows, wanted, strict=True):
        assert list(row) == list(other)
        for key in row:
            np.testing.assert_array_equal(row[key], other[key])
            assert row[key].dtype == other[key].dtype and np.shape(row[key]) == np.shape(other[key])


def test_rows_are_made_once_and_come_back_as_they_were(tmp_path):
    data, calls = tmp_path / "data.txt", []
    data.write_text("one")
    first = cached_rows(str(tmp_path / "cache"), [str(data)], {"length": 8}, make_rows(calls))
    again = cached_rows(str(tmp_path / "cache"), [str(data)], {"length": 8}, make_rows(calls))
    assert len(calls) == 1
    equal(again, first)


def test_other_data_and_other_settings_are_made_anew(tmp_path):
    data, calls, cache = tmp_path / "data.txt", [], str(tmp_path / "cache")
    data.write_text("one")
    cached_rows(cache, [str(data)], {"length": 8}, make_rows(calls))
    cached_rows(cache, [str(data)], {"length": 9}, make_rows(calls))
    data.write_text("two")
    cached_rows(cache, [str(data)], {"length": 8}, make_rows(calls))
    assert len(calls) == 3


def test_a_damaged_file_is_made_anew_and_no_folder_keeps_nothing(tmp_path):
    data, calls, cache = tmp_path / "data.txt", [], tmp_path / "cache"
    data.write_text("one")
    wanted = cached_rows(str(cache), [str(data)], {}, make_rows(calls))
    (stored,) = cache.iterdir()
    stored.write_bytes(stored.read_bytes()[:100])
    equal(cached_rows(str(cache), [str(data)], {}, make_rows(calls)), wanted)
    equal(cached_rows("", [str(data)], {}, make_rows(calls)), wanted)
    assert len(calls) == 3
