"""Smoothed and weighted losses against Keras and NumPy."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from official_bert.objectives import losses

LOGITS = np.random.default_rng(0).normal(size=(6, 4)).astype("float32") * 3
LABELS = np.array([0, 3, 1, 1, 2, 0], np.int32)
WEIGHTS = np.array([0.5, 2.0, 1.0, 1.0, 0.0, 3.0], np.float32)


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.4])
def test_smoothed_labels_are_those_of_keras(smoothing):
    total, weight = losses.cross_entropy(tf.constant(LOGITS), LABELS, tf.constant(WEIGHTS), smoothing)
    each = keras.losses.CategoricalCrossentropy(from_logits=True, label_smoothing=smoothing, reduction=None)(
        np.eye(4)[LABELS], LOGITS
    )
    assert (
        float(total) == pytest.approx(float((each.numpy() * WEIGHTS).sum()), rel=1e-5)
        and float(weight) == WEIGHTS.sum()
    )
    targets = (LOGITS > 1).astype("float32")
    total, _ = losses.binary_cross_entropy(tf.constant(LOGITS), targets, tf.constant(WEIGHTS), smoothing=smoothing)
    each = keras.losses.BinaryCrossentropy(from_logits=True, label_smoothing=smoothing, reduction=None)(targets, LOGITS)
    assert float(total) == pytest.approx(float((each.numpy() * WEIGHTS).sum()), rel=1e-5)


def test_smoothing_leaves_out_the_choices_that_a_row_lacks():
    few = np.array([[1.0, -2.0, losses.ABSENT, losses.ABSENT]], np.float32)
    found, _ = losses.cross_entropy(tf.constant(few), tf.constant([0]), tf.ones(1), 0.2)
    wanted, _ = losses.cross_entropy(tf.constant(few[:, :2]), tf.constant([0]), tf.ones(1), 0.2)
    assert float(found) == pytest.approx(float(wanted), rel=1e-6)


def test_positive_rows_are_weighted_as_in_the_formula():
    targets = (LOGITS > 1).astype("float32")
    weights = np.array([1.0, 2.0, 0.5, 4.0], np.float32)
    found, rows = losses.binary_cross_entropy(
        tf.constant(LOGITS), targets, tf.ones(6), tf.constant(np.where(targets == 1, weights, 1.0), tf.float32)
    )
    probability = 1 / (1 + np.exp(-LOGITS.astype("float64")))
    wanted = -(weights * targets * np.log(probability) + (1 - targets) * np.log(1 - probability)).mean(axis=1).sum()
    assert float(found) == pytest.approx(wanted, rel=1e-5) and float(rows) == 6.0


@pytest.mark.parametrize("shape", [(7, 4), (2, 3, 33)])
def test_likelihoods_and_their_gradients_are_those_of_the_formula(shape):
    rng = np.random.default_rng(3)
    # far apart: some labels have a probability that float32 rounds to 0
    logits = (rng.normal(size=shape) * 20).astype("float32")
    logits[..., 1] = losses.ABSENT
    logits[0, ..., 2:] = logits[0, ..., 2:].max()  # equal largest ones
    labels, weights = rng.integers(2, shape[-1], shape[:-1]), rng.random(shape[:-1]).astype("float32")
    with tf.GradientTape() as tape:
        given = tf.Variable(logits)
        total, _ = losses.cross_entropy(given, labels, tf.constant(weights))
    exact = logits.astype("float64")
    powers = np.exp(exact - exact.max(-1, keepdims=True))
    sums = powers.sum(-1, keepdims=True)
    each = np.log(sums[..., 0]) + exact.max(-1) - np.take_along_axis(exact, labels[..., None], -1)[..., 0]
    np.testing.assert_allclose(losses.negative_log_likelihoods(tf.constant(logits), labels), each, rtol=1e-6, atol=1e-6)
    assert float(total) == pytest.approx(float((each * weights).sum()), rel=1e-6)
    wanted = (powers / sums - np.eye(shape[-1])[labels]) * weights[..., None]
    np.testing.assert_allclose(tape.gradient(total, given), wanted, rtol=1e-5, atol=1e-7)
    right, _ = losses.accuracy(tf.constant(logits), labels, tf.constant(weights))
    assert float(right) == pytest.approx(float(((exact.argmax(-1) == labels) * weights).sum()), rel=1e-6)


@pytest.mark.parametrize("compiled", [False, True])
def test_likelihoods_are_tensorflows_with_unknown_shapes_and_compiled(compiled):
    rng = np.random.default_rng(4)

    def made(function):
        @tf.function(
            input_signature=[tf.TensorSpec((None, None, None)), tf.TensorSpec((None, None), tf.int64)],
            jit_compile=compiled,
            autograph=False,
        )
        def both(logits, labels):
            with tf.GradientTape() as tape:
                tape.watch(logits)
                total = tf.reduce_sum(function(logits, labels) ** 2)
            return total, tape.gradient(total, logits)

        return both

    for rows, places, classes in ((2, 3, 5), (4, 1, 300)):
        logits, labels = (
            tf.constant(rng.normal(size=(rows, places, classes)), tf.float32),
            rng.integers(0, classes, (rows, places)),
        )
        found = made(losses.negative_log_likelihoods)(logits, labels)
        wanted = made(lambda x, y: tf.nn.sparse_softmax_cross_entropy_with_logits(labels=y, logits=x))(logits, labels)
        for one, other in zip(found, wanted):
            np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


def test_a_logit_that_is_not_finite_makes_a_loss_that_is_not_finite():
    for value in (np.nan, np.inf):
        logits = LOGITS.copy()
        logits[2, 0] = value
        assert not np.isfinite(float(losses.cross_entropy(tf.constant(logits), LABELS, tf.constant(WEIGHTS))[0]))


@pytest.mark.parametrize("width", [3, 4095, 4096, 8000, 30522, 4099], ids=lambda width: f"{width} logits")
def test_the_largest_place_is_the_first_of_equal_ones(width):
    rows = np.random.default_rng(width).integers(0, 50, (40, width)).astype(np.float32)  # with many equal ones
    rows[0], rows[1, -1], rows[2, width // 2] = 7, 99, 99
    np.testing.assert_array_equal(losses.largest_places(tf.constant(rows)), rows.argmax(axis=-1))
