"""The random stream is CPython's, in one piece or many."""

import random

import numpy as np
import pytest

from official_bert.data.pretraining import random_draws
from official_bert.data.pretraining.random_draws import RandomStream

HUGE = 2**32 + 5
SEEDS = [0, 1, 12345, 2**40 + 3, -7]


def test_words_are_cpython_s_across_refills(monkeypatch):
    monkeypatch.setattr(random_draws, "FIRST_WORDS", 2 * random_draws.STATE)
    stream, wanted = RandomStream(5), random.Random(5)
    for use in (700, 3, 1000, 548, 1248, 0, 2000, 5000):
        for _ in range(use):
            if stream.words[0] == len(stream.words) - 2:
                stream.refill()
            assert random_draws.next_word(stream.words) == wanted.getrandbits(32)
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
    monkeypatch.setattr(random_draws, "FIRST_WORDS", 2 * random_draws.STATE)
    stream, wanted = RandomStream(seed), random.Random(seed)
    for _ in range(2):
        items, list_of_items = np.arange(count), list(range(count))
        stream.shuffle(items)
        wanted.shuffle(list_of_items)
        assert items.tolist() == list_of_items
    stream.refill()
    assert random_draws.random(stream.words) == wanted.random()


class Identity(dict):
    """0, 1, 2, ... without end, of which only what is changed takes memory."""

    def __missing__(self, place):
        return place


@pytest.mark.parametrize("count", [HUGE, 2**40, 2**32 - 1])
def test_more_items_than_32_bits_count_are_shuffled_as_cpython_does(monkeypatch, count):
    """The compiled function's own source over a made-up array, until the numbers run out, three times."""
    monkeypatch.setattr(random_draws, "FIRST_WORDS", random_draws.STATE)
    stream, wanted, items, swapped = RandomStream(9), random.Random(9), Identity(), Identity()
    left = random_draws.shuffle.py_func(stream.words, items, count)
    for _ in range(2):
        assert left < count
        stream.refill()
        left = random_draws.shuffle.py_func(stream.words, items, left)
    for last in range(count - 1, left - 1, -1):  # `random.shuffle`, which would want the whole list
        other = wanted.randrange(last + 1)
        swapped[last], swapped[other] = swapped[other], swapped[last]
    assert items == swapped and len(items) > 500
    # What is drawn next is CPython's next number too, so nothing was lost on the way.
    stream.refill()
    assert random_draws.random(stream.words) == wanted.random()
