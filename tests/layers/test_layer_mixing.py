"""Mixtures of an encoder's layers, against NumPy."""

import keras
import numpy as np
import pytest

from official_bert.layers.layer_mixing import LayerMixing, chosen_layers


@pytest.mark.parametrize(
    ("features", "count", "wanted"),
    [
        ("embeddings", 4, [0]),
        ("last", 4, [12]),
        ("second_to_last", 4, [11]),
        ("concat", 4, [9, 10, 11, 12]),
        ("sum", 1, [12]),
        ("weighted_sum", 0, list(range(1, 13))),
    ],
)
def test_layers_are_those_of_table_7(features, count, wanted):
    assert chosen_layers(features, count, 12) == wanted


@pytest.mark.parametrize("count", [-1, 13])
def test_more_layers_than_there_are_is_refused(count):
    with pytest.raises(ValueError, match=r"feature_layers: expected 0 \(all\) to 12"):
        chosen_layers("concat", count, 12)


def test_layers_are_added_or_stand_side_by_side():
    x = np.random.default_rng(0).normal(size=(2, 5, 3, 4)).astype(np.float32)
    np.testing.assert_allclose(LayerMixing("sum")(x), x.sum(axis=2), rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(LayerMixing("concat")(x), x.reshape(2, 5, 12))
    np.testing.assert_array_equal(LayerMixing("last")(x[:, :, :1]), x[:, :, 0])


def test_a_weighted_sum_is_a_softmax_over_layers_times_a_factor_and_begins_as_the_mean():
    x = np.random.default_rng(1).normal(size=(2, 5, 3, 4)).astype(np.float32)
    layer = LayerMixing("weighted_sum")
    np.testing.assert_allclose(layer(x), x.mean(axis=2), rtol=1e-5, atol=1e-6)
    scores, factor = np.array([0.3, -1.2, 2.0], np.float32), np.float32(1.7)
    layer.set_weights([scores, factor])
    shares = np.exp(scores) / np.exp(scores).sum()
    np.testing.assert_allclose(layer(x), factor * np.tensordot(x, shares, (2, 0)), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("features", "width"), [("sum", 4), ("concat", 12), ("weighted_sum", 4)])
def test_the_width_is_told_beforehand_and_the_layer_comes_back_from_its_configuration(features, width):
    layer = LayerMixing(features)
    assert layer.compute_output_shape((None, None, 3, 4)) == (None, None, width)
    again = keras.saving.deserialize_keras_object(keras.saving.serialize_keras_object(layer))
    assert again.features == layer.features
