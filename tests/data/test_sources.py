"""Batches of records are a function of (seed, batch number), whatever the start and the number of shards."""

import collections
import itertools

import numpy as np
import pytest
import tensorflow as tf
from oracles.records import encode_example, write_tfrecords

from official_bert.data import records
from official_bert.data.sources import RecordSource, refuse_rows
from official_bert.files import find_files

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
    epochs = [list(itertools.chain(*found[start:start + 11])) for start in (0, 11, 22)]
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
        epoch = list(itertools.chain(*found[start:start + 5]))
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
        return refuse_rows(batch, indices, {"thirteen brings bad luck": tf.equal(batch["number"], 13)})
    source = RecordSource(paths, 2, picky, seed=3)
    with pytest.raises(tf.errors.InvalidArgumentError) as error:
        list(source.dataset().take(11))
    assert source.explain(error.value.message) == f"{paths[1]}: record 3: thirteen brings bad luck"


def test_a_file_damaged_in_its_middle_is_named_with_the_record(paths):
    with open(paths[0], "r+b") as file:
        size = file.seek(0, 2) // 10  # ten records of one size; 12 bytes of each are its header
        file.seek(5 * size + 12 + 3)
        file.write(b"\xff")
    source = RecordSource(paths, 2, parse, seed=3)
    with pytest.raises(tf.errors.DataLossError) as error:
        list(source.dataset().take(11))
    assert source.explain(error.value.message).startswith(f"{paths[0]}: record 5 is corrupted")


def test_files_that_are_not_there_or_empty_are_refused(tmp_path):
    with pytest.raises(ValueError, match="no input file matches"):
        find_files(f"{tmp_path}/none-*")
    with pytest.raises(ValueError, match="no input file given"):
        find_files("")
    (tmp_path / "empty").write_bytes(b"")
    with pytest.raises(ValueError, match="no record in these files"):
        RecordSource([str(tmp_path / "empty")], 4, parse)
