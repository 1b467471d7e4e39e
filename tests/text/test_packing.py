"""Packing against the rows of the 2018 classifier and against its rules worked out by hand."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from oracles.rows import pack_padded, pad

from official_bert.text import packing
from official_bert.text.tokenization import FullTokenizer


def test_rows_of_the_2018_classifier_are_equal(golden):
    features = json.loads((golden / "classifier_features.json").read_text(encoding="utf-8"))
    tokenizer = FullTokenizer(str(golden / "vocab_uncased.txt"))
    kinds = set()
    for row in features["rows"]:
        ids_a, ids_b = (
            tokenizer.convert_tokens_to_ids(tokenizer.tokenize(row[key] or "")) for key in ("text_a", "text_b")
        )
        packed = pack_padded(
            ids_a, ids_b, tokenizer.special_id("[CLS]"), tokenizer.special_id("[SEP]"), features["max_seq_length"]
        )
        for name, values in packed.items():
            assert values.dtype == np.int32 and values.tolist() == row[name], (name, row["text_a"])
        kinds.add((row["text_b"] is None, sum(row["input_mask"]) == features["max_seq_length"]))
    assert kinds == {(True, True), (True, False), (False, True), (False, False)}


@pytest.mark.parametrize(
    ("max_tokens", "wanted"),
    [
        (9, ("abcdef", "xyz")),
        (8, ("abcde", "xyz")),
        (6, ("abc", "xyz")),
        (5, ("abc", "xy")),
        (4, ("ab", "xy")),
        (1, ("a", "")),
        (0, ("", "")),
    ],
)
def test_the_longer_text_is_cut_and_of_equal_ones_the_second(max_tokens, wanted):
    assert packing.truncate_pair("abcdef", "xyz", max_tokens) == wanted


def test_truncation_leaves_its_arguments_alone():
    tokens_a, tokens_b = ["a"] * 5, ["b"] * 5
    packing.truncate_pair(tokens_a, tokens_b, 3)
    assert len(tokens_a) == len(tokens_b) == 5


@given(st.integers(0, 60), st.integers(0, 60), st.integers(0, 60))
def test_truncated_pairs_fill_the_room_that_there_is(length_a, length_b, max_tokens):
    cut_a, cut_b = packing.truncate_pair(range(length_a), range(length_b), max_tokens)
    assert len(cut_a) + len(cut_b) == min(max_tokens, length_a + length_b)
    assert cut_a == range(length_a)[: len(cut_a)] and cut_b == range(length_b)[: len(cut_b)]


def test_an_empty_second_text_is_none():
    template = packing.Template(1, 2)
    assert template.pack([5, 6], []) == template.pack([5, 6], None) == ([1, 5, 6, 2], [0, 0, 0, 0])
    assert template.pack([5], np.array([6])) == ([1, 5, 2, 6, 2], [0, 0, 0, 1, 1])


def test_padding_has_the_id_of_pad():
    row = pack_padded([5], None, 1, 2, 5, pad_id=7)
    assert row["input_ids"].tolist() == [1, 5, 2, 7, 7] and row["input_mask"].tolist() == [1, 1, 1, 0, 0]


def test_rows_that_do_not_fit_are_errors():
    with pytest.raises(ValueError, match="at least 3 for the special tokens, got 2"):
        pack_padded([5], [6], 1, 2, 2)
    with pytest.raises(ValueError, match="at most 3 tokens, got 4"):
        pad([1, 5, 6, 2], [0] * 4, 3)


@pytest.mark.parametrize(
    ("length", "window", "stride", "wanted"),
    [
        (0, 4, 2, []),
        (3, 4, 2, [(0, 3)]),
        (4, 4, 2, [(0, 4)]),
        (5, 4, 2, [(0, 4), (2, 3)]),
        (8, 4, 2, [(0, 4), (2, 4), (4, 4)]),
        (9, 4, 2, [(0, 4), (2, 4), (4, 4), (6, 3)]),
        (9, 4, 9, [(0, 4), (4, 4), (8, 1)]),
    ],
)
def test_windows_begin_a_stride_apart_and_end_with_the_text(length, window, stride, wanted):
    assert packing.sliding_windows(length, window, stride) == wanted


def test_windows_without_a_stride_are_an_error():
    with pytest.raises(ValueError, match="stride of at least 1"):
        packing.sliding_windows(5, 3, 0)


@given(st.integers(1, 60), st.integers(1, 12), st.integers(1, 12))
def test_each_position_has_its_most_context_in_one_window(length, window, stride):
    windows = packing.sliding_windows(length, window, stride)
    for position in range(length):
        scores = [
            min(position - start, start + size - 1 - position) + 0.01 * size if start <= position < start + size else -1
            for start, size in windows
        ]
        best = [packing.is_max_context(windows, index, position) for index in range(len(windows))]
        assert sum(best) == 1 and best.index(True) == scores.index(max(scores))
