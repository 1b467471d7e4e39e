"""Low-rank adapters of dense layers, against NumPy."""

import numpy as np
import pytest
import tensorflow as tf

from official_bert.layers.adapters import attach
from official_bert.layers.dense import Dense


def adapted(shape, input_shape, contracted_axes=1, **settings):
    """Returns a dense layer with an adapter whose B is not 0."""
    layer = Dense(shape, contracted_axes, name="query")
    layer.build((None, *input_shape))
    attach(layer, **settings)
    up = layer.adapter.lora_B
    up.assign(np.random.default_rng(1).normal(size=up.shape))
    return layer


@pytest.mark.parametrize(("shape", "input_shape", "contracted_axes"), [(5, (6,), 1), ((2, 3), (6,), 1), (5, (2, 3), 2)])
def test_product_and_gradients_are_those_of_the_formula(shape, input_shape, contracted_axes):
    layer = adapted(shape, input_shape, contracted_axes, rank=2, scale=0.5)
    x = np.random.default_rng(0).normal(size=(3, 4, *input_shape)).astype("float32")
    kernel, down, up = (
        np.reshape(weight, (-1, width))
        for weight, width in (
            (layer.kernel, layer.units),
            (layer.adapter.lora_A, 2),
            (layer.adapter.lora_B, layer.units),
        )
    )
    with tf.GradientTape() as tape:
        found = layer(x, training=True)
        loss = tf.reduce_sum(tf.square(found))
    gradients = tape.gradient(loss, [layer.adapter.lora_A.value, layer.adapter.lora_B.value])
    rows = x.reshape(-1, 6)
    wanted = rows @ kernel + 0.5 * (rows @ down) @ up
    np.testing.assert_allclose(np.reshape(found, wanted.shape), wanted, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(gradients[0], 0.5 * rows.T @ (2 * wanted) @ up.T, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(gradients[1], 0.5 * (rows @ down).T @ (2 * wanted), rtol=1e-4, atol=1e-5)


def test_an_adapter_begins_with_nothing_and_its_dropout_leaves_the_fixed_product_alone():
    layer = Dense(5)
    layer.build((None, 16))
    x = np.random.default_rng(0).normal(size=(64, 16)).astype("float32")
    plain = np.array(layer(x))
    attach(layer, rank=4, scale=2.0, dropout=0.5)
    np.testing.assert_array_equal(layer(x, training=True), plain)
    assert np.abs(layer.adapter.lora_A).max() <= 0.25 and layer.adapter.lora_A.path.endswith("adapter/lora_A")
    layer.adapter.lora_A.assign(np.eye(16, 4))
    layer.adapter.lora_B.assign(np.eye(4, 5))
    added = np.array(layer(x, training=True)) - plain  # 2 x of the first four, doubled or dropped
    share = added[:, :4] / (2 * x[:, :4])
    assert set(np.round(share, 3).ravel()) == {0.0, 2.0} and not added[:, 4].any()
    np.testing.assert_allclose(np.array(layer(x)) - plain, np.pad(2 * x[:, :4], ((0, 0), (0, 1))), rtol=1e-4, atol=1e-5)
