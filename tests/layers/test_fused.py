"""The compiled pieces of a training step beside plain chains of operations: values, gradients, masks of dropout."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import ops

from official_bert.layers import attention, transformer
from official_bert.layers.activations import get_activation
from official_bert.layers.attention import SelfAttention
from official_bert.layers.attention_mask import UNSEEN, make_attention_mask
from official_bert.layers.heads import MaskedLMHead
from official_bert.layers.speed import fused
from official_bert.layers.speed.computing import computing
from official_bert.layers.transformer import TransformerLayer

B, S, D, V = 3, 6, 8, 23
RNG = np.random.default_rng(5)
X = RNG.normal(size=(B, S, D)).astype("float32")
MASK = make_attention_mask(np.array([[1] * 6, [1] * 4 + [0] * 2, [1] + [0] * 5]))


@pytest.fixture(autouse=True)
def least(monkeypatch):
    """Small tensors are computed by pieces here."""
    monkeypatch.setattr(fused, "LEAST", 1)


def plain_sum(x, residual, dropout, norm, training):
    return norm(residual + dropout(x, training=training))


def plain_weights(scores, mask, dropout, dtype, training):
    shares = ops.softmax(ops.where(mask, ops.cast(scores, "float32"), UNSEEN), axis=-1)
    return ops.cast(dropout(shares, training=training), dtype)


def trained(layer, *inputs, compiled=None):
    """Returns a layer's result in training with seeds of its own, and the gradients of its first input and of its
    weights.
    """
    seeds = [tf.constant([7, number], site.dtype) for number, site in enumerate(layer.non_trainable_variables)]

    def run(x, weights):
        with tf.GradientTape() as tape:
            tape.watch([x, *weights])
            found, _ = layer.stateless_call(weights, seeds, x, *inputs, training=True)
            total = tf.reduce_sum(tf.cast(found, tf.float32) * tf.range(float(D)))
        return [tf.cast(part, tf.float32) for part in (found, *tape.gradient(total, [x, *weights]))]

    run = run if compiled is None else tf.function(run, jit_compile=compiled, autograph=False)
    return run(tf.cast(X, layer.compute_dtype), [tf.convert_to_tensor(weight) for weight in layer.trainable_variables])


@pytest.mark.parametrize("name", ["gelu", "gelu_erf"])
@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 3e-6), ("bfloat16", 2e-2)])
def test_activations_and_their_gradients_are_those_of_float64(monkeypatch, name, dtype, tolerance):
    x = tf.cast(np.linspace(-6, 6, 241), dtype)
    exact = tf.cast(x, tf.float64)
    run, compiled = fused.run_compiled, []
    monkeypatch.setattr(
        fused, "run_compiled", lambda *tensors, **options: compiled.append(1) or run(*tensors, **options)
    )
    results = []
    for given, training in ((x, True), (exact, False)):
        with tf.GradientTape() as tape:
            tape.watch(given)
            value = get_activation(name)(given, training=training)
        results.append((value, tape.gradient(value, given, output_gradients=tf.cast(tf.sin(exact), value.dtype))))
    assert len(compiled) == 2  # the activation and its gradient, in training alone
    for one, other in zip(*results):
        assert one.dtype == x.dtype
        np.testing.assert_allclose(tf.cast(one, tf.float64), other, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("rate", [0.0, 0.4])
@pytest.mark.parametrize(("policy", "tolerance"), [("float32", 2e-5), ("mixed_bfloat16", 0.1)])
def test_a_layer_of_pieces_trains_as_the_plain_one_dropout_included(monkeypatch, rate, policy, tolerance):
    layer = TransformerLayer(
        num_heads=2,
        hidden_size=D,
        intermediate_size=16,
        dropout=rate,
        attention_dropout=rate,
        initializer_range=0.3,
        dtype=policy,
    )
    layer.build((None, None, D))
    layer.attention_layer_norm.gamma.assign(RNG.normal(size=D))
    found = trained(layer, MASK)
    monkeypatch.setattr(attention, "attention_weights", plain_weights)
    monkeypatch.setattr(transformer, "normalized_sum", plain_sum)
    monkeypatch.setattr(layer.activation, "function", lambda x, training: get_activation("gelu")(x))
    wanted = trained(layer, MASK)
    assert len(found) == 18
    for one, other in zip(found, wanted):
        np.testing.assert_allclose(one, other, rtol=tolerance, atol=tolerance * max(1.0, float(np.abs(other).max())))
    if not rate:
        still = layer(tf.cast(X, layer.compute_dtype), MASK)
        np.testing.assert_allclose(found[0], tf.cast(still, tf.float32), atol=tolerance)


@pytest.mark.parametrize("compiled", [False, True])
def test_a_layer_of_pieces_gives_the_same_in_graphs_and_inside_another_compilation(compiled):
    layer = TransformerLayer(num_heads=2, hidden_size=D, intermediate_size=16, dropout=0.3, attention_dropout=0.3)
    layer.build((None, None, D))
    for one, other in zip(trained(layer, MASK), trained(layer, MASK, compiled=compiled)):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("rate", [0.0, 0.3])
def test_a_layer_of_pieces_for_every_length_gives_the_same_as_for_known_shapes(rate):
    layer = TransformerLayer(num_heads=2, hidden_size=D, intermediate_size=16, dropout=rate, attention_dropout=rate)
    layer.build((None, None, D))
    seeds = [tf.constant([7, number], site.dtype) for number, site in enumerate(layer.non_trainable_variables)]

    @tf.function(
        input_signature=[tf.TensorSpec((None, None, D)), tf.TensorSpec((None, 1, 1, None), tf.bool)], autograph=False
    )
    def run(x, mask):
        weights = [tf.convert_to_tensor(weight) for weight in layer.trainable_variables]
        with computing(compiles_every_length=True), tf.GradientTape() as tape:
            tape.watch([x, *weights])
            found, _ = layer.stateless_call(weights, seeds, x, mask, training=True)
            total = tf.reduce_sum(found * tf.range(float(D)))
        return [found, *tape.gradient(total, [x, *weights])]

    for one, other in zip(run(X, MASK), trained(layer, MASK)):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)
    shorter = run(X[:, :4], MASK[..., :4])[0]  # another length in the same graph
    assert shorter.shape == (B, 4, D) and np.isfinite(shorter).all()
    if not rate:
        np.testing.assert_allclose(shorter, layer(X[:, :4], MASK[..., :4]), atol=2e-5)


def test_a_row_that_sees_nothing_has_a_finite_gradient():
    layer = SelfAttention(num_heads=2, hidden_size=D)
    layer.build((None, None, D))
    assert all(np.isfinite(part).all() for part in trained(layer, np.zeros_like(MASK)))


def test_masks_of_dropout_are_functions_of_the_seed_and_keep_the_rate():
    layer, x = fused.Dropout(0.1), tf.ones((40, 500))

    def dropped(seed):
        found, _ = layer.stateless_call([], [tf.constant(seed, layer.seed_generator.state.dtype)], x, training=True)
        return found.numpy()

    first = dropped([1, 2])
    np.testing.assert_array_equal(first, dropped([1, 2]))
    assert (first != dropped([1, 3])).any() and (first != dropped([2, 2])).any()
    assert set(np.unique(first)) == {np.float32(0), np.float32(1 / 0.9)}
    assert abs((first == 0).mean() - 0.1) < 0.01  # 20,000 numbers: 5 standard deviations
    np.testing.assert_array_equal(layer(x), x)
    with tf.GradientTape() as tape:
        tape.watch(x)
        found = layer(x, training=True)
    np.testing.assert_array_equal(tape.gradient(found, x), found)  # of ones


def test_the_heads_logits_and_gradients_are_those_of_numpy():
    head, table = (
        MaskedLMHead(vocab_size=V, hidden_size=D, hidden_act="linear"),
        RNG.normal(size=(V, D)).astype("float32"),
    )
    head.build((None, None, D))
    head.output_bias.assign(RNG.normal(size=V))
    rows = head.layer_norm(head.transform(X)).numpy()
    upstream = RNG.normal(size=(B, S, V)).astype("float32")
    with tf.GradientTape() as tape:
        given = tf.Variable(table)
        logits = head(X, given, training=True)
    gradients = tape.gradient(logits, [given, head.output_bias.value], output_gradients=upstream)
    np.testing.assert_allclose(logits, rows @ table.T + head.output_bias.numpy(), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(gradients[0], np.einsum("bpv,bpd->vd", upstream, rows), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(gradients[1], upstream.sum((0, 1)), rtol=1e-5, atol=1e-5)


def test_only_training_on_large_tensors_of_known_shapes_is_compiled(monkeypatch):
    layer = TransformerLayer(num_heads=2, hidden_size=D, intermediate_size=16)
    layer.build((None, None, D))

    def compiled(training, rows=B):
        graph = (
            tf.function(lambda x: layer(x, MASK[:1], training=training), autograph=False)
            .get_concrete_function(tf.TensorSpec((rows, S, D)))
            .graph
        )
        return [node.signature.name for node in graph.as_graph_def().library.function if "_XlaMustCompile" in node.attr]

    assert compiled(True) and not compiled(False) and not compiled(True, rows=None)
    with computing(compiles_every_length=True):
        assert compiled(True, rows=None) and not compiled(False, rows=None)
    with computing(compiles_every_length=False):
        assert not compiled(True, rows=None)
    monkeypatch.setattr(fused, "LEAST", B * S * 16)
    assert len(compiled(True)) == 1  # the activation of [B*S,16] alone
    monkeypatch.setattr(fused, "LEAST", B * S * 16 + 1)
    assert not compiled(True)
    assert isinstance(layer.output_dropout, keras.layers.Dropout)
