"""Batches of records are a function of (seed, batch number), whatever the start and the number of shards."""

import collections
import concurrent.futures
import itertools
import os
import re
import tempfile

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st
from oracles.records import encode_example, write_tfrecords

from official_bert.data.batches import record_order
from official_bert.data.batches.sources import RecordSource, refuse_rows
from official_bert.data.record_files import indexed_records, record_index, records
from official_bert.storage import stores
from official_bert.storage.files import find_files

FEATURES = (records.Feature("number", 1),)


def parse(serialized, indices):
    batch = records.parse_examples(serialized, FEATURES)
    return {"number": batch["number"][:, 0], "index": indices}


@pytest.fixture
def paths(tmp_path):
    """Three files of 10, 7 and 5 records that hold the numbers 0 to 21; the second is gzip."""
    first = 0
    for part, count in enumerate((10, 7, 5)):
        rows = [encode_example(FEATURES, {"number": [first + row]}) for row in range(count)]
        write_tfrecords(str(tmp_path / f"part-{part}{'.gz' if part == 1 else ''}"), rows, compress=part == 1)
        first += count
    return find_files(str(tmp_path / "part-*"))


def numbers(dataset, count):
    return [batch["number"].numpy().tolist() for batch in dataset.take(count)]


def test_an_epoch_reads_each_record_once_in_an_order_of_its_own(paths):
    source = RecordSource(paths, 2, parse, seed=3)
    assert source.batches_per_epoch == 11
    found = numbers(source.dataset(), 33)
    epochs = [list(itertools.chain(*found[start : start + 11])) for start in (0, 11, 22)]
    assert all(sorted(epoch) == list(range(22)) for epoch in epochs)
    assert epochs[0] != epochs[1] != epochs[2] != sorted(epochs[0])
    assert numbers(RecordSource(paths, 2, parse, seed=4).dataset(), 11) != found[:11]


def test_the_order_is_that_of_the_source_whatever_seed_tensorflow_has(paths):
    found = []
    for seed in (0, 1, 77):  # 0 is the one that tf.data's own shuffle does not take
        tf.random.set_seed(seed)
        found.append(numbers(RecordSource(paths, 2, parse, seed=0).dataset(), 11))
    assert found[0] == found[1] == found[2]


def test_records_that_end_in_the_middle_of_a_batch_wait_for_another_epoch(paths):
    source = RecordSource(paths, 4, parse, seed=3)
    assert source.batches_per_epoch == 5
    found = numbers(source.dataset(), 40)
    left_out = []
    for start in range(0, 40, 5):
        epoch = list(itertools.chain(*found[start : start + 5]))
        assert len(set(epoch)) == 20
        left_out.append(tuple(sorted(set(range(22)) - set(epoch))))
    assert len(set(left_out)) > 4


@pytest.mark.parametrize("start", [0, 3, 5, 13])
def test_a_resumed_run_goes_on_with_the_very_next_batch(paths, start):
    source = RecordSource(paths, 4, parse, seed=3)
    through = numbers(source.dataset(), 20)
    assert numbers(RecordSource(paths, 4, parse, seed=3).dataset(start), 20 - start) == through[start:]


def test_workers_take_rows_of_the_same_global_batches(paths):
    source = RecordSource(paths, 4, parse, seed=3)
    whole = numbers(source.dataset(), 12)
    parts = [numbers(source.dataset(0, 2, shard), 12) for shard in range(2)]
    assert [left + right for left, right in zip(*parts)] == whole


def test_evaluation_keeps_the_order_and_fills_the_last_batch_up_with_rows_of_no_weight(paths):
    batches = list(RecordSource(paths, 8, parse, shuffle=False).dataset())
    assert [len(batch["number"]) for batch in batches] == [8, 8, 8]
    rows = np.concatenate([batch["number"] for batch in batches])
    weights = np.concatenate([batch["example_weights"] for batch in batches])
    assert rows[weights > 0].tolist() == list(range(22)) and weights.tolist() == [1] * 22 + [0] * 2


def test_fewer_records_than_a_batch_still_make_one(paths):
    source = RecordSource(paths[-1:], 8, parse)
    for batch in source.dataset().take(3):
        assert batch["example_weights"].numpy().sum() == 5
        assert sorted(batch["number"].numpy()[batch["example_weights"].numpy() > 0]) == [17, 18, 19, 20, 21]


def test_indices_name_the_record_and_change_with_the_epoch(paths):
    source = RecordSource(paths, 2, parse, seed=3)
    seen = collections.defaultdict(set)
    for batch in source.dataset().take(22):
        for number, index in zip(batch["number"].numpy(), batch["index"].numpy()):
            assert index % 22 == number
            seen[number].add(index // 22)
    assert all(epochs == {0, 1} for epochs in seen.values())
    assert source.locate(0) == f"{paths[0]}: record 0" and source.locate(22 + 16) == f"{paths[1]}: record 6"


def test_a_refused_row_is_named_by_file_and_record(paths):
    def picky(serialized, indices):
        batch = parse(serialized, indices)
        return refuse_rows(batch, {"thirteen brings bad luck": tf.equal(batch["number"], 13)})

    source = RecordSource(paths, 2, picky, seed=3)
    with pytest.raises(tf.errors.InvalidArgumentError) as error:
        list(source.dataset().take(11))
    assert source.explain(error.value.message) == f"{paths[1]}: record 3: thirteen brings bad luck"


def overwrite(path, place, data):
    with open(path, "r+b") as file:
        file.seek(place)
        file.write(data)


def test_a_file_damaged_in_its_middle_is_named_with_the_record(paths):
    size = os.path.getsize(paths[0]) // 10  # ten records of one size; 12 bytes of each are its header
    overwrite(paths[0], 5 * size + 12 + 3, b"\xff")
    source = RecordSource(paths, 2, parse, seed=3)
    with pytest.raises(tf.errors.InvalidArgumentError) as error:
        list(source.dataset().take(11))
    assert (
        source.explain(error.value.message)
        == f"{paths[0]}: record 5 is corrupted: its bytes do not match their checksum"
    )


@pytest.mark.parametrize(
    "change, told",
    [
        (lambda path: os.truncate(path, os.path.getsize(path) - 30), "record 9 is truncated: expected"),
        (
            lambda path: overwrite(path, 9 * (os.path.getsize(path) // 10), bytes(12)),
            "record 9 is corrupted: its length does not match",
        ),
        (
            lambda path: (os.unlink(path), write_tfrecords(path, [b""] * 10)),
            "cannot be read: .* has changed since this run began",
        ),
        (lambda path: os.unlink(path), "cannot be read: No such file or directory"),
    ],
    ids=["cut", "overwritten", "replaced", "removed"],
)
def test_a_file_that_changes_while_it_is_read_is_named(paths, change, told):
    source = RecordSource(paths, 2, parse, shuffle=False)
    if told.startswith("record 9"):
        next(iter(source.dataset()))  # the file is open
    change(paths[0])
    with pytest.raises(tf.errors.InvalidArgumentError) as error:
        list(source.dataset(0 if "cannot" in told else 4))
    assert re.search(f"{paths[0]}: record .*{told.removeprefix('record ')}", source.explain(error.value.message))


def test_an_index_that_is_removed_while_it_is_needed_is_named(paths):
    source = RecordSource(paths, 2, parse, shuffle=False)
    os.unlink(record_index.paths_of_index(paths[0], "")[0])
    with pytest.raises(tf.errors.InvalidArgumentError) as error:
        list(source.dataset())
    assert re.search(
        f"{paths[0]}: record 0 cannot be found: .*record_index.*; start again", source.explain(error.value.message)
    )


def test_a_worker_reads_its_own_records_alone(paths, monkeypatch):
    source, read = RecordSource(paths, 4, parse, seed=3), []

    def noted(descriptor, size, place):
        read.append((os.fstat(descriptor).st_ino, place))
        return pread(descriptor, size, place)

    pread = os.pread
    monkeypatch.setattr(os, "pread", noted)
    batches = [source._rows(number, 0, 4)[1].tolist() for number in range(5)]
    whole, own = set(read), []
    for shard in range(2):
        read.clear()
        rows = [source._rows(number, shard * 2, 2)[1].tolist() for number in range(5)]
        assert rows == [batch[shard * 2 : shard * 2 + 2] for batch in batches]
        own.append(set(read))
        assert len(read) == 10
    assert own[0] | own[1] == whole and not own[0] & own[1]


@settings(max_examples=25, deadline=None)
@given(
    counts=st.lists(st.integers(0, 60), min_size=1, max_size=4).filter(any),
    batch=st.sampled_from([4, 8, 12]),
    data=st.data(),
)
def test_every_record_is_read_once_an_epoch_whatever_the_start_and_the_workers(counts, batch, data):
    numbers, parts = itertools.count(), []
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(record_order, "BLOCK", 4)
        patch.setattr(record_order, "WINDOW", 3)
        for part, count in enumerate(counts):
            path = os.path.join(folder, f"part-{part}")
            write_tfrecords(
                path, [str(next(numbers)).encode() for _ in range(count)], compress=data.draw(st.booleans())
            )
            parts.append(path)
        source = RecordSource(parts, batch, None, data.draw(st.integers(0, 99)))
        batches = [source._rows(number, 0, batch) for number in range(2 * source.batches_per_epoch)]
        real = [[int(row) for row, weight in zip(rows, weights) if weight] for rows, _, weights, *_ in batches]
        for epoch in (real[: source.batches_per_epoch], real[source.batches_per_epoch :]):
            seen = list(itertools.chain(*epoch))
            assert len(set(seen)) == len(seen) == (source.size if source.size < batch else source.size // batch * batch)
        for (rows, indices, _, wrong, _), number in zip(batches, itertools.count()):
            assert [int(row) for row in rows] == (indices % source.size).tolist() and not wrong
            assert set(indices // source.size) == {number // source.batches_per_epoch}
        again, workers = RecordSource(parts, batch, None, source._order.seed), data.draw(st.sampled_from([1, 2, 4]))
        start, rows = data.draw(st.integers(0, len(batches) - 1)), batch // workers
        for wanted, found in zip(
            batches[start][:4], zip(*(again._rows(start, worker * rows, rows) for worker in range(workers)))
        ):
            np.testing.assert_array_equal(
                np.concatenate([np.atleast_1d(part) for part in found])[: np.size(wanted)], wanted
            )


@pytest.mark.parametrize("scheme", ["memory", "ram"])
def test_records_elsewhere_are_read_from_a_copy_and_named_as_they_are(paths, tmp_path, scheme):
    there = [f"{scheme}://{tmp_path.name}-{os.getpid()}/{os.path.basename(path)}" for path in paths]
    for path, other in zip(paths, there):
        stores.store_of(other).upload(path, other)
    source = RecordSource(there, 4, parse, seed=3, cache_dir=str(tmp_path / "cache"))
    assert numbers(source.dataset(), 12) == numbers(RecordSource(paths, 4, parse, seed=3).dataset(), 12)
    assert source.locate(16) == f"{there[1]}: record 6" and source.content == RecordSource(paths, 4, parse).content
    assert len(list((tmp_path / "cache" / "records").glob("part-*"))) == 3
    [first] = (tmp_path / "cache" / "records").glob("part-0*")
    overwrite(first, 15, b"\xff")
    again = RecordSource(there, 4, parse, shuffle=False, cache_dir=str(tmp_path / "cache"))
    assert again._rows(0, 0, 4)[3] == b"[bad row 0 is corrupted: its bytes do not match their checksum]"
    stores.store_of(there[0]).upload(paths[1], there[0])  # another file of this name
    assert RecordSource(there, 4, parse, cache_dir=str(tmp_path / "cache")).counts == [7, 7, 5]


def test_threads_read_from_more_files_than_may_be_open(tmp_path, monkeypatch):
    monkeypatch.setattr(indexed_records, "OPEN_FILES", 1)
    for part in range(6):
        write_tfrecords(
            str(tmp_path / f"part-{part}"), [str(number).encode() for number in range(part * 50, part * 50 + 50)]
        )
    source = RecordSource(sorted(map(str, tmp_path.glob("part-*"))), 10, None, seed=1)
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda number: source._rows(number, 0, 10), range(300)))
    for rows, indices, _, wrong, _ in found:
        assert not wrong and [int(row) for row in rows] == (indices % 300).tolist()


def test_an_index_is_made_once_and_more_files_than_may_be_open_are_read(tmp_path, monkeypatch):
    for part in range(12):
        write_tfrecords(str(tmp_path / f"part-{part:02}"), [str(part).encode()] * (part % 3))
    paths = sorted(str(path) for path in tmp_path.glob("part-*"))
    monkeypatch.setattr(indexed_records, "OPEN_FILES", 2)
    monkeypatch.setattr(indexed_records, "OPEN_INDICES", 2)
    source = RecordSource(paths, 4, None, shuffle=False)
    open_before = len(os.listdir("/proc/self/fd"))
    rows = [row for number in range(3) for row in source._rows(number, 0, 4)[0]]
    assert [int(row) for row in rows] == [part for part in range(12) for _ in range(part % 3)]
    assert len(os.listdir("/proc/self/fd")) <= open_before + 4  # two files, two indices
    monkeypatch.setattr(indexed_records, "make_index", None)
    assert RecordSource(paths, 4, None).size == source.size == 12


def test_files_that_are_not_there_or_empty_are_refused(tmp_path):
    with pytest.raises(ValueError, match="no input file matches"):
        find_files(f"{tmp_path}/none-*")
    with pytest.raises(ValueError, match="no input file given"):
        find_files("")
    (tmp_path / "empty").write_bytes(b"")
    with pytest.raises(ValueError, match="no record in these files"):
        RecordSource([str(tmp_path / "empty")], 4, parse)
