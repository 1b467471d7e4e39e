"""One harness for every layer, and tests of each layer's own work."""

import keras
import numpy as np
import pytest
from keras import ops

from official_bert.layers.activations import ACTIVATIONS, get_activation
from official_bert.layers.attention import SelfAttention, attend
from official_bert.layers.attention_mask import make_attention_mask
from official_bert.layers.embeddings import Embeddings
from official_bert.layers.heads import MaskedLMHead, OutputLayer
from official_bert.layers.layer_norm import LayerNormalization
from official_bert.layers.token_layout import TokenLayout
from official_bert.layers.transformer import TransformerLayer

B, S, D, V = 2, 5, 8, 11
RNG = np.random.default_rng(0)
X = RNG.normal(size=(B, S, D)).astype("float32")
IDS = RNG.integers(0, V, (B, S))
SEGMENTS = np.array([[0, 0, 1, 1, 1]] * B)
MASK = np.array([[1, 1, 1, 1, 0], [1, 1, 1, 0, 0]], bool)[:, None, None, :]
TABLE = RNG.normal(size=(V, D)).astype("float32")
HARNESS = [
    (lambda **more: SelfAttention(num_heads=2, hidden_size=D, **more), (X, MASK), (B, S, D)),
    (lambda **more: TransformerLayer(num_heads=2, hidden_size=D, intermediate_size=16, **more), (X, MASK), (B, S, D)),
    (
        lambda **more: Embeddings(vocab_size=V, hidden_size=D, max_position_embeddings=S, **more),
        (IDS, SEGMENTS),
        (B, S, D),
    ),
    (lambda **more: MaskedLMHead(vocab_size=V, hidden_size=D, **more), (X, TABLE), (B, S, V)),
    (lambda **more: OutputLayer(num_classes=3, **more), (X,), (B, S, 3)),
    (lambda **more: LayerNormalization(**more), (X,), (B, S, D)),
]
NAMES = ["attention", "transformer", "embeddings", "masked_lm", "output", "layer_norm"]
has_dropout = {"attention", "transformer", "embeddings"}


@pytest.fixture(params=range(len(HARNESS)), ids=NAMES)
def case(request):
    return (NAMES[request.param], *HARNESS[request.param])


def test_a_layer_gives_the_same_eagerly_and_symbolically(case):
    _, make, inputs, shape = case
    layer = make()
    eager = ops.convert_to_numpy(layer(*inputs))
    assert eager.shape == shape
    symbolic = [keras.Input(batch_shape=np.shape(value), dtype=np.asarray(value).dtype.name) for value in inputs]
    model = keras.Model(symbolic, layer(*symbolic))
    np.testing.assert_allclose(ops.convert_to_numpy(model(list(inputs))), eager, rtol=1e-6, atol=1e-6)


def test_a_layer_comes_back_from_its_config_and_its_weights(case):
    _, make, inputs, _ = case
    layer = make()
    out = layer(*inputs)
    again = keras.saving.deserialize_keras_object(keras.saving.serialize_keras_object(layer))
    again(*inputs)
    again.set_weights(layer.get_weights())
    np.testing.assert_array_equal(ops.convert_to_numpy(again(*inputs)), ops.convert_to_numpy(out))


def test_dropout_acts_in_training_only_and_keeps_the_mean(case):
    name, make, inputs, _ = case
    layer = make()
    still = ops.convert_to_numpy(layer(*inputs))
    np.testing.assert_array_equal(ops.convert_to_numpy(layer(*inputs)), still)
    if name in has_dropout:
        assert np.abs(ops.convert_to_numpy(layer(*inputs, training=True)) - still).max() > 0


def test_bfloat16_stays_near_float32(case):
    _, make, inputs, _ = case
    full = make()
    out = ops.convert_to_numpy(full(*inputs))
    half = make(dtype="mixed_bfloat16")
    half(*inputs)
    half.set_weights(full.get_weights())
    assert all(weight.dtype == "float32" for weight in half.weights)
    near = np.asarray(ops.convert_to_numpy(ops.cast(half(*inputs), "float32")))
    assert np.abs(near - out).max() < 0.05 * max(1.0, np.abs(out).max())


def test_attention_is_that_of_the_paper():
    layer = SelfAttention(num_heads=2, hidden_size=D, initializer_range=0.5)
    out = ops.convert_to_numpy(layer(X, MASK))
    q, k, v = (
        np.einsum("bsd,dnh->bnsh", X, part.kernel.numpy()) + part.bias.numpy()[:, None]
        for part in (layer.query, layer.key, layer.value)
    )
    scores = np.einsum("bnqh,bnkh->bnqk", q, k) / np.sqrt(D / 2)
    powers = np.exp(scores - scores.max(-1, keepdims=True)) * MASK
    context = np.einsum("bnqk,bnkh->bqnh", powers / powers.sum(-1, keepdims=True), v)
    merged = np.einsum("bqnh,nhd->bqd", context, layer.merge_heads.kernel.numpy()) + layer.merge_heads.bias.numpy()
    np.testing.assert_allclose(out, merged, rtol=1e-4, atol=1e-5)


class EarlierAttention(SelfAttention):
    """Attention of one's own as docs/make_it_your_own.md had it before `SelfAttention.attend`."""

    def call(self, x, attention_mask, queries=None, training=None):
        layout = TokenLayout.of(attention_mask, queries)
        q = self.query(layout.query_rows(x, queries)) * self.scale
        q, k, v = layout.split_heads(q, self.key(x), self.value(x))
        kernel = self.kernel if queries is None else attend
        context = layout.attend(kernel, q, k, v, layout.positions.bias(self, q, k), self.dropout, training)
        return self.merge_heads(layout.merge_rows(context))


@pytest.mark.parametrize("kind", [SelfAttention, EarlierAttention])
def test_layers_take_the_names_of_earlier_versions(kind):
    fields = {"num_attention_heads": 2, "hidden_size": D, "attention_probs_dropout_prob": 0.0}
    earlier = {"num_heads": 2, "hidden_size": D, "dropout": 0.0}
    assert kind(**earlier).config == kind(**fields).config
    layer = TransformerLayer(intermediate_size=16, attention=kind(**earlier), **earlier)
    plain = TransformerLayer(intermediate_size=16, **fields)
    wanted = plain(X, MASK)
    layer.build(X.shape)
    layer.set_weights(plain.get_weights())
    np.testing.assert_allclose(layer(X, attention_mask=MASK), wanted, rtol=1e-6)
    np.testing.assert_allclose(layer.attention(X, attention_mask=MASK), plain.attention(X, MASK), rtol=1e-6)
    some = layer(X, MASK, queries=X[:, 1:3])
    np.testing.assert_allclose(some, np.asarray(wanted)[:, 1:3], rtol=1e-5, atol=1e-6)


def test_attention_ignores_what_stands_behind_the_mask():
    layer = SelfAttention(num_heads=2, hidden_size=D)
    clean = ops.convert_to_numpy(layer(X, MASK))
    dirty = X.copy()
    dirty[0, 4], dirty[1, 3:] = 1e3, -1e3
    seen = MASK[:, 0, 0]
    np.testing.assert_allclose(ops.convert_to_numpy(layer(dirty, MASK))[seen], clean[seen], rtol=1e-5, atol=1e-6)


def test_a_row_that_sees_nothing_is_finite():
    layer = TransformerLayer(num_heads=2, hidden_size=D, intermediate_size=16)
    assert np.isfinite(ops.convert_to_numpy(layer(X, np.zeros_like(MASK)))).all()


def test_the_mask_keeps_packed_instances_apart():
    mask = make_attention_mask(np.array([[1, 1, 1, 0]]), np.array([[0, 0, 1, 2]]))
    assert ops.convert_to_numpy(mask)[0, 0].tolist() == [
        [True, True, False, False],
        [True, True, False, False],
        [False, False, True, False],
        [False] * 4,
    ]


def test_embeddings_are_summed_and_normalised():
    layer = Embeddings(vocab_size=V, hidden_size=D, max_position_embeddings=S)
    out = ops.convert_to_numpy(layer(IDS, SEGMENTS))
    summed = (
        layer.word_embeddings.numpy()[IDS]
        + layer.token_type_embeddings.numpy()[SEGMENTS]
        + layer.position_embeddings.numpy()[None]
    )
    wanted = (summed - summed.mean(-1, keepdims=True)) / np.sqrt(summed.var(-1, keepdims=True) + 1e-12)
    np.testing.assert_allclose(out, wanted, rtol=1e-4, atol=1e-4)
    restarted = ops.convert_to_numpy(layer(IDS[:, 2:], SEGMENTS[:, 2:], np.array([[2, 3, 4]] * B)))
    np.testing.assert_allclose(restarted, out[:, 2:], rtol=1e-5, atol=1e-6)


def test_a_sequence_longer_than_the_position_table_is_refused():
    layer = Embeddings(vocab_size=V, hidden_size=D, max_position_embeddings=S - 1)
    with pytest.raises(ValueError, match="5 tokens is longer than the model's 4 positions"):
        layer(IDS, SEGMENTS)


@pytest.mark.parametrize(
    ("name", "value"), [("gelu", 0.841192), ("gelu_erf", 0.841345), ("relu", 1.0), ("tanh", 0.761594), ("linear", 1.0)]
)
def test_activations_at_one(name, value):
    assert float(get_activation(name)(np.float32(1.0))) == pytest.approx(value, abs=2e-6)


def test_an_unknown_activation_is_refused():
    with pytest.raises(ValueError, match="expected one of .*gelu"):
        get_activation("swish")
    assert set(ACTIVATIONS) == {"gelu", "gelu_erf", "relu", "silu", "tanh", "linear"}


def test_bfloat16_runs_add_embeddings_in_float32():
    layer = Embeddings(vocab_size=V, hidden_size=D, max_position_embeddings=S, dropout=0.0, dtype="mixed_bfloat16")
    layer.build()
    rng = np.random.default_rng(0)
    # Segments cancel words but for the last bits, which bfloat16 does not have.
    words = rng.normal(size=(V, D)).astype("float32")
    layer.word_embeddings.assign(words)
    layer.token_type_embeddings.assign(np.stack([-words[1] + rng.normal(scale=1e-3, size=D), words[0]]))
    layer.position_embeddings.assign(np.zeros((S, D), "float32"))
    summed = words[1] + layer.token_type_embeddings.numpy()[0]
    wanted = (summed - summed.mean()) / np.sqrt(summed.var() + 1e-12)
    found = ops.convert_to_numpy(ops.cast(layer(np.array([[1]]), np.array([[0]])), "float32"))[0, 0]
    assert np.abs(wanted).max() > 1
    np.testing.assert_allclose(found, wanted, rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 2e-6), ("mixed_bfloat16", 1e-2)])
@pytest.mark.parametrize("mean", [0.0, 500.0], ids=["", "far from 0"])
def test_layer_norm_is_that_of_its_paper(dtype, tolerance, mean):
    # Multiples of 1/8 around 500 are numbers of float32, so that all rounding is the layer's own.
    x = (np.round(X * 8) / 8 + mean) if dtype == "float32" else X
    layer = LayerNormalization(epsilon=1e-12, dtype=dtype)
    layer.build((None, None, D))
    gamma, beta = RNG.normal(size=(2, D))
    layer.set_weights([gamma, beta])
    wide = x.astype("float64")
    wanted = (wide - wide.mean(-1, keepdims=True)) / wide.std(-1, keepdims=True) * gamma + beta
    found = layer(x)
    assert keras.backend.standardize_dtype(found.dtype) == layer.compute_dtype
    np.testing.assert_allclose(ops.convert_to_numpy(ops.cast(found, "float32")), wanted, rtol=tolerance, atol=tolerance)


def test_layer_norm_of_equal_numbers_is_its_bias():
    layer = LayerNormalization(epsilon=1e-12)
    layer.build((None, D))
    layer.beta.assign(np.arange(D))
    np.testing.assert_array_equal(ops.convert_to_numpy(layer(np.full((2, D), 3.25, "float32"))), [np.arange(D)] * 2)


def test_layer_norm_without_center_has_no_bias():
    layer = LayerNormalization(center=False, epsilon=1e-5)
    wanted = (X - X.mean(-1, keepdims=True)) / np.sqrt(X.var(-1, keepdims=True) + 1e-5)
    np.testing.assert_allclose(ops.convert_to_numpy(layer(X)), wanted, atol=1e-5)
    assert [weight.name for weight in layer.weights] == ["gamma"]


@pytest.mark.filterwarnings("ignore:You passed `rms_scaling=True`")
@pytest.mark.parametrize("option", [{"axis": 1}, {"axis": [-1, -2]}, {"scale": False}, {"rms_scaling": True}])
def test_layer_norm_refuses_what_it_does_not_compute(option):
    with pytest.raises(ValueError, match="expected axis=-1"):
        LayerNormalization(**option)
