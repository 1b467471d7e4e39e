"""Masks: the statistics that each strategy promises, from the compiled functions."""

import collections

import numpy as np
import pytest
from made_generation import facts_of

from official_bert.data.pretraining.instances import InstanceConfig, InstanceSampler
from official_bert.data.pretraining.masking import MaskingConfig, VocabularyFacts
from official_bert.data.pretraining.rows import HEADER, LENGTH, PREDICTIONS, Corpus

CLS, SEP, MASK = 2, 3, 4
WORDS, PIECES = 1000, 400  # ids 5 to 1004 begin words, the 400 after them continue them
FACTS = VocabularyFacts(
    WORDS + PIECES + 5, CLS, SEP, MASK, np.arange(WORDS + PIECES + 5) >= WORDS + 5, np.arange(5, WORDS + PIECES + 5)
)


def make_corpus(seed=0, tokens=200_000, share_of_pieces=0.25):
    rng = np.random.default_rng(seed)
    pieces = rng.random(tokens) < share_of_pieces
    ids = np.where(pieces, rng.integers(WORDS + 5, WORDS + PIECES + 5, tokens), rng.integers(5, WORDS + 5, tokens))
    starts = np.unique(np.concatenate([[0], np.sort(rng.integers(1, tokens, tokens // 18)), [tokens]]))
    documents = np.unique(np.concatenate([[0], np.arange(0, len(starts) - 1, 25), [len(starts) - 1]]))
    return Corpus(
        ids.astype(np.uint16), starts, documents, np.arange(len(documents) - 1), np.arange(len(documents) - 1)
    )


def sample(masking, S=128, P=40, task="none", seed=1, share_of_pieces=0.25):
    """(original ids [n,S] with 0 as padding, ids as masked, bool [n,S] where to be predicted, lengths [n])."""
    config = InstanceConfig(
        max_seq_length=S, max_predictions_per_seq=P, dupe_factor=1, sentence_task=task, masking=masking
    )
    sampler = InstanceSampler(config, FACTS, make_corpus(share_of_pieces=share_of_pieces), seed)
    block = np.zeros((4096, sampler.row_width), np.uint16)
    rows = np.concatenate([part.copy() for part in sampler.blocks(block)]).astype(np.int64)
    lengths, counts = rows[:, LENGTH], rows[:, PREDICTIONS]
    ids, positions, labels = np.split(rows[:, HEADER:], [S, S + P], axis=1)
    ids = np.where(np.arange(S) < lengths[:, None], ids, 0)
    originals, chosen = ids.copy(), np.zeros(ids.shape, np.bool_)
    for row in range(len(rows)):
        places = positions[row, : counts[row]]
        assert (np.diff(places) > 0).all()
        originals[row, places], chosen[row, places] = labels[row, : counts[row]], True
    return originals, ids, chosen, lengths


def assert_share(count, of, wanted):
    """Within five standard deviations of a binomial."""
    assert abs(count - wanted * of) < 5 * np.sqrt(of * wanted * (1 - wanted)) + 1, (count / of, wanted)


def word_numbers(ids):
    """Which word of its row each token belongs to; -1 where none."""
    real = (ids != 0) & (ids != CLS) & (ids != SEP)
    return np.where(real, np.cumsum(real & ~FACTS.continues_word[ids], axis=1), -1)


@pytest.mark.parametrize("strategy", ["token", "whole_word", "span"])
@pytest.mark.parametrize("rates", [(0.8, 0.1, 0.1), (0.5, 0.3, 0.2), (1.0, 0.0, 0.0), (0.0, 1.0, 0.0)])
def test_rates_of_mask_kept_and_random_are_those_asked_for(strategy, rates):
    masking = MaskingConfig(strategy=strategy, mask_rate=rates[0], keep_rate=rates[1], random_rate=rates[2])
    originals, ids, chosen, _ = sample(masking)
    predicted, same = chosen.sum(), (ids == originals) & chosen
    spread = 2 if strategy == "span" else 1  # tokens of a span fare alike: fewer draws than tokens
    coincidence = rates[2] / len(FACTS.replacements)
    assert_share((ids == MASK)[chosen].sum() / spread**2, predicted / spread**2, rates[0])
    assert_share(same.sum() / spread**2, predicted / spread**2, min(1, rates[1] + coincidence))
    assert (ids == originals)[~chosen].all()


@pytest.mark.parametrize("rate, P", [(0.15, 40), (0.3, 60), (0.15, 10)])
def test_as_many_tokens_are_chosen_as_the_rate_says(rate, P):
    for strategy in ("token", "whole_word", "span"):
        _, _, chosen, lengths = sample(MaskingConfig(strategy=strategy, rate=rate), P=P)
        budgets = np.array([min(P, max(1, round(float(length * rate)))) for length in lengths])
        counts = chosen.sum(axis=1)
        if strategy == "token":
            np.testing.assert_array_equal(counts, budgets)
        else:
            assert (counts <= budgets).all() and counts.sum() > 0.97 * budgets.sum()


def test_special_tokens_are_never_chosen_and_every_place_is_chosen_alike():
    originals, _, chosen, lengths = sample(MaskingConfig(), task="nsp")
    assert not np.isin(originals[chosen], [CLS, SEP]).any()
    full = lengths == 128
    by_place = chosen[full][:, 1:127].mean(axis=0)
    special = (originals[full][:, 1:127] == SEP).mean(axis=0)
    wanted = 19 / 125 * (1 - special)
    assert (abs(by_place - wanted) < 5 * np.sqrt(wanted / full.sum())).all()


def test_random_replacements_are_drawn_evenly_from_the_whole_vocabulary():
    masking = MaskingConfig(mask_rate=0.0, keep_rate=0.0, random_rate=1.0)
    _, ids, chosen, _ = sample(masking)
    counts = np.bincount(ids[chosen], minlength=FACTS.size)[FACTS.replacements]
    assert counts.sum() == chosen.sum()
    expected = counts.mean()
    chi_square = ((counts - expected) ** 2 / expected).sum()
    freedom = len(counts) - 1
    assert abs(chi_square - freedom) < 6 * np.sqrt(2 * freedom)


@pytest.mark.parametrize("strategy", ["whole_word", "span", "ngram"])
def test_words_are_chosen_whole(strategy):
    originals, _, chosen, _ = sample(MaskingConfig(strategy=strategy))
    words = word_numbers(originals)
    for row in range(len(words)):
        picked = np.isin(words[row], words[row][chosen[row]])
        np.testing.assert_array_equal(picked, chosen[row])


def test_pieces_of_a_word_are_chosen_one_by_one_where_words_need_not_be_whole():
    originals, _, chosen, _ = sample(MaskingConfig())
    follows = FACTS.continues_word[originals][:, 1:] & chosen[:, :-1]
    assert_share(chosen[:, 1:][follows].sum(), follows.sum(), 18 / 125)


def span_lengths(chosen):
    """Lengths of runs of chosen tokens."""
    lengths = collections.Counter()
    for row in chosen:
        edges = np.flatnonzero(np.diff(np.concatenate([[False], row, [False]]).astype(int)))
        lengths.update((edges[1::2] - edges[::2]).tolist())
    return lengths


def test_span_lengths_are_geometric_with_mean_3_8():
    distribution = MaskingConfig(strategy="span").span_distribution()
    assert len(distribution) == 10 and abs(distribution @ np.arange(1, 11) - 3.8) < 0.01  # SpanBERT 3.1
    np.testing.assert_allclose(distribution[1:] / distribution[:-1], 0.8)
    # Words of one piece, and budget for 150 tokens of 510: only the last span of a row is cut by the budget. Spans meet
    # others at times: what is compared is the tail, and how many there are of each length up to the longest.
    _, _, chosen, _ = sample(MaskingConfig(strategy="span", rate=0.1), S=512, P=150, share_of_pieces=0)
    found = span_lengths(chosen)
    total = sum(found.values())
    for length in range(1, 11):
        assert abs(found[length] / total - distribution[length - 1]) < 0.03, (length, found[length] / total)


def test_spans_end_at_segments():
    masking = MaskingConfig(strategy="span", span_p=0.01, span_longest=100)  # about one span a row, of 19 tokens
    # Without pieces: one at the beginning of B belongs to the last word of A, as in 2018.
    originals, _, chosen, _ = sample(masking, task="nsp", share_of_pieces=0)
    rows, places = np.nonzero(originals[:, 1:127] == SEP)
    inner = originals[rows, places + 2] != 0
    both = chosen[rows, places] & chosen[rows, places + 2]
    assert inner.sum() > 500 and both[inner].mean() < 0.02  # 0.15, if spans went on behind [SEP]
    assert (chosen.sum(axis=1) > 0).all()


def test_span_lengths_count_words_not_pieces():
    originals, _, chosen, _ = sample(MaskingConfig(strategy="span", span_longest=1, rate=0.05), share_of_pieces=0.5)
    words = word_numbers(originals)
    per_run = []
    for row in range(len(words)):
        edges = np.flatnonzero(np.diff(np.concatenate([[False], chosen[row], [False]]).astype(int)))
        per_run += [len(set(words[row][first:last])) for first, last in zip(edges[::2], edges[1::2])]
    assert np.mean(np.array(per_run) == 1) > 0.9  # others touch by chance
    assert np.mean(list(span_lengths(chosen).elements())) > 1.5  # tokens


def test_tokens_of_a_span_fare_alike():
    originals, ids, chosen, _ = sample(MaskingConfig(strategy="span", rate=0.03), S=512, P=100)
    alike = different = 0
    for row in range(len(ids)):
        pairs = np.flatnonzero(chosen[row][1:] & chosen[row][:-1])
        kinds = np.where(ids[row] == MASK, 0, np.where(ids[row] == originals[row], 1, 2))
        alike += (kinds[pairs] == kinds[pairs + 1]).sum()
        different += (kinds[pairs] != kinds[pairs + 1]).sum()
    assert different / (alike + different) < 0.03  # spans that touch, and random tokens that are the old ones


def test_n_grams_have_lengths_in_proportion_to_1_over_n_and_tokens_of_their_own_kind():
    masking = MaskingConfig(strategy="ngram", rate=0.02)  # up to 10 tokens of a row of 512: n-grams rarely touch
    np.testing.assert_allclose(masking.span_distribution(), [6 / 11, 3 / 11, 2 / 11])
    originals, ids, chosen, _ = sample(masking, S=512, P=100, share_of_pieces=0)
    found = span_lengths(chosen)
    for length, wanted in enumerate(masking.span_distribution(), 1):
        assert abs(found[length] / sum(found.values()) - wanted) < 0.06, found  # the budget cuts the last one of a row
    kinds = np.where(ids == MASK, 0, np.where(ids == originals, 1, 2))
    pairs = chosen[:, 1:] & chosen[:, :-1]
    alike = (kinds[:, 1:] == kinds[:, :-1])[pairs]
    assert_share(alike.sum(), len(alike), 0.8**2 + 0.1**2 + 0.1**2)


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"rate": 1.2}, "rate"),
        ({"mask_rate": 0.9}, "make 1 together"),
        ({"span_p": 0.0}, "span_p"),
        ({"span_longest": 0}, "span_longest"),
        ({"ngram_longest": 0}, "ngram_longest: expected at least 1, got 0"),
    ],
)
def test_masking_that_cannot_be_is_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        MaskingConfig(**changes)


def test_facts_of_a_vocabulary_keep_its_order_and_continuations():
    facts = facts_of({"[PAD]": 0, "[UNK]": 1, "[CLS]": 2, "[SEP]": 3, "[MASK]": 4, "##a": 7, "b": 6})
    assert facts.size == 8 and facts.replacements.tolist() == [0, 1, 2, 3, 4, 7, 6]
    assert np.flatnonzero(facts.continues_word).tolist() == [7]
