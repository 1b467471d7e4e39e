"""Filling blanks in passes and by beams, beside plain NumPy, all fillings written out, and values worked out by hand.

The model is a table: the logits at a place are a sum of what the tokens beside it and the place itself give.
"""

import gc
import itertools
import math
import weakref

import numpy as np
import pytest
import tensorflow as tf

from official_bert.generation.generate import gumbel
from official_bert.generation.passes import Passes, beam_fill, fill, next_pass, writable
from official_bert.models.pretrainer import Pretrainer
from official_bert.text.tokenization import FullTokenizer

WORDS, LENGTH, MASK = 7, 9, 3
TABLES = [np.random.default_rng(number).normal(size=shape) for number, shape in ((0, (WORDS, WORDS)),
          (1, (WORDS, WORDS)), (2, (LENGTH, WORDS)))]  # fmt: skip
ALLOWED = writable([str(word) for word in range(WORDS)], [0, MASK])


def table_logits(ids):
    left, right, own = TABLES
    before, behind = np.pad(ids, ((0, 0), (1, 1)))[:, :-2], np.pad(ids, ((0, 0), (1, 1)))[:, 2:]
    return left[before] + right[behind] + own[: ids.shape[1]]


def logits_at(ids, places):
    return tf.gather(tf.constant(table_logits(ids.numpy()), tf.float32), places, batch_dims=1)


def blanks_of(rows):
    counts = (rows == MASK).sum(axis=1)
    present = np.arange(counts.max(initial=0)) < counts[:, None]
    places = np.zeros(present.shape, np.int32)
    places[present] = np.nonzero(rows == MASK)[1]
    return tf.constant(places), tf.constant(present)


def filled(rows, **how):
    best = how.pop("best", 1)
    return fill(logits_at, tf.constant(rows), *blanks_of(rows), ALLOWED, Passes(**how), best)


def log_shares(row, place):
    logits = np.where(ALLOWED, table_logits(row[None])[0, place], -np.inf)
    return logits - np.log(np.exp(logits).sum())


def fill_plainly(row, passes):
    """The same of one row, by sorting: the most confident of the blanks, in passes with the counts of `counts_of`."""
    row, chances = row.copy(), {}
    for count in counts_of(int((row == MASK).sum()), passes):
        best = {place: log_shares(row, place) for place in np.flatnonzero(row == MASK)}
        chosen = sorted(best, key=lambda place: (-best[place].max(), place))[:count]
        for place in chosen:
            row[place], chances[int(place)] = best[place].argmax(), math.exp(best[place].max())
    return row, [chances[place] for place in sorted(chances)]


def counts_of(blanks, passes, schedule="linear"):
    """The numbers that are filled in each pass, as `next_pass` gives them one after the other."""
    counts, left = [], passes
    while blanks:
        count, left = (
            int(number[0]) for number in next_pass(*map(tf.constant, ([blanks], [left], [passes])), schedule)
        )
        counts.append(count)
        blanks -= count
    return counts


@pytest.mark.parametrize(
    "blanks, passes, counts",
    [
        (4, 3, [1, 2, 1]),  # 4/3 = 1.33; 3/2 = 1.5, half to even
        (5, 2, [2, 3]),  # 2.5, half to even
        (7, 3, [2, 2, 3]),  # 7/3 = 2.33; 5/2 = 2.5
        (3, 5, [1, 1, 1]),  # 3/5 rounds to 1; of 2 and 4 left it rounds to 0, a pass that is left out
        (1, 4, [1]),
        (6, 1, [6]),
    ],
)
def test_a_pass_fills_the_blanks_left_over_the_passes_left(blanks, passes, counts):
    assert counts_of(blanks, passes) == counts


def test_the_cosine_schedule_fills_few_blanks_at_first():
    def hidden(t):
        return math.cos(math.pi / 2 * (1 - t))

    left, expected = 20, []
    for k in range(8, 0, -1):
        count = round(left * (1 - hidden((k - 1) / 8) / hidden(k / 8)))
        left -= count
        expected += [count] * (count > 0)
    assert counts_of(20, 8, "cosine") == expected
    assert expected == sorted(expected)


def test_rows_of_a_batch_are_filled_as_each_alone_by_plain_numpy():
    rng = np.random.default_rng(5)
    rows = rng.choice([1, 2, 4, MASK, MASK], size=(12, LENGTH)).astype(np.int32)
    rows[0] = 1  # nothing to fill
    for passes in (1, 2, 3, 20):
        result = filled(rows, passes=passes)
        for number, row in enumerate(rows):
            wanted, chances = fill_plainly(row, passes)
            np.testing.assert_array_equal(result.input_ids[number], wanted)
            np.testing.assert_allclose(result.probabilities[number, : len(chances), 0], chances, rtol=2e-6)


def test_the_words_of_a_blank_are_those_of_its_own_pass():
    row = np.array([[1, MASK, MASK, 2]], np.int32)
    result = filled(row, passes=2, best=3)
    first = max((1, 2), key=lambda place: log_shares(row[0], place).max())
    for place, ids in ((first, row[0]), (3 - first, np.where(np.arange(4) == first, result.input_ids[0], row[0]))):
        wanted = np.argsort(-log_shares(ids, place), kind="stable")[:3]
        np.testing.assert_array_equal(result.words[0, place - 1], wanted)


def test_a_block_is_full_before_the_next_one_begins():
    rows = np.full((1, 6), MASK, np.int32)
    seen = []

    def watched(ids, places):
        seen.append((ids.numpy()[0] == MASK).tolist())
        return logits_at(ids, places)

    fill(watched, tf.constant(rows), *blanks_of(rows), ALLOWED, Passes(passes=4, block_size=3))
    assert len(seen) == 4  # two passes for each of two blocks
    assert [sum(open_[:3]) for open_ in seen] == [3, 1, 0, 0]  # 3/2 = 1.5 rounds to 2
    assert [sum(open_[3:]) for open_ in seen] == [3, 3, 3, 1]


def test_ties_are_decided_for_the_first_place_and_the_first_word():
    rows = np.full((1, 4), MASK, np.int32)
    chosen = []

    def all_equal(ids, places):
        chosen.append(ids.numpy()[0].tolist())
        return tf.zeros((1, 4, WORDS))

    result = fill(all_equal, tf.constant(rows), *blanks_of(rows), ALLOWED, Passes(passes=4))
    assert result.input_ids.numpy().tolist() == [[1, 1, 1, 1]]
    assert chosen == [[1] * done + [MASK] * (4 - done) for done in range(4)]
    np.testing.assert_allclose(result.probabilities, 1 / 5, rtol=1e-6)


def test_beams_find_the_best_of_all_fillings():
    rows = np.array([[1, MASK, 2, MASK, 4], [MASK, 1, 1, 1, 1], [1, 1, 1, 1, 1]], np.int32)
    words, scores = beam_fill(
        lambda ids, places: logits_at(ids, places), tf.constant(rows), *blanks_of(rows), ALLOWED, beams=30
    )
    every = {}
    for pair in itertools.product(np.flatnonzero(ALLOWED), repeat=2):
        half = np.where(np.arange(5) == 1, pair[0], rows[0])
        every[pair] = log_shares(rows[0], 1)[pair[0]] + log_shares(half, 3)[pair[1]]
    best = sorted(every, key=lambda pair: -every[pair])
    found = np.isfinite(scores.numpy())
    assert found.sum(axis=1).tolist() == [25, 5, 1]  # with all beams, every filling once
    assert [tuple(pair) for pair in words.numpy()[0][:25].tolist()] == [tuple(map(int, pair)) for pair in best]
    np.testing.assert_allclose(scores[0, :25], [every[pair] for pair in best], atol=1e-5)
    np.testing.assert_allclose(sorted(scores[1, :5].numpy()), sorted(log_shares(rows[1], 0)[ALLOWED]), atol=1e-5)


def test_a_temperature_draws_words_with_their_probabilities():
    logits = tf.tile(tf.math.log([[[0.5, 0.25, 0.125, 0.125]]]), (40_000, 1, 1))
    drawn = tf.argmax(gumbel(tf.constant(1), logits, np.zeros((1, 1)), 1.0, seed=3), -1).numpy()[:, 0]
    np.testing.assert_allclose(np.bincount(drawn) / 40_000, [0.5, 0.25, 0.125, 0.125], atol=0.01)  # 4 deviations
    again = tf.argmax(gumbel(tf.constant(1), logits[:9], np.zeros((1, 1)), 1.0, seed=3), -1).numpy()[:, 0]
    np.testing.assert_array_equal(again, drawn[:9])  # a function of the row, not of the batch
    cold = tf.argmax(gumbel(tf.constant(1), logits[:500], np.zeros((1, 1)), 0.01, seed=4), -1).numpy()
    assert not cold.any()


def test_generate_draws_by_its_seed_and_leaves_no_model_behind(small_config, golden, tmp_path):
    model, tokenizer = Pretrainer.make(small_config), FullTokenizer(str(golden / "vocab_uncased.txt"))
    ids = np.full((2, 5), tokenizer.special_id("[MASK]"))
    rows = {"input_ids": ids, "input_mask": np.ones_like(ids), "segment_ids": np.zeros_like(ids)}

    def written(of=model, **how):
        return of.generate(rows, tokenizer=tokenizer, passes=2, **how)["sequences"].tolist()

    plain, drawn = written(), written(temperature=1.0, seed=-1)
    assert plain == written() and drawn == written(temperature=1.0, seed=-1)
    assert len({str(written(temperature=1.0, seed=seed)) for seed in range(5)}) == 5
    model.save(tmp_path / "model.keras")  # the graphs are no part of it
    dropped = weakref.ref(model)
    del model, written
    gc.collect()
    assert dropped() is None
