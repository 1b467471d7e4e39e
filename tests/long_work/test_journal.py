"""The journal: what was added is found again, up to the first entry that is not whole."""

import resource
import struct
import zlib

import pytest

from official_bert.long_work.journal import Journal

RESULTS = [{"text": "a" * 1000}, ["b", 2], None, ["c", "d" * 10]]


@pytest.fixture
def path(tmp_path):
    journal = Journal(str(tmp_path / "journal"))
    assert list(journal.replay()) == []
    for result in RESULTS:
        journal.append(result)
    journal.close()
    return tmp_path / "journal"


def test_results_come_back_in_their_order_and_more_can_be_added(path):
    for count in (4, 5):
        journal = Journal(str(path))
        assert list(journal.replay()) == [*RESULTS, *["more"] * (count - 4)]
        journal.append("more")
        journal.close()


def test_a_file_cut_off_anywhere_gives_its_whole_entries(path, tmp_path):
    data, counts = path.read_bytes(), []
    for size in range(len(data) + 1):
        (tmp_path / "cut").write_bytes(data[:size])
        journal = Journal(str(tmp_path / "cut"))
        found = list(journal.replay())
        assert found == RESULTS[: len(found)]
        journal.append("after")
        journal.close()
        journal = Journal(str(tmp_path / "cut"))
        assert list(journal.replay()) == [*found, "after"]
        journal.close()
        counts.append(len(found))
    assert counts == sorted(counts) and counts[0] == 0 and counts[-1] == 4


def test_an_entry_that_was_damaged_and_what_follows_it_are_dropped(path):
    data = bytearray(path.read_bytes())
    data[-60] ^= 1
    path.write_bytes(data)
    journal = Journal(str(path))
    found = list(journal.replay())
    assert found == RESULTS[: len(found)] and len(found) < 4
    journal.close()


def test_an_entry_for_which_there_is_no_room_leaves_the_others(path):
    journal, size = Journal(str(path)), path.stat().st_size
    assert len(list(journal.replay())) == 4
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size + 20, limits[1]))
    try:
        with pytest.raises(OSError, match="too large"):
            journal.append("".join(map(chr, range(256))))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    journal.close()
    assert path.stat().st_size == size


def test_entries_that_no_run_writes_are_dropped_and_never_run(path, tmp_path):
    """Each has the right checksum: a pickle that would make a file, a bomb, JSON of another shape, JSON too deep."""
    # Python's pickle would make a folder
    program = f"cos\nmkdir\n(X{chr(len(str(tmp_path)) + 4)}\0\0\0{tmp_path}/runtR.".encode()
    whole = path.read_bytes()
    for data in (program, b"\0" * (1 << 28), b"[1", b"[" * 100_000):
        packed = zlib.compress(data, 9)
        path.write_bytes(whole + struct.pack("<QI", len(packed), zlib.crc32(packed)) + packed)
        journal = Journal(str(path))
        assert list(journal.replay()) == RESULTS
        journal.close()
        assert path.read_bytes() == whole and not (tmp_path / "run").exists()


def test_entries_of_another_shape_are_dropped(path):
    def read(value):
        if value is None:
            raise ValueError
        return value

    journal = Journal(str(path))
    assert list(journal.replay(read)) == RESULTS[:2]
    journal.append("after")
    assert list(journal.replay(read)) == [*RESULTS[:2], "after"]
    journal.close()
