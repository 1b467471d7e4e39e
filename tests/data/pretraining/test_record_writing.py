"""Writing rows in parts: gzip streams that stand on their own, errors with names, results in order."""

import errno
import gzip
import threading
import time

import numpy as np
import pytest

from official_bert.data.pretraining.parallel import in_order
from official_bert.data.pretraining.record_writing import OutputFile, make_file_part


def parts():
    rng = np.random.default_rng(0)
    return [rng.integers(0, 20, size, np.uint8) for size in (0, 1, 100_000, 7, 70_000)]


@pytest.mark.parametrize("compress", [False, True])
def test_parts_make_one_file(tmp_path, compress):
    path = tmp_path / "out"
    with OutputFile(str(path), compress) as file:
        for part in parts():
            file.write(make_file_part(part, compress))
    data = path.read_bytes()
    assert (gzip.decompress(data) if compress else data) == b"".join(part.tobytes() for part in parts())
    assert not compress or len(data) < 0.7 * sum(map(len, parts()))


def test_an_empty_gzip_file_is_one(tmp_path):
    with OutputFile(str(tmp_path / "out"), True):
        pass
    assert gzip.decompress((tmp_path / "out").read_bytes()) == b""


def test_a_device_without_space_is_told_with_the_file_s_name():
    with (
        pytest.raises(OSError, match="No space left on device: '/dev/full'") as caught,
        OutputFile("/dev/full", False) as file,
    ):
        for part in parts():
            file.write(make_file_part(part, False))
    assert caught.value.errno == errno.ENOSPC


def test_results_come_in_the_order_of_the_jobs_though_later_ones_are_done_first():
    def work(job):
        time.sleep(0.02 if job % 4 == 0 else 0)
        return job * job

    assert list(in_order(work, range(40), 4)) == [(job, job * job) for job in range(40)]


def test_few_jobs_are_taken_ahead():
    taken = []

    def jobs():
        for job in range(100):
            taken.append(job)
            yield job

    results = in_order(lambda job: job, jobs(), 2)
    next(results)
    assert len(taken) <= 8
    results.close()


def test_an_error_is_raised_in_its_turn_and_ends_the_work():
    started = []
    lock = threading.Lock()

    def work(job):
        with lock:
            started.append(job)
        if job == 3:
            raise ValueError("three")
        return job

    got = []
    with pytest.raises(ValueError, match="three"):
        for job, _ in in_order(work, range(1000), 2):
            got.append(job)
    assert got == [0, 1, 2] and len(started) < 20
