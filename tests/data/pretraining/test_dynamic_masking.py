"""Masks made while records are read: functions of (seed, example), with the statistics of the compiled form."""

import collections

import numpy as np
import pytest
import tensorflow as tf

from official_bert.data.pretraining.dynamic_masking import DynamicMasking, sample_keys, uniform
from official_bert.data.pretraining.instances import InstanceConfig, InstanceSampler
from official_bert.data.pretraining.masking import MaskingConfig, VocabularyFacts
from official_bert.data.pretraining.rows import HEADER, LABEL, LENGTH, PREDICTIONS, SECOND_START, Corpus

CLS, SEP, MASK = 2, 3, 4
WORDS, PIECES = 1000, 400
FACTS = VocabularyFacts(
    WORDS + PIECES + 5, CLS, SEP, MASK, np.arange(WORDS + PIECES + 5) >= WORDS + 5, np.arange(5, WORDS + PIECES + 5)
)
S, P = 96, 30
SEED = 11


def make_corpus():
    rng = np.random.default_rng(0)
    tokens = 250_000
    ids = np.where(
        rng.random(tokens) < 0.3,
        rng.integers(WORDS + 5, WORDS + PIECES + 5, tokens),
        rng.integers(5, WORDS + 5, tokens),
    )
    starts = np.unique(np.concatenate([[0], np.sort(rng.integers(1, tokens, tokens // 18)), [tokens]]))
    documents = np.unique(np.concatenate([[0], np.arange(0, len(starts) - 1, 25), [len(starts) - 1]]))
    return Corpus(
        ids.astype(np.uint16), starts, documents, np.arange(len(documents) - 1), np.arange(len(documents) - 1)
    )


def make_rows(masking):
    config = InstanceConfig(max_seq_length=S, max_predictions_per_seq=P, dupe_factor=1, masking=masking)
    sampler = InstanceSampler(config, FACTS, make_corpus(), 5)
    block = np.zeros((4096, sampler.row_width), np.uint16)
    return np.concatenate([part.copy() for part in sampler.blocks(block)]).astype(np.int32)


@pytest.fixture(scope="module")
def unmasked():
    """Batch of all instances, as `parse_unmasked` gives them."""
    rows = make_rows(None)
    lengths, seconds = rows[:, LENGTH, None], rows[:, SECOND_START, None]
    places = np.arange(S)[None]
    mask = (places < lengths).astype(np.int32)
    ids = rows[:, HEADER:] * mask
    starts = (mask == 1) & (ids != CLS) & (ids != SEP) & ~FACTS.continues_word[ids]
    return {
        "input_ids": ids,
        "input_mask": mask,
        "segment_ids": ((places >= seconds) & (mask == 1)).astype(np.int32),
        "word_starts": starts.astype(np.int32),
        "next_sentence_labels": rows[:, [LABEL]],
        "schema_version": np.ones((len(ids), 1), np.int32),
    }


def mask(batch, masking, examples=None, seed=SEED):
    examples = np.arange(len(batch["input_ids"])) if examples is None else examples
    masked = DynamicMasking(masking, FACTS, S, P, seed)
    run = tf.function(lambda batch, examples: masked(batch, examples), autograph=False)
    return {
        name: value.numpy()
        for name, value in run(
            {name: tf.constant(value) for name, value in batch.items()}, tf.constant(examples, tf.int64)
        ).items()
    }


def part(batch, rows):
    return {name: value[rows] for name, value in batch.items()}


def assert_equal(found, wanted):
    assert sorted(found) == sorted(wanted)
    for name in wanted:
        np.testing.assert_array_equal(found[name], wanted[name], err_msg=name)


STRATEGIES = ["token", "whole_word", "span"]


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_masks_are_a_function_of_seed_and_example_alone(unmasked, strategy):
    masking, batch = MaskingConfig(strategy=strategy), part(unmasked, slice(0, 64))
    once = mask(batch, masking)
    assert_equal(mask(batch, masking), once)
    rows = np.array([40, 3, 17])
    assert_equal(mask(part(batch, rows), masking, rows), part(once, rows))
    for other in (mask(batch, masking, np.arange(64) + 5000), mask(batch, masking, seed=SEED + 1)):
        assert (other["masked_lm_positions"] != once["masked_lm_positions"]).any(axis=1).mean() > 0.95


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_the_original_tokens_can_be_put_back(unmasked, strategy):
    batch = part(unmasked, slice(0, 500))
    found = mask(batch, MaskingConfig(strategy=strategy))
    used, places = found["masked_lm_weights"] == 1, found["masked_lm_positions"]
    assert set(np.unique(found["masked_lm_weights"])) <= {0.0, 1.0}
    assert (np.diff(places, axis=1)[used[:, 1:]] > 0).all() and not places[~used].any()
    restored = found["input_ids"].copy()
    for row in range(len(restored)):
        restored[row, places[row][used[row]]] = found["masked_lm_ids"][row][used[row]]
    np.testing.assert_array_equal(restored, batch["input_ids"])
    assert not np.isin(found["masked_lm_ids"][used], [CLS, SEP]).any() and not found["masked_lm_ids"][~used].any()
    for name in ("input_mask", "segment_ids", "next_sentence_labels"):
        np.testing.assert_array_equal(found[name], batch[name])
    assert sorted(found) == [
        "input_ids",
        "input_mask",
        "masked_lm_ids",
        "masked_lm_positions",
        "masked_lm_weights",
        "next_sentence_labels",
        "segment_ids",
    ]


def statistics(ids, lengths, positions, labels, used):
    """What of masks must agree, as name -> histogram."""
    runs, pairs, kinds, pieces = (collections.Counter() for _ in range(4))
    for row in range(len(ids)):
        places = positions[row][used[row]]
        chosen = np.zeros(S + 2, np.int8)
        chosen[places + 1] = 1
        edges = np.flatnonzero(np.diff(chosen))
        runs.update((edges[1::2] - edges[::2]).tolist())
        now, then = ids[row, places], labels[row][used[row]]
        kind = np.where(now == MASK, 0, np.where(now == then, 1, 2))
        kinds.update(kind.tolist())
        pairs.update((kind[:-1] * 3 + kind[1:])[np.diff(places) == 1].tolist())
        pieces.update(FACTS.continues_word[then].tolist())
    counts = collections.Counter(np.round(used.sum(axis=1) / lengths * 50).astype(int).tolist())
    places = collections.Counter((10 * positions[used] // S).tolist())
    return {
        "lengths of runs": runs,
        "neighbours": pairs,
        "mask, kept, random": kinds,
        "continuations": pieces,
        "predictions": counts,
        "places": places,
    }


@pytest.mark.parametrize(
    "masking",
    [
        MaskingConfig(),
        MaskingConfig(rate=0.25, mask_rate=0.6, keep_rate=0.1, random_rate=0.3),
        MaskingConfig(strategy="whole_word"),
        MaskingConfig(strategy="span"),
        MaskingConfig(strategy="span", span_p=0.4, span_longest=4),
        MaskingConfig(strategy="ngram"),
    ],
    ids=["token", "rates", "whole_word", "span", "short_spans", "ngram"],
)
def test_statistics_are_those_of_the_compiled_form(unmasked, masking):
    rows = make_rows(masking)
    compiled = statistics(
        rows[:, HEADER : HEADER + S],
        rows[:, LENGTH],
        rows[:, HEADER + S : HEADER + S + P],
        rows[:, HEADER + S + P :],
        np.arange(P) < rows[:, [PREDICTIONS]],
    )
    found = mask(unmasked, masking)
    dynamic = statistics(
        found["input_ids"],
        unmasked["input_mask"].sum(axis=1),
        found["masked_lm_positions"],
        found["masked_lm_ids"],
        found["masked_lm_weights"] > 0,
    )
    for name, wanted in compiled.items():
        totals = sum(wanted.values()), sum(dynamic[name].values())
        for value in wanted | dynamic[name]:
            shares = wanted[value] / totals[0], dynamic[name][value] / totals[1]
            noise = np.sqrt(max(shares) * (1 / totals[0] + 1 / totals[1]))
            assert abs(shares[0] - shares[1]) < 5 * noise + 0.004, (name, value, shares)


def test_epochs_mask_every_token_about_as_often(unmasked):
    epochs, masking = 400, MaskingConfig()
    batch = part(unmasked, slice(0, 8))
    found = mask(
        part(batch, np.tile(np.arange(8), epochs)),
        masking,
        np.arange(8 * epochs) % 8 + np.arange(8 * epochs) // 8 * 1000,
    )
    counts, used = np.zeros((8, S)), found["masked_lm_weights"] > 0
    np.add.at(counts, (np.nonzero(used)[0] % 8, found["masked_lm_positions"][used]), 1)
    real = (batch["input_mask"] == 1) & (batch["input_ids"] != CLS) & (batch["input_ids"] != SEP)
    assert counts[~real].sum() == 0
    wanted = masking.budgets(S, P)[batch["input_mask"].sum(axis=1)] / real.sum(axis=1)
    for row in range(8):
        shares = counts[row][real[row]] / epochs
        assert (abs(shares - wanted[row]) < 5 * np.sqrt(wanted[row] / epochs)).all()


def test_records_of_another_schema_are_refused(unmasked):
    batch = part(unmasked, slice(0, 4)) | {"schema_version": np.full((4, 1), 2, np.int32)}
    with pytest.raises(tf.errors.InvalidArgumentError, match="schema version"):
        mask(batch, MaskingConfig())


def test_tokens_drawn_with_replacement_are_electras(unmasked):
    masking = MaskingConfig(strategy="token_draws", mask_rate=0.85, keep_rate=0.15, random_rate=0.0)
    batch = {name: value.copy() for name, value in part(unmasked, slice(0, 800)).items()}
    batch["input_ids"][:, 7] = MASK  # in the text: never drawn
    found = mask(batch, masking)
    used, places = found["masked_lm_weights"] == 1, found["masked_lm_positions"]
    real = batch["input_mask"].sum(axis=1)
    np.testing.assert_array_equal(used.sum(axis=1), [min(P, max(1, round(length * 0.15))) for length in real])
    np.testing.assert_array_equal(
        found["masked_lm_ids"], np.where(used, np.take_along_axis(batch["input_ids"], places, 1), 0)
    )
    assert not np.isin(found["masked_lm_ids"][used], [CLS, SEP, MASK]).any() and not places[~used].any()
    drawn = [np.unique(row[use], return_counts=True) for row, use in zip(places, used)]
    twice = sum((counts > 1).sum() for _, counts in drawn)
    # Of n draws among m candidates, m (1 - (1 - 1/m)^n - n/m (1 - 1/m)^(n-1)) places come more than once.
    n, m = used.sum(axis=1), np.isin(batch["input_ids"], [0, CLS, SEP, MASK], invert=True).sum(axis=1)
    assert twice == pytest.approx((m * (1 - (1 - 1 / m) ** n - n / m * (1 - 1 / m) ** (n - 1))).sum(), rel=0.1)
    masked, stayed = 0, 0
    for row, (own, counts) in enumerate(drawn):
        now, then = found["input_ids"][row], batch["input_ids"][row]
        assert set(np.flatnonzero(now != then)) <= set(own) and (now[now != then] == MASK).all()
        masked += (now[own[counts == 1]] == MASK).sum()
        stayed += (now[own[counts == 1]] != MASK).sum()
    assert masked / (masked + stayed) == pytest.approx(0.85, abs=0.01)
    again = mask(part(batch, np.array([5, 3])), masking, np.array([5, 3]))
    assert_equal(again, part(found, np.array([5, 3])))


def test_keys_of_samples_are_a_function_of_seed_and_example():
    keys = sample_keys(tf.range(5000, dtype=tf.int64), SEED).numpy()
    assert len(np.unique(keys, axis=0)) == 5000 and keys.dtype == np.int32 and keys.min() >= 0
    np.testing.assert_array_equal(sample_keys(tf.constant([41], tf.int64), SEED)[0], keys[41])
    assert (sample_keys(tf.range(5000, dtype=tf.int64), SEED + 1).numpy() != keys).all(axis=1).mean() > 0.99


def test_draws_are_numbers_of_splitmix64():
    def splitmix64(state):
        state = (state + 0x9E3779B97F4A7C15) % 2**64
        state = (state ^ state >> 30) * 0xBF58476D1CE4E5B9 % 2**64
        state = (state ^ state >> 27) * 0x94D049BB133111EB % 2**64
        return state ^ state >> 31

    # The first numbers of a generator with seed 1234567, as published with it.
    assert splitmix64(1234567) == 6457827717110365317
    assert splitmix64(1234567 + 0x9E3779B97F4A7C15) == 3203168211198807973
    rows, what, numbers = [0, 5, 2**64 - 1], 3, [0, 1, 700]
    wanted = [[(splitmix64(row ^ splitmix64(8 * number + what)) >> 11) / 2**53 for number in numbers] for row in rows]
    found = uniform(tf.constant(rows, tf.uint64), what, tf.constant(numbers))
    np.testing.assert_array_equal(found, wanted)
