"""The compiled random stream is CPython's."""

import random

import numpy as np
import pytest

from official_bert.data import kernels
from official_bert.data.sentence_pairs import seeded_stream

SEEDS = [0, 1, 12345, 2**40 + 3, -7]


@pytest.mark.parametrize("seed", SEEDS)
def test_random_draws_cpython_s_numbers(seed):
    stream, wanted = seeded_stream(seed), random.Random(seed)
    for _ in range(1500):  # beyond two states of 624 numbers
        assert kernels.random(stream) == wanted.random()


@pytest.mark.parametrize("seed", SEEDS)
def test_below_draws_cpython_s_numbers_and_as_many(seed):
    stream, wanted = seeded_stream(seed), random.Random(seed)
    for limit in [1, 2, 3, 4, 5, 127, 128, 129, 30522, 2**31 - 1] * 60:
        assert kernels.below(stream, limit) == wanted.randint(0, limit - 1)
    assert kernels.random(stream) == wanted.random()


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("count", [0, 1, 2, 3, 64, 65, 1000])
def test_shuffle_is_cpython_s(seed, count):
    stream, wanted = seeded_stream(seed), random.Random(seed)
    for _ in range(3):
        items, list_of_items = np.arange(count), list(range(count))
        kernels.shuffle(stream, items, count)
        wanted.shuffle(list_of_items)
        assert items.tolist() == list_of_items
    assert kernels.random(stream) == wanted.random()
