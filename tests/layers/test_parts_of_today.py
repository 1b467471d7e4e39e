"""Parts of NomicBERT, GTE and JinaBERT beside NumPy: slopes, factors of angles, biases by part, two more norms."""

import dataclasses
import math

import numpy as np
import pytest

from official_bert.layers.activations import get_activation
from official_bert.layers.relatives.more_norms import NormalizedAttention, TwiceNormLayer
from official_bert.layers.relatives.relative_positions import Rotary, slopes_of_heads
from official_bert.layers.token_layout import TokenLayout
from official_bert.model_config import ModelConfig
from official_bert.models.encoder import make_encoder, weights_by_name

B, S, D, N = 2, 7, 12, 3
RNG = np.random.default_rng(4)
X = RNG.normal(size=(B, S, D)).astype("float32")
MASK = np.array([[1] * 7, [1] * 4 + [0] * 3], bool)
SMALL = ModelConfig(
    vocab_size=11, hidden_size=D, num_hidden_layers=1, num_attention_heads=N, intermediate_size=10, alibi=True
)


def test_silu_is_x_times_the_logistic_function():
    x = np.linspace(-9, 9, 37).astype("float32")
    np.testing.assert_allclose(get_activation("silu")(x), x / (1 + np.exp(-x.astype("float64"))), rtol=1e-5)


@pytest.mark.parametrize(
    ("heads", "exponents"),
    [
        (1, [8]),
        (8, [1, 2, 3, 4, 5, 6, 7, 8]),
        (12, [1, 2, 3, 4, 5, 6, 7, 8, 0.5, 1.5, 2.5, 3.5]),  # the paper's list of 8, then every other of 16
        (6, [2, 4, 6, 8, 1, 3]),
    ],
)
def test_slopes_are_those_of_the_paper(heads, exponents):
    np.testing.assert_allclose(slopes_of_heads(heads), [2.0**-exponent for exponent in exponents], rtol=1e-6)


def test_a_factor_divides_the_angles():
    places = np.arange(S)[None]
    rows = RNG.normal(size=(1, S, 1, 4)).astype("float32")
    angles = np.arange(S)[:, None] / 3.0 / 100.0 ** (np.arange(2) / 2)
    wanted = (rows[..., :2] + 1j * rows[..., 2:]) * np.exp(1j * angles)[None, :, None]
    got = Rotary(places, 100.0, 4, 3.0).turn(rows)
    np.testing.assert_allclose(got, np.concatenate([wanted.real, wanted.imag], -1), atol=1e-6)


def norm(x, layer):
    mean = x.mean(-1, keepdims=True)
    deviation = np.sqrt(((x - mean) ** 2).mean(-1, keepdims=True) + 1e-12)
    return (x - mean) / deviation * np.array(layer.gamma) + np.array(layer.beta)


def randomize(layer):
    for weight in layer.weights:
        weight.assign(RNG.normal(size=weight.shape) * 0.5)
    return layer


def attention(layer, x):
    """Returns the attention of queries and keys that are normalized over all heads together, in float64."""
    parts = [x @ np.array(part.kernel).reshape(D, D) + np.array(part.bias).ravel() for part in (layer.query, layer.key)]
    q, k = (norm(rows, part.layer_norm) for rows, part in zip(parts, (layer.query, layer.key)))
    v = x @ np.array(layer.value.kernel).reshape(D, D) + np.array(layer.value.bias).ravel()
    q, k, v = (rows.reshape(B, S, N, D // N) for rows in (q, k, v))
    scores = np.einsum("bqnh,bknh->bnqk", q, k) / math.sqrt(D // N)
    shares = np.exp(np.where(MASK[:, None, None], scores, -1e2))
    shares /= shares.sum(-1, keepdims=True)
    rows = np.einsum("bnqk,bknh->bqnh", shares, v).reshape(B, S, D)
    return rows @ np.array(layer.merge_heads.kernel).reshape(D, D) + np.array(layer.merge_heads.bias)


def test_queries_and_keys_are_normalized_over_all_heads():
    layer = NormalizedAttention(num_heads=N, hidden_size=D)
    layer.build((None, None, D))
    randomize(layer)
    wanted = attention(layer, X.astype("float64"))
    mask = MASK[:, None, None]
    np.testing.assert_allclose(layer(X, mask), wanted, atol=1e-5)
    np.testing.assert_allclose(
        layer(X, layout=TokenLayout(mask).at(np.array([[3], [0]])), queries=np.stack([X[0, 3:4], X[1, :1]])),
        np.stack([wanted[0, 3:4], wanted[1, :1]]),
        atol=1e-5,
    )


def test_a_layer_adds_its_input_twice():
    layer = TwiceNormLayer(
        num_heads=N, hidden_size=D, intermediate_size=10, hidden_act="relu", feed_forward="gated", unbiased="gate"
    )
    layer.build((None, None, D))
    randomize(layer)
    mask = MASK[:, None, None]
    x = X.astype("float64")
    y = norm(np.asarray(layer.attention(X, mask), "float64") + x, layer.attention_layer_norm)
    y = norm(x + y, layer.residual_layer_norm)
    first, second = np.split(y @ np.array(layer.intermediate.kernel), 2, -1)
    more = (np.maximum(first, 0) * second) @ np.array(layer.output_dense.kernel) + np.array(layer.output_dense.bias)
    np.testing.assert_allclose(layer(X, mask), norm(y + more, layer.output_layer_norm), atol=2e-5)


@pytest.mark.parametrize(
    ("unbiased", "without"),
    [
        ("", set()),
        ("gate", {"intermediate"}),
        (
            "products",
            {"intermediate", "output", *(f"attention/{part}" for part in ("query", "key", "value", "output"))},
        ),
    ],
)
def test_biases_are_left_out_by_part(unbiased, without):
    names = weights_by_name(make_encoder(dataclasses.replace(SMALL, feed_forward="gated", unbiased=unbiased)))
    kernels = {name.removesuffix("/kernel") for name in names if name.startswith("layer_0/") and "kernel" in name}
    assert {name for name in kernels if f"{name}/bias" not in names} == {f"layer_0/{name}" for name in without}
    assert {"pooler/bias", "layer_0/output_LayerNorm/beta", "embeddings/LayerNorm/beta"} <= set(names)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"rotary": 1e4}, "model.alibi: expected False beside rotary"),
        ({"first_position": 2}, "model.alibi: expected False beside first_position"),
        ({"window": 4}, "model.window: expected 0 beside alibi"),
        ({"alibi": False, "position_buckets": 8, "query_key_norm": True}, "model.query_key_norm: expected False"),
        ({"unbiased": "gate"}, "model.unbiased: expected gate beside feed_forward gated"),
        ({"rotary_factor": 2.0}, "model.rotary_factor"),
        ({"alibi": False, "rotary": 1e4, "rotary_factor": 0.0}, "model.rotary_factor: expected a number above 0"),
    ],
)
def test_contradictions_are_refused_by_name(change, said):
    with pytest.raises(ValueError, match=said):
        dataclasses.replace(SMALL, **change)
