"""Plain copies of records that are packed or lie elsewhere: whole or not there, made once, small mistakes named."""

import errno
import gzip
import os
import pathlib
import shutil
import threading

import pytest
from oracles.records import write_tfrecords

from official_bert.data.record_files import local_records as module
from official_bert.data.record_files.local_records import cache_folder, check_space, local_records, needs_copy
from official_bert.data.record_files.records import read_records
from official_bert.storage import stores, temporaries

ROWS = [bytes([number]) * 50 for number in range(40)]


@pytest.fixture
def folder(tmp_path):
    return cache_folder(str(tmp_path / "cache"))


@pytest.fixture
def packed(tmp_path):
    write_tfrecords(str(tmp_path / "train.gz"), ROWS, compress=True)
    return str(tmp_path / "train.gz")


def seen(folder):
    """The names of files in the cache, but those of locks."""
    return sorted(name for name in os.listdir(folder) if not name.endswith(".lock"))


@pytest.mark.parametrize("scheme", ["", "memory", "ram"])
@pytest.mark.parametrize("compress", [False, True])
def test_a_copy_has_the_records_and_is_made_once(tmp_path, folder, monkeypatch, scheme, compress):
    write_tfrecords(str(tmp_path / "a"), ROWS, compress)
    path = f"{scheme}://{tmp_path.name}-{os.getpid()}-{compress}/a" if scheme else str(tmp_path / "a")
    if scheme:
        stores.store_of(path).upload(str(tmp_path / "a"), path)
    assert needs_copy(path) == bool(scheme or compress)
    if not needs_copy(path):
        return
    shares = []
    copy = local_records(path, folder, shares.append)
    assert list(read_records(copy)) == ROWS and os.path.dirname(copy) == folder and 0 < shares[-1] <= 1
    monkeypatch.setattr(module, "_copy", None)
    assert local_records(path, folder) == copy


def test_a_changed_file_gets_a_new_copy_and_the_old_one_goes(packed, folder):
    first = local_records(packed, folder)
    pathlib.Path(f"{first}.part").touch()  # of a process that was killed
    write_tfrecords(packed, ROWS[:7], compress=True)
    second = local_records(packed, folder)
    assert first != second and list(read_records(second)) == ROWS[:7] and seen(folder) == [os.path.basename(second)]


def test_what_a_killed_process_left_is_written_over(packed, folder):
    copy = local_records(packed, folder)
    whole = pathlib.Path(copy).read_bytes()
    os.unlink(copy)
    pathlib.Path(f"{copy}.part").write_bytes(whole[:100])
    assert pathlib.Path(local_records(packed, folder)).read_bytes() == whole and seen(folder) == [
        os.path.basename(copy)
    ]


@pytest.mark.parametrize(
    "damage",
    [lambda data: data[:-30], lambda data: data[:60] + bytes(20) + data[80:], lambda data: data + b"more"],
    ids=["cut", "overwritten", "longer"],
)
def test_a_broken_gzip_file_is_named_and_leaves_no_copy(packed, folder, damage):
    data = damage(pathlib.Path(packed).read_bytes())
    pathlib.Path(packed).write_bytes(data)
    with pytest.raises(ValueError, match=r"train.gz: record \d+ is (truncated|corrupted)"):
        local_records(packed, folder)
    assert seen(folder) == []


def test_a_full_disk_is_told_and_leaves_no_copy(packed, folder, monkeypatch):
    def full(_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(
        ValueError, match=f"{folder}/train.gz.*: No space left on device; --cache_dir on another disk, or unpack"
    ):
        local_records(packed, folder)
    assert seen(folder) == []


def test_the_space_is_checked_before_and_said(packed, folder, monkeypatch, caplog):
    check_space([packed], folder)
    assert not caplog.text
    monkeypatch.setattr(module, "SAID_FROM", 1)
    check_space([packed], folder)
    assert f"{folder} gets plain copies of 1 files of records, 0.0 GB while packed;" in caplog.text
    monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(10, 10, 0))
    with pytest.raises(
        ValueError,
        match=r"about .* are needed for plain copies of 1 files of records \(--cache_dir\), 0 bytes are free",
    ):
        check_space([packed], folder)
    monkeypatch.undo()
    local_records(packed, folder)
    monkeypatch.setattr(shutil, "disk_usage", None)
    check_space([packed], folder)  # it is there


def test_two_at_once_make_one_copy(packed, folder, monkeypatch):
    real, copied = module._copy, []

    def slow(path, target, show):
        copied.append(target)
        assert not turn.is_set()
        turn.set()
        real(path, target, show)
        turn.clear()

    turn = threading.Event()
    monkeypatch.setattr(module, "_copy", slow)
    found = []
    threads = [threading.Thread(target=lambda: found.append(local_records(packed, folder))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(copied) == 1 and len(set(found)) == 1 and len(found) == 4


@pytest.mark.parametrize("cache", ["", "memory://cache", "/proc/none"])
def test_without_a_place_copies_go_with_the_process(packed, cache):
    folder = cache_folder(cache)
    assert folder.startswith(temporaries.temporary_folder())
    assert list(read_records(local_records(packed, folder))) == ROWS


def test_a_file_of_several_gzip_members_is_one(tmp_path, packed, folder):
    more = pathlib.Path(packed).read_bytes() + gzip.compress(b"")
    pathlib.Path(packed).write_bytes(more)
    assert list(read_records(local_records(packed, folder))) == ROWS
