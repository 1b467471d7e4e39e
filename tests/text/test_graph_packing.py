"""Packing in the graph against the plain form, which the 2018 code's golden results check."""

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from oracles.rows import pack_padded

from official_bert.text import graph_packing, packing
from official_bert.text.packing import Template

CLS, SEP, PAD = 101, 102, 0
RAGGED = tf.RaggedTensorSpec([None, None], tf.int32)
TEXTS = st.lists(st.lists(st.integers(1000, 2000), max_size=12), min_size=1, max_size=5)


def ragged(rows):
    flat = tf.constant([token for row in rows for token in row], tf.int32)
    return tf.RaggedTensor.from_row_lengths(flat, [len(row) for row in rows])


def trimmed(rows, width):
    """Cuts padded rows to the longest of the batch."""
    assert all(not row[name][width:].any() for row in rows for name in row)
    return {name: np.stack([row[name][:width] for row in rows]) for name in rows[0]}


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.data(), TEXTS, st.integers(3, 20))
def test_pairs_are_packed_and_truncated_as_in_training(data, texts_a, max_seq_length):
    texts_b = data.draw(
        st.lists(st.lists(st.integers(1000, 2000), max_size=12), min_size=len(texts_a), max_size=len(texts_a))
    )
    layout, truncated = graph_packing.pack_batch(ragged(texts_a), ragged(texts_b), Template(CLS, SEP), max_seq_length)
    wanted = [pack_padded(a, b, CLS, SEP, max_seq_length) for a, b in zip(texts_a, texts_b)]
    longest = max(int(row["input_mask"].sum()) for row in wanted)
    for name, values in trimmed(wanted, longest).items():
        np.testing.assert_array_equal(layout.features()[name], values, name)
    lengths = [len(a) + len(b) + (3 if b else 2) for a, b in zip(texts_a, texts_b)]
    assert truncated.numpy().tolist() == [length > max_seq_length for length in lengths]


@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(TEXTS, st.integers(2, 12))
def test_single_texts_are_packed_as_in_training(texts, max_seq_length):
    layout, truncated = graph_packing.pack_batch(ragged(texts), None, Template(CLS, SEP), max_seq_length)
    wanted = [pack_padded(text, None, CLS, SEP, max_seq_length) for text in texts]
    longest = max(int(row["input_mask"].sum()) for row in wanted)
    for name, values in trimmed(wanted, longest).items():
        np.testing.assert_array_equal(layout.features()[name], values, name)
    assert truncated.numpy().tolist() == [len(text) + 2 > max_seq_length for text in texts]


def test_a_layout_says_which_token_stands_where():
    layout, _ = graph_packing.pack_batch(ragged([[7, 8], [9]]), ragged([[4], []]), Template(CLS, SEP), 16)
    assert layout.input_ids.numpy().tolist() == [[CLS, 7, 8, SEP, 4, SEP], [CLS, 9, SEP, 0, 0, 0]]
    assert layout.in_a.numpy().tolist() == [[False, True, True, False, False, False], [False, True] + [False] * 4]
    assert layout.in_b.numpy().tolist() == [[False] * 4 + [True, False], [False] * 6]
    assert layout.token.numpy().tolist() == [[0, 0, 1, 0, 0, 0], [0, 2, 0, 0, 0, 0]]


def test_an_empty_batch_gives_no_rows():
    layout, truncated = graph_packing.pack_batch(ragged([]), ragged([]), Template(CLS, SEP), 16)
    assert layout.input_ids.shape[0] == 0 and truncated.shape == [0]


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.integers(0, 60), min_size=1, max_size=5), st.integers(1, 20), st.integers(1, 25))
def test_windows_and_their_maximum_context_are_those_of_training(lengths, window, stride):
    windows = graph_packing.sliding_windows(tf.constant(lengths), window, stride)
    wanted = [packing.sliding_windows(length, window, stride) or [(0, 0)] for length in lengths]
    found = list(zip(*(part.numpy().tolist() for part in windows)))
    assert found == [(text, *span) for text, spans in enumerate(wanted) for span in spans]
    shown = graph_packing.max_context(windows, tf.constant(lengths)).numpy()
    for row, (text, start, length) in enumerate(found):
        number = row - [item[0] for item in found].index(text)
        best = [packing.is_max_context(wanted[text], number, start + offset) for offset in range(length)]
        assert shown[row].tolist() == best + [False] * (shown.shape[1] - length)


@pytest.mark.parametrize(("length", "window", "stride"), [(1000, 300, 100), (1507, 384, 128), (777, 209, 50)])
def test_maximum_context_agrees_where_scores_are_equal_on_paper(length, window, stride):
    spans = packing.sliding_windows(length, window, stride)
    windows = graph_packing.sliding_windows(tf.constant([length]), window, stride)
    shown = graph_packing.max_context(windows, tf.constant([length])).numpy()
    for number, (start, size) in enumerate(spans):
        wanted = [packing.is_max_context(spans, number, start + offset) for offset in range(size)]
        assert shown[number, :size].tolist() == wanted


def test_each_text_may_have_a_window_of_its_own():
    windows = graph_packing.sliding_windows(tf.constant([10, 10]), tf.constant([10, 6]), 3)
    assert [part.numpy().tolist() for part in windows] == [[0, 1, 1, 1], [0, 0, 3, 6], [10, 6, 6, 4]]
