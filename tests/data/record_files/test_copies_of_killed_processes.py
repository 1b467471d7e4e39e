"""Processes that are killed while they copy records, and several that copy the same: no copy is ever half there."""

import glob
import os
import signal
import subprocess
import sys
import time

import pytest
from oracles.records import write_tfrecords

from official_bert.data.record_files.indexed_records import IndexedRecords
from official_bert.data.record_files.records import read_records

PROGRAM = """
import sys, time
import numpy as np
from official_bert.data.record_files import local_records
from official_bert.data.record_files.indexed_records import IndexedRecords
local_records.CHUNK = 1 << 12
fsync = local_records.os.fsync
local_records.os.fsync = lambda descriptor: (time.sleep(float(sys.argv[3])), fsync(descriptor))
records = IndexedRecords([sys.argv[1]], sys.argv[2])
numbers = np.arange(records.counts[0])
print(len(b"".join(records.read(numbers, records.places(numbers)))), flush=True)
"""


@pytest.mark.slow
def test_a_killed_copy_is_made_again_and_by_one_of_several_processes(tmp_path):
    rows = [str(number).encode() * 40 for number in range(5_000)]
    path, cache = str(tmp_path / "train.gz"), tmp_path / "cache"
    write_tfrecords(path, rows, compress=True)

    def start(seconds):
        return subprocess.Popen(
            [sys.executable, "-c", PROGRAM, path, str(cache), str(seconds)], stdout=subprocess.PIPE, text=True
        )

    for _ in range(2):
        process = start(100)
        while not (parts := glob.glob(f"{cache}/records/*.part")) or os.path.getsize(parts[0]) < 100_000:
            time.sleep(0.05)
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert [name for name in os.listdir(cache / "records") if not name.endswith((".lock", ".part"))] == []
    processes = [start(1) for _ in range(3)]
    assert [process.communicate(timeout=120)[0] for process in processes] == [f"{sum(map(len, rows))}\n"] * 3
    [copy] = (name for name in os.listdir(cache / "records") if not name.startswith("."))
    assert list(read_records(str(cache / "records" / copy))) == rows
    assert IndexedRecords([path, path], str(cache)).counts == [5_000, 5_000]
