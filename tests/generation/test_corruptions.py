"""BART's corruptions and MASS's span, worked out by hand; their shares in many draws."""

import numpy as np
import pytest

from official_bert.tasks.writing.corruptions import (
    Words,
    damage,
    draw_spans,
    hide_span,
    infill,
    split_sentences,
)

MASK, POINT = 4, 9
WORDS = Words(MASK, np.arange(5, 61), np.array([POINT]))


class Draws:
    """Draws that a test has written down."""

    def __init__(self, *values):
        self.values = list(values)

    def random(self, size=None):
        return self.values.pop(0) if size is None else np.array([self.values.pop(0) for _ in range(size)])

    def integers(self, low, high):
        value = self.values.pop(0)
        assert low <= value < high
        return value

    def poisson(self, mean):
        assert mean == 3.0
        return self.values.pop(0)

    def permutation(self, count):
        order = self.values.pop(0)
        assert sorted(order) == list(range(count))
        return np.array(order)


def test_masked_tokens_stay_in_place_and_deleted_ones_leave_no_trace():
    ids = np.array([10, 11, 12, 13], np.int32)
    assert damage(ids, "token_masking", 0.3, WORDS, Draws(0.29, 0.3, 0.0, 0.9)).tolist() == [MASK, 11, MASK, 13]
    assert damage(ids, "deletion", 0.3, WORDS, Draws(0.29, 0.3, 0.0, 0.9)).tolist() == [11, 13]


def test_a_span_becomes_one_mask_and_an_empty_span_a_mask_more():
    ids = np.array([10, 11, 12, 13, 14, 15], np.int32)
    assert infill(ids, [(1, 3)], MASK).tolist() == [10, MASK, 14, 15]
    assert infill(ids, [(0, 2), (2, 0), (5, 1)], MASK).tolist() == [MASK, MASK, 12, 13, 14, MASK]
    assert infill(ids, [], MASK).tolist() == ids.tolist()
    assert infill(ids[:0], [], MASK).tolist() == []


def test_spans_hold_the_share_of_tokens_and_stand_among_the_others():
    # 10 tokens, half of them: lengths 2, 0 and 4 cut to 3; 5 tokens are kept, and 3 spans stand among these 8 things
    # at places 1, 4, 6: behind 1 kept token; behind 3 kept ones and 2 hidden; behind 4 kept and 2 hidden
    assert draw_spans(10, 0.5, Draws(2, 0, 4, [4, 1, 6, 0, 2, 3, 5, 7])) == [(1, 2), (5, 0), (6, 3)]
    assert draw_spans(0, 0.5, Draws([])) == []
    rng = np.random.default_rng(0)
    for _ in range(200):
        spans = draw_spans(40, 0.3, rng)
        assert sum(length for _, length in spans) == 12
        ends = [0, *(start + length for start, length in spans)]
        assert all(start >= end for (start, _), end in zip(spans, ends)) and ends[-1] <= 40
    starts = [start for _ in range(3000) for start, length in draw_spans(10, 0.3, rng) if length == 3]
    assert np.histogram(starts, 8, (0, 8))[0] / len(starts) == pytest.approx([1 / 8] * 8, abs=0.03)


def test_sentences_are_split_behind_their_ends_and_permuted():
    ids = np.array([10, POINT, 11, 12, POINT, 13], np.int32)
    assert [part.tolist() for part in split_sentences(ids, WORDS.ends)] == [[10, POINT], [11, 12, POINT], [13]]
    permuted = damage(ids, "sentence_permutation", 0.3, WORDS, Draws([2, 0, 1]))
    assert permuted.tolist() == [13, 10, POINT, 11, 12, POINT]
    assert damage(ids[:0], "sentence_permutation", 0.3, WORDS, Draws([])).tolist() == []


def test_a_hidden_span_is_read_one_place_earlier_and_predicted():
    ids = np.array([2, 10, 11, 12, 13, 14], np.int32)
    # half of 6 tokens; 0.3: any first place, here 2; then [MASK], the token itself, and the ordinary word of number 7
    span = hide_span(ids, 0.5, WORDS, Draws(0.3, 2, 0.79, 0.8, 0.9, 7))
    assert span.encoder_ids.tolist() == [2, 10, MASK, 12, 12, 14]
    assert span.decoder_ids.tolist() == [10, 11, 12]
    assert span.decoder_positions.tolist() == [1, 2, 3]
    assert span.labels.tolist() == [11, 12, 13]
    assert hide_span(ids, 0.5, WORDS, Draws(0.8, 0, 0, 0)).decoder_positions.tolist() == [0, 1, 2]  # the first place
    assert hide_span(ids, 0.5, WORDS, Draws(0.6, 0, 0, 0)).labels.tolist() == [12, 13, 14]  # the last possible one
    assert ids.tolist() == [2, 10, 11, 12, 13, 14]
