"""Attention of long rows, by windows and by blocks of queries, beside the whole matrix of scores in NumPy; rotary
positions.
"""

import math

import numpy as np
import pytest
import tensorflow as tf

from official_bert.layers.attention import SelfAttention
from official_bert.layers.attention_mask import TokenInputs, make_attention_mask
from official_bert.layers.positions import EMBEDDED
from official_bert.layers.relatives.pre_norm import PreNormLayer
from official_bert.layers.relatives.relative_positions import Alibi, Rotary
from official_bert.layers.relatives.windows import in_windows
from official_bert.layers.speed import fused, long_rows
from official_bert.layers.speed.long_rows import LongLayout
from official_bert.layers.token_layout import TokenLayout
from official_bert.layers.transformer import TransformerLayer

B, S, D, N = 2, 23, 8, 2
RNG = np.random.default_rng(0)
X = RNG.normal(size=(B, S, D)).astype("float32")
MASK = (np.arange(S) < np.array([[S], [17]])).astype("int32")
PACKED = np.repeat([0, 1, 2], [9, 4, 10])[None] * np.ones((B, 1), "int32")


def turned(rows, base):
    """rows [B,S,N,H], each pair as a complex number times e^(i angle)."""
    half = rows.shape[-1] // 2
    angles = np.arange(rows.shape[1])[:, None] / base ** (np.arange(half) / half)
    product = (rows[..., :half] + 1j * rows[..., half:]) * np.exp(1j * angles)[None, :, None]
    return np.concatenate([product.real, product.imag], axis=-1)


def layout_of(mask, packed=None, left_to_right=False, base=0.0, window=0, in_turn=True, alibi=False):
    """Returns a layer's layout: queries in turn, or one mask for all; with a window, that of a layer which has one."""
    inputs = TokenInputs(tf.cast(mask, tf.bool), packed, left_to_right)
    positions = Rotary(np.arange(S)[None], base, D // N) if base else EMBEDDED
    if alibi:
        places = tf.range(tf.shape(mask)[1])[None]
        positions = Alibi(N, places, places)
    layout = (
        LongLayout(None, inputs, positions=positions)
        if in_turn
        else TokenLayout(make_attention_mask(mask, packed, left_to_right), inputs, positions=positions)
    )
    return in_windows(layout, window) if window else layout


def whole(layer, x, window=0, packed=None, left_to_right=False, base=0.0, alibi=False):
    """Returns the attention's output for all rows from one [S,S] matrix, in float64."""
    q, k, v = (
        np.einsum("bsd,dnh->bsnh", x.astype("float64"), np.array(part.kernel)) + np.array(part.bias)
        for part in (layer.query, layer.key, layer.value)
    )
    q, k = (turned(rows, base) if base else rows for rows in (q, k))
    places = np.arange(S)
    seen = MASK[:, None, :] == 1
    if window:
        seen = seen & (abs(places[None] - places[:, None]) <= window)
    if left_to_right:
        seen = seen & (places[None] <= places[:, None])
    if packed is not None:
        seen = seen & (packed[:, :, None] == packed[:, None, :])
    scores = np.einsum("bqnh,bknh->bnqk", q, k) / math.sqrt(D // N)
    if alibi:  # two heads: 2^-4 and 2^-8
        scores -= np.array([2**-4, 2**-8])[:, None, None] * abs(places[None] - places[:, None])
    shares = np.exp(np.where(seen[:, None], scores, -1e2))
    shares /= shares.sum(axis=-1, keepdims=True)
    rows = np.einsum("bnqk,bknh->bqnh", shares, v)
    return np.einsum("bqnh,nhd->bqd", rows, np.array(layer.merge_heads.kernel)) + np.array(layer.merge_heads.bias)


@pytest.fixture(scope="module")
def layer():
    made = SelfAttention(num_heads=N, hidden_size=D, dropout=0.0, initializer_range=0.6)
    made.build((None, None, D))
    for part in (made.query, made.key, made.value, made.merge_heads):
        part.bias.assign(RNG.normal(size=part.bias.shape))
    return made


CASES = [
    dict(zip(("packed", "left_to_right", "base"), case))
    for case in ((None, False, 0.0), (PACKED, False, 0.0), (None, True, 0.0), (PACKED, True, 50.0), (None, False, 50.0))
]


@pytest.mark.parametrize("window", [4, 8, 23])
@pytest.mark.parametrize("case", CASES)
def test_a_window_sees_what_the_whole_matrix_says(layer, window, case):
    layout = layout_of(MASK, **case, window=window, in_turn=False)
    wanted = whole(layer, X, window if window < S else 0, **case)
    real = MASK == 1
    np.testing.assert_allclose(np.asarray(layer(X, layout=layout))[real], wanted[real], atol=2e-5)
    places = np.array([[0, 16, 3], [2, 0, 0]])
    some = layer(X, layout=layout.at(places), queries=np.take_along_axis(X, places[:, :, None], axis=1))
    np.testing.assert_allclose(some, np.take_along_axis(wanted, places[:, :, None], axis=1), atol=2e-5)


@pytest.mark.parametrize("case", [*CASES, {"alibi": True}, {"alibi": True, "packed": PACKED, "left_to_right": True}])
def test_blocks_of_queries_give_what_the_whole_matrix_gives_in_both_passes(layer, case, monkeypatch):
    layout, wanted, real = layout_of(MASK, **case), whole(layer, X, **case), MASK == 1
    dense = gradients_of(layer, layout_of(MASK, **case, in_turn=False))
    monkeypatch.setattr(long_rows, "_edges", lambda q, k: [0, 5, 10, S] if q.shape[2] == S else [0, 2, 3])
    np.testing.assert_allclose(np.asarray(layer(X, layout=layout))[real], wanted[real], atol=2e-5)
    for got, value in zip(gradients_of(layer, layout), dense, strict=True):
        np.testing.assert_allclose(got, value, atol=2e-6 * max(np.abs(part).max() for part in dense))
    places = np.array([[0, 16, 3], [2, 0, 0]])
    some = layer(X, layout=layout.at(places), queries=np.take_along_axis(X, places[:, :, None], axis=1))
    np.testing.assert_allclose(some, np.take_along_axis(wanted, places[:, :, None], axis=1), atol=2e-5)


def gradients_of(layer, layout):
    x = tf.constant(X)
    with tf.GradientTape() as tape:
        tape.watch(x)
        loss = tf.reduce_sum(layer(x, layout=layout, training=True)[MASK == 1] ** 2)
    return [
        tf.convert_to_tensor(part).numpy()
        for part in tape.gradient(loss, [x, *(weight.value for weight in layer.weights)])
    ]


def test_the_backward_pass_of_blocks_draws_the_same_dropout(monkeypatch):
    monkeypatch.setattr(long_rows, "_edges", lambda q, k: [0, 9, S])
    q, k, v = (tf.constant(RNG.normal(size=(B, N, S, 4)), tf.float32) for _ in range(3))
    dropout = fused.Dropout(0.5, seed=3, dtype="float32")
    with tf.GradientTape() as tape:
        tape.watch(v)
        total = tf.reduce_sum(long_rows.attend_in_turn(q, k, v, layout_of(MASK).mask_of_queries, dropout, True) * q)
    # linear in v, by the same masks
    assert float(tf.reduce_sum(tape.gradient(total, v) * v)) == pytest.approx(float(total), rel=1e-4)
    still = tf.reduce_sum(long_rows.attend_in_turn(q, k, v, layout_of(MASK).mask_of_queries, dropout, False) * q)
    assert float(still) != pytest.approx(float(total), rel=1e-3)


@pytest.mark.slow
def test_no_tensor_of_a_training_step_has_the_length_of_the_row_twice(monkeypatch):
    length = 1280
    monkeypatch.setattr(long_rows, "BLOCK", 256 * length * N)
    made = [
        TransformerLayer(num_heads=N, hidden_size=D, intermediate_size=16, dropout=0.0, attention_dropout=rate)
        for rate in (0.1, 0.0)
    ]
    x, ids = tf.zeros((1, length, D)), tf.zeros((1, length), tf.int32)

    def step(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            rows = x
            for number, part in enumerate(made):
                rows = part(rows, layout=layout_of(ids + 1, ids, window=32 * number), training=True)
            loss = tf.reduce_sum(rows)
        return tape.gradient(loss, x)

    graph = tf.function(step, autograph=False).get_concrete_function(x).graph
    largest = max(
        (
            math.prod(output.shape)
            for op in graph.get_operations()
            for output in op.outputs
            if output.shape.rank is not None and None not in tuple(output.shape)
        ),
        default=0,
    )
    assert length * 256 * N <= largest < length * length * N / 4


@pytest.mark.parametrize(("window", "alibi"), [(0, False), (4, False), (0, True)])
def test_rows_of_unknown_length_are_computed_alike(layer, window, alibi):
    run = tf.function(
        lambda x, mask: layer(x, layout=layout_of(mask, window=window, alibi=alibi)),
        autograph=False,
        input_signature=[tf.TensorSpec([None, None, D]), tf.TensorSpec([None, None], tf.int32)],
    )
    real = MASK == 1
    np.testing.assert_allclose(np.asarray(run(X, MASK))[real], whole(layer, X, window, alibi=alibi)[real], atol=2e-5)
    short = layout_of(MASK[:1, :3], in_turn=False, alibi=alibi)
    np.testing.assert_allclose(run(X[:1, :3], MASK[:1, :3]), layer(X[:1, :3], layout=short), atol=2e-5)


def test_gated_units_before_their_norms_are_those_of_the_paper():
    made = PreNormLayer(
        num_heads=N,
        hidden_size=D,
        intermediate_size=6,
        hidden_act="relu",
        feed_forward="gated",
        biases=False,
        initializer_range=0.5,
    )
    got = np.asarray(made(X, layout=MASK[:, None, None].astype(bool)))
    assert not any(weight.name in ("bias", "beta") for weight in made.weights)

    def normalized(x, norm):
        return (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-12) * np.array(norm.gamma)

    attended = np.asarray(
        made.attention(normalized(X, made.attention_layer_norm).astype("float32"), MASK[:, None, None].astype(bool))
    )
    rows = X + attended
    both = normalized(rows, made.output_layer_norm) @ np.array(made.intermediate.kernel)
    wanted = rows + (np.maximum(both[..., :6], 0) * both[..., 6:]) @ np.array(made.output_dense.kernel)
    np.testing.assert_allclose(got, wanted, atol=2e-5)
