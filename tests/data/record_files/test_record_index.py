"""The index of a record file: exact, made once, made again when it must be, never half-written."""

import glob
import os
import pathlib
import struct

import numpy as np
import pytest
from oracles.records import crc, write_tfrecords

from official_bert.data.record_files import record_index
from official_bert.data.record_files.record_index import find_index, make_index, paths_of_index

ROWS = [b"x" * size for size in (5, 0, 1, 40, 0, 300, 7)]


@pytest.fixture
def path(tmp_path):
    write_tfrecords(str(tmp_path / "train.tfrecord"), ROWS)
    return str(tmp_path / "train.tfrecord")


@pytest.fixture
def cache(tmp_path):
    return str(tmp_path / "cache")


def walked(path):
    """The place of each record and the end, header by header."""
    data, places = pathlib.Path(path).read_bytes(), [0]
    while places[-1] < len(data):
        places.append(places[-1] + 16 + struct.unpack_from("<Q", data, places[-1])[0])
    return places


@pytest.mark.parametrize("chunk", [16, 31, 64, 400, 1 << 20])
def test_it_has_the_place_of_each_record_wherever_the_file_is_cut_while_it_is_read(path, cache, monkeypatch, chunk):
    monkeypatch.setattr(record_index, "CHUNK", chunk)
    shares = []
    index = make_index(path, cache, show=shares.append)
    assert index.count == len(ROWS) and index.bounds().tolist() == walked(path) and index.bounds().dtype == np.int64
    assert shares == sorted(shares) and shares[-1] == 1
    assert find_index(path, cache) == index


def test_a_file_without_records_has_an_index_too(tmp_path, cache):
    (tmp_path / "empty").write_bytes(b"")
    assert make_index(str(tmp_path / "empty"), cache).bounds().tolist() == [0]
    assert find_index(str(tmp_path / "empty"), cache).count == 0


def test_it_is_beside_the_records_where_no_glob_finds_it_or_in_the_cache(path, cache, tmp_path):
    beside, cached = paths_of_index(path, cache)
    assert make_index(path, cache).index_path == beside and glob.glob(f"{tmp_path}/*") == [path]
    os.unlink(beside)
    os.mkdir(beside)  # nothing can be written there
    index = make_index(path, cache)
    assert index.index_path == cached and find_index(path, cache) == index and index.bounds().tolist() == walked(path)
    assert os.listdir(cache) == [os.path.basename(cached)]


def test_records_of_one_name_in_two_folders_share_no_index_in_the_cache(tmp_path, cache):
    (tmp_path / "other").mkdir()
    first, second = (paths_of_index(str(folder / "a"), cache)[1] for folder in (tmp_path, tmp_path / "other"))
    assert first != second


def test_it_follows_its_records_and_says_so(path, cache, caplog):
    make_index(path, cache)
    assert find_index(path, cache) and not caplog.text
    stat = os.stat(path)
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns + 1))
    assert find_index(path, cache) is None
    assert f"{path}: {paths_of_index(path, cache)[0]} is that of other records; its records" in caplog.text
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert find_index(path, cache)
    write_tfrecords(path, ROWS[::-1] + ROWS)
    assert find_index(path, cache) is None and make_index(path, cache).bounds().tolist() == walked(path)
    os.rename(path, path + "2")
    os.rename(paths_of_index(path, cache)[0], paths_of_index(path + "2", cache)[0])
    assert find_index(path + "2", cache) is None


def test_a_damaged_one_is_not_used(path, cache, caplog):
    index = make_index(path, cache)
    whole = pathlib.Path(index.index_path).read_bytes()
    flipped = [whole[:place] + bytes([whole[place] ^ 4]) + whole[place + 1 :] for place in (1, 30, 520, len(whole) - 1)]
    for data in (b"", b"[]", b"null", whole[:100], whole[:512], whole[:-8], whole[:-1], whole + bytes(8), *flipped):
        pathlib.Path(index.index_path).write_bytes(data)
        caplog.clear()
        assert find_index(path, cache) is None and "its records are indexed again" in caplog.text, data[:80]
    assert make_index(path, cache) == find_index(path, cache)


def test_broken_records_leave_no_index(path, cache, tmp_path):
    data = bytearray(pathlib.Path(path).read_bytes())
    data[walked(path)[3] + 1] ^= 1
    pathlib.Path(path).write_bytes(data)
    with pytest.raises(ValueError, match=r"the file: record 3 is truncated or corrupted"):
        make_index(path, cache, "the file")
    huge = struct.pack("<Q", 2**64 - 8)
    pathlib.Path(path).write_bytes(huge + crc(huge) + bytes(100))
    with pytest.raises(ValueError, match="record 0 is truncated or corrupted"):
        make_index(path, cache)
    assert [found for found in tmp_path.rglob("*") if found.is_file()] == [tmp_path / "train.tfrecord"]


def test_an_interruption_leaves_nothing(path, cache, tmp_path):
    def stop(_):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        make_index(path, cache, show=stop)
    assert list(tmp_path.iterdir()) == [tmp_path / "train.tfrecord"]
