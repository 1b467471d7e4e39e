"""The random stream is CPython's, in one piece or many."""

import random

import numpy as np
import pytest

from official_bert.data.pretraining import kernels, random_stream
from official_bert.data.pretraining.random_stream import RandomStream

SEEDS = [0, 1, 12345, 2**40 + 3, -7]


def test_words_are_cpython_s_across_refills(monkeypatch):
    monkeypatch.setattr(random_stream, "FIRST_WORDS", 2 * random_stream.STATE)
    stream, wanted = RandomStream(5), random.Random(5)
    for use in (700, 3, 1000, 548, 1248, 0, 2000, 5000):
        for _ in range(use):
            if stream.words[0] == len(stream.words) - 2:
                stream.refill()
            assert kernels.next_word(stream.words) == wanted.getrandbits(32)
        stream.refill()
    assert stream.words[-1] == 0


def test_a_refill_of_which_nothing_was_used_gives_room_for_more():
    stream = RandomStream(5)
    sizes = []
    for _ in range(3):
        stream.refill()
        sizes.append(len(stream.words))
    assert sizes[1] > 1.9 * sizes[0] and sizes[2] > 1.9 * sizes[1]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("count", [0, 1, 2, 3, 64, 65, 1000, 20_000])
def test_shuffle_is_cpython_s(monkeypatch, seed, count):
    monkeypatch.setattr(random_stream, "FIRST_WORDS", 2 * random_stream.STATE)
    stream, wanted = RandomStream(seed), random.Random(seed)
    for _ in range(2):
        items, list_of_items = np.arange(count), list(range(count))
        stream.shuffle(items)
        wanted.shuffle(list_of_items)
        assert items.tolist() == list_of_items
    stream.refill()
    assert kernels.random(stream.words) == wanted.random()
