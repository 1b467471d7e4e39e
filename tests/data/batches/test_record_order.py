"""The order of records is a function of (seed, epoch, place), and every epoch has every record once."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from official_bert.data.batches import record_order
from official_bert.data.batches.record_order import RecordOrder

REAL = record_order.BLOCK, record_order.WINDOW
COUNTS = st.lists(st.integers(0, 40), min_size=1, max_size=6).filter(any)


@pytest.fixture(scope="module", autouse=True)
def small_blocks():
    """Blocks of 4 records, windows of 3 blocks: a few records have many of them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(record_order, "BLOCK", 4)
        patch.setattr(record_order, "WINDOW", 3)
        yield


def stated_order(counts, seed, epoch, block=4, window=3):
    """The rule of `RecordOrder`'s docstring, record by record."""
    blocks, first = [], 0
    for count in counts:
        blocks += [list(range(first + start, first + min(start + block, count))) for start in range(0, count, block)]
        first += count
    order = [blocks[index] for index in np.random.default_rng((seed, epoch, 0)).permutation(len(blocks))]
    found = []
    for number, start in enumerate(range(0, len(order), window)):
        records = list(itertools.chain(*order[start : start + window]))
        found += [
            records[index] for index in np.random.default_rng((seed, epoch, 1 + number)).permutation(len(records))
        ]
    return found


def numbers_of(order, epoch, first, last):
    """The records at places `first` to `last` - 1 of an epoch: int64 [last - first]."""
    return np.concatenate([order.window(epoch, window)[part] for window, part in order.windows(epoch, first, last)])


@given(COUNTS, st.integers(0, 2**31 - 1), st.integers(0, 5))
@settings(max_examples=60, deadline=None)
def test_an_epoch_is_in_the_stated_order_and_has_every_record_once(counts, seed, epoch):
    found = numbers_of(RecordOrder(counts, seed), epoch, 0, sum(counts)).tolist()
    assert found == stated_order(counts, seed, epoch) and sorted(found) == list(range(sum(counts)))


@given(COUNTS, st.data(), st.booleans())
@settings(max_examples=60, deadline=None)
def test_any_part_of_an_epoch_is_found_without_the_parts_before_it(counts, data, shuffle):
    size = sum(counts)
    first = data.draw(st.integers(0, size - 1))
    last = data.draw(st.integers(first + 1, size))
    whole = numbers_of(RecordOrder(counts, 7, shuffle), 2, 0, size)
    np.testing.assert_array_equal(numbers_of(RecordOrder(counts, 7, shuffle), 2, first, last), whole[first:last])
    assert shuffle or whole.tolist() == list(range(size))


def test_epochs_and_seeds_have_orders_of_their_own():
    orders = [tuple(numbers_of(RecordOrder([50, 50], seed), epoch, 0, 100)) for seed in range(3) for epoch in range(3)]
    assert len(set(orders)) == 9 and len({order[:12] for order in orders}) == 9


def test_the_real_blocks_mix_records_that_were_far_apart(monkeypatch):
    monkeypatch.setattr(record_order, "BLOCK", REAL[0])
    monkeypatch.setattr(record_order, "WINDOW", REAL[1])
    numbers = numbers_of(RecordOrder([100_000] * 4, 1), 0, 0, 32_768)
    assert numbers.tolist() == stated_order([100_000] * 4, 1, 0, 256, 128)[: len(numbers)]
    few = numbers_of(RecordOrder([300, 20_000, 12_000], 1), 0, 0, 32_300)
    assert min(np.bincount(numbers[:512] // 100_000)) > 80  # a quarter of 512, give or take
    # All records are permuted as a whole: about one pair of neighbours stays together.
    assert (np.diff(few) == 1).sum() < 10
