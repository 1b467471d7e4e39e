"""Attention whose weights are made again for the backward pass: values, gradients, masks of dropout, and that it
happens.
"""

import numpy as np
import pytest
import tensorflow as tf

from official_bert.layers import attention
from official_bert.layers.attention import SelfAttention
from official_bert.layers.attention_mask import make_attention_mask
from official_bert.layers.speed import fused

B, S, N, D = 5, 6, 2, 8
RNG = np.random.default_rng(3)
X = tf.constant(RNG.normal(size=(B, S, D)), tf.float32)
UPSTREAM = tf.constant(RNG.normal(size=(B, S, D)), tf.float32)
MASK = make_attention_mask(np.arange(S) < np.array([[6], [4], [1], [6], [5]]))
PACKED = make_attention_mask(np.ones((B, S)), instance_ids=np.array([[1, 1, 2, 2, 2, 3]] * B))


def trained(layer, mask, jit_compile=None, rows=B):
    """Returns what a layer gives in training, and the gradients of its input and of its weights. The graph knows of
    `rows` rows; None: of any number.
    """
    seeds = [tf.constant([5, 9], variable.dtype) for variable in layer.non_trainable_variables]

    @tf.function(jit_compile=jit_compile, autograph=False)
    def run(x, *weights):
        x = tf.compat.v1.placeholder_with_default(x, (rows, S, D))
        with tf.GradientTape() as tape:
            tape.watch([x, *weights])
            found, states = layer.stateless_call(weights, seeds, x, mask, training=True)
        return found, tape.gradient(found, [x, *weights], output_gradients=UPSTREAM), states

    return run(X, *[tf.convert_to_tensor(weight) for weight in layer.trainable_variables])


def made(recompute, dropout):
    layer = SelfAttention(num_heads=N, hidden_size=D, dropout=dropout, recompute=recompute, initializer_range=0.3)
    layer.build((None, None, D))
    return layer


@pytest.mark.parametrize(
    ("block", "dropout", "pieces", "jit_compile", "rows"),
    [
        (10_000, 0.3, True, None, B),
        (2 * N * S * S, 0.0, True, None, B),
        (1, 0.0, False, None, B),
        (10_000, 0.3, False, True, B),
        (1, 0.3, False, None, None),
    ],
    ids=["one block", "two rows", "a row", "compiled", "any number of rows"],
)
def test_values_and_gradients_are_those_of_weights_that_are_kept(
    monkeypatch, block, dropout, pieces, jit_compile, rows
):
    monkeypatch.setattr(attention, "BLOCK", block)
    monkeypatch.setattr(fused, "LEAST", 1 if pieces else 2**60)
    kept, again = made(False, dropout), made(True, dropout)
    again.set_weights(kept.get_weights())
    for mask in (MASK, PACKED):
        (wanted, gradients, _), (found, others, _) = (
            trained(layer, mask, jit_compile, rows) for layer in (kept, again)
        )
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)
        assert len(gradients) == 9
        for one, other in zip(others, gradients):
            np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)


def test_each_block_has_masks_of_its_own_and_the_backward_pass_has_the_same_ones(monkeypatch):
    monkeypatch.setattr(attention, "BLOCK", 1)
    layer = made(True, 0.4)
    layer.value.bias.assign(tf.zeros_like(layer.value.bias))
    layer.merge_heads.bias.assign(tf.zeros_like(layer.merge_heads.bias))
    same = tf.repeat(X[:1], B, axis=0)
    rows, gradients, [state] = trained(layer, MASK[:1] | tf.ones((B, 1, 1, 1), tf.bool))
    assert state.numpy().tolist() == [5, 9 + B]  # a seed a block
    # The output is linear in the kernel of the values: <kernel, its gradient> = <output, its gradient>, if the masks
    # are the same.
    kernel = next(
        index for index, weight in enumerate(layer.trainable_variables) if weight.path.endswith("value/kernel")
    )
    left = tf.reduce_sum(gradients[1 + kernel] * layer.trainable_variables[kernel])
    assert float(left) == pytest.approx(float(tf.reduce_sum(rows * UPSTREAM)), rel=1e-4)
    found = layer(same, tf.repeat(MASK[:1], B, axis=0), training=True).numpy()
    assert all(np.abs(found[one] - found[other]).max() > 1e-3 for one in range(B) for other in range(one))


def test_weights_are_made_again_in_training_alone_and_not_for_a_few_rows():
    def softmaxes(layer, training, queries=None):
        @tf.function(autograph=False)
        def run(x):
            with tf.GradientTape() as tape:
                tape.watch(x)
                found = layer(x, MASK, queries=queries, training=training)
            return tape.gradient(found, x)

        return sum(node.op == "Softmax" for node in run.get_concrete_function(X).graph.as_graph_def().node)

    assert (
        softmaxes(made(False, 0.1), True)
        == softmaxes(made(True, 0.1), False)
        == softmaxes(made(True, 0.1), True, X[:, :2])
        == 1
    )
    assert softmaxes(made(True, 0.1), True) == 2
