"""The shuffle on disk: the order that is asked for, with few reads and no more disk than the rows take."""

import os
import pathlib
import subprocess
import sys
import tempfile

import numpy as np
import pytest

from official_bert.data.pretraining import record_writing


def scratch(folder):
    return tempfile.TemporaryFile(dir=folder)


def put(folder, rows):
    file = scratch(folder)
    file.write(rows.data)
    file.flush()
    return file


@pytest.mark.parametrize("count", [0, 1, 7, 64, 65, 1000])
@pytest.mark.parametrize(
    "bucket, chunk, multiple", [(64, 24, 1), (160, 8, 6), (160, 10_000, 4), (100_000, 80, 5), (1, 1, 3)]
)
def test_rows_come_in_the_order_asked_for(tmp_path, monkeypatch, count, bucket, chunk, multiple):
    monkeypatch.setattr(record_writing, "BUCKET_BYTES", bucket)
    monkeypatch.setattr(record_writing, "CHUNK_BYTES", chunk)
    rows = np.arange(4 * count, dtype=np.uint16).reshape(count, 4)
    order = np.random.default_rng(count).permutation(count)
    row, found, shares = np.dtype((np.uint16, (4,))), [], []
    for part in record_writing.ShuffledRows(put(tmp_path, rows), row, order).buckets(
        lambda: scratch(tmp_path), multiple, shares.append
    ):
        assert part.start == sum(map(len, found)) and part.start % multiple == 0
        found.append(part.rows[part.numbers])
    np.testing.assert_array_equal(np.concatenate([rows[:0], *found]), rows[order])
    assert shares == sorted(shares) and (not shares or shares[-1] == 1)
    assert not list(tmp_path.iterdir())


def test_the_files_together_take_hardly_more_than_the_rows(tmp_path, monkeypatch):
    monkeypatch.setattr(record_writing, "BUCKET_BYTES", 1 << 20)
    monkeypatch.setattr(record_writing, "CHUNK_BYTES", 1 << 18)
    rows = np.zeros((16_384, 512), np.uint16)  # 16 MB
    file, most = put(tmp_path, rows), 0
    files = [file]

    def measure(share):
        nonlocal most
        most = max(most, sum(os.fstat(each.fileno()).st_blocks * 512 for each in files))

    def open_scratch():
        files.append(scratch(tmp_path))
        return files[-1]

    order = np.random.default_rng(0).permutation(len(rows))
    list(record_writing.ShuffledRows(file, np.dtype((np.uint16, (512,))), order).buckets(open_scratch, 1, measure))
    assert len(files) == 2 and 16e6 < most < 18.5e6


READING = """
import os, re, sys, numpy as np
from official_bert.data.pretraining import record_writing
record_writing.BUCKET_BYTES, record_writing.CHUNK_BYTES = 1 << 25, 1 << 24
folder, count, width = sys.argv[1], 800_000, 172
opened = []
def open_scratch():
    opened.append(open(os.path.join(folder, str(len(opened))), "w+b"))
    return opened[-1]
def drop(file):
    file.flush(); os.fsync(file.fileno()); os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
def io():
    return int(re.search(r"\\nread_bytes: (\\d+)", open("/proc/self/io").read())[1])
def anonymous():
    return int(re.search(r"RssAnon:\\s+(\\d+)", open("/proc/self/status").read())[1])
file = open_scratch()
for start in range(0, count, 100_000):
    block = np.zeros((100_000, width), np.uint16)
    block.view(np.uint32)[:, 0] = np.arange(start, start + 100_000)
    file.write(block.data)
drop(file)
order = np.random.default_rng(0).permutation(count)
before, memory, seen = io(), anonymous(), 0
for bucket in record_writing.ShuffledRows(file, np.dtype((np.uint16, (width,))), order).buckets(open_scratch, 1,
                                        lambda share: drop(opened[-1]) if share == 1 else None):
    numbers = bucket.rows[bucket.numbers, :2].copy().view(np.uint32)[:, 0]
    assert (numbers == order[bucket.start:bucket.start + len(numbers)]).all()
    seen += len(numbers)
assert seen == count
print((io() - before) / (count * width * 2), anonymous() - memory)
"""


@pytest.mark.slow
@pytest.mark.skipif(not pathlib.Path("/proc/self/io").exists(), reason="needs /proc/self/io")
def test_a_cold_disk_is_read_at_most_three_times(tmp_path):
    """275 MB of rows whose pages are dropped, in 9 buckets; the file of the buckets is dropped too before reading."""
    finished = subprocess.run(
        [sys.executable, "-c", READING, str(tmp_path)], text=True, capture_output=True, check=True
    )
    times, kilobytes = map(float, finished.stdout.split())
    if times < 0.5:
        pytest.skip("this disk's reads are not counted (memory or overlay)")
    assert 1.9 < times < 3
    assert kilobytes < 100_000
