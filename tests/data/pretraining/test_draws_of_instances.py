"""Single draws are CPython's; where numbers run out in the middle of an instance, nothing is lost."""

import random

import numpy as np
import pytest

from official_bert.data.pretraining import random_draws
from official_bert.data.pretraining.instances import InstanceConfig, InstanceSampler
from official_bert.data.pretraining.masking import MaskingConfig, VocabularyFacts
from official_bert.data.pretraining.random_draws import RandomStream
from official_bert.data.pretraining.rows import HEADER, LENGTH, PREDICTIONS, Corpus

SEEDS = [0, 1, 12345, 2**40 + 3, -7]


@pytest.mark.parametrize("seed", SEEDS)
def test_random_draws_cpython_s_numbers(seed):
    stream, wanted = RandomStream(seed), random.Random(seed)
    for _ in range(1500):
        assert random_draws.random(stream.words) == wanted.random()


@pytest.mark.parametrize("seed", SEEDS)
def test_below_draws_cpython_s_numbers_and_as_many(seed):
    stream, wanted = RandomStream(seed), random.Random(seed)
    for limit in [1, 2, 3, 4, 5, 127, 128, 129, 30522, 2**31 - 1, 2**32 - 1, 2**32, 2**32 + 1, 3 * 2**40] * 60:
        assert random_draws.below(stream.words, limit) == wanted.randint(0, limit - 1)
    assert random_draws.random(stream.words) == wanted.random()


def all_rows(config, block_rows=50):
    rng = np.random.default_rng(0)
    starts = np.concatenate([[0], np.cumsum(rng.integers(1, 40, 400))])
    corpus = Corpus(
        rng.integers(5, 90, starts[-1]).astype(np.uint16), starts, np.arange(0, 401, 10), np.arange(40), np.arange(40)
    )
    continues_word = np.arange(90) >= 70
    facts = VocabularyFacts(90, 2, 3, 4, continues_word, np.arange(90))
    sampler = InstanceSampler(config, facts, corpus, 3)
    block = np.zeros((block_rows, sampler.row_width), np.uint16)
    rows = np.concatenate([part.copy() for part in sampler.blocks(block)])
    order = np.arange(len(rows))
    sampler.shuffle(order)
    S, P = config.max_seq_length, sampler.plan.max_predictions_per_seq
    used = np.arange(P) < rows[:, [PREDICTIONS]] if P else np.zeros((len(rows), 0), np.bool_)
    keep = np.concatenate(
        [np.ones((len(rows), HEADER), np.bool_), np.arange(S) < rows[:, [LENGTH]], used, used],
        axis=1,
    )
    return np.where(keep, rows, 0)[order]


@pytest.mark.parametrize("task", ["nsp", "sop", "none"])
@pytest.mark.parametrize("strategy", ["token", "whole_word", "span", None])
def test_instances_do_not_depend_on_how_many_numbers_or_rows_there_are_at_a_time(monkeypatch, task, strategy):
    config = InstanceConfig(
        max_seq_length=64,
        max_predictions_per_seq=9,
        dupe_factor=2,
        sentence_task=task,
        masking=MaskingConfig(strategy=strategy) if strategy else None,
    )
    wanted = all_rows(config, 10_000)
    assert len(wanted) > 200
    monkeypatch.setattr(random_draws, "FIRST_WORDS", random_draws.STATE)  # a few instances, or not even one
    np.testing.assert_array_equal(all_rows(config), wanted)
