"""Smoothed and weighted losses against Keras and NumPy."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from official_bert.training import losses

LOGITS = np.random.default_rng(0).normal(size=(6, 4)).astype("float32") * 3
LABELS = np.array([0, 3, 1, 1, 2, 0], np.int32)
WEIGHTS = np.array([0.5, 2.0, 1.0, 1.0, 0.0, 3.0], np.float32)


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.4])
def test_smoothed_labels_are_those_of_keras(smoothing):
    total, weight = losses.cross_entropy(tf.constant(LOGITS), LABELS, tf.constant(WEIGHTS), smoothing)
    each = keras.losses.CategoricalCrossentropy(from_logits=True, label_smoothing=smoothing, reduction=None)(np.eye(4)[LABELS], LOGITS)
    assert float(total) == pytest.approx(float((each.numpy() * WEIGHTS).sum()), rel=1e-5) and float(weight) == WEIGHTS.sum()
    targets = (LOGITS > 1).astype("float32")
    total, _ = losses.binary_cross_entropy(tf.constant(LOGITS), targets, tf.constant(WEIGHTS), smoothing=smoothing)
    each = keras.losses.BinaryCrossentropy(from_logits=True, label_smoothing=smoothing, reduction=None)(targets, LOGITS)
    assert float(total) == pytest.approx(float((each.numpy() * WEIGHTS).sum()), rel=1e-5)


def test_smoothing_leaves_out_the_choices_that_a_row_lacks():
    few = np.array([[1.0, -2.0, losses.ABSENT, losses.ABSENT]], np.float32)
    found, _ = losses.cross_entropy(tf.constant(few), [0], tf.ones(1), 0.2)
    wanted, _ = losses.cross_entropy(tf.constant(few[:, :2]), [0], tf.ones(1), 0.2)
    assert float(found) == pytest.approx(float(wanted), rel=1e-6)


def test_positive_rows_are_weighted_as_in_the_formula():
    targets = (LOGITS > 1).astype("float32")
    weights = np.array([1.0, 2.0, 0.5, 4.0], np.float32)
    found, rows = losses.binary_cross_entropy(tf.constant(LOGITS), targets, tf.ones(6), tf.constant(np.where(targets == 1, weights, 1.0),
                                                                                                   tf.float32))
    probability = 1 / (1 + np.exp(-LOGITS.astype("float64")))
    wanted = -(weights * targets * np.log(probability) + (1 - targets) * np.log(1 - probability)).mean(axis=1).sum()
    assert float(found) == pytest.approx(wanted, rel=1e-5) and float(rows) == 6.0
