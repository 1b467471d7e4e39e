"""Losses on what a teacher says against NumPy written from the papers."""

import numpy as np
import pytest
import scipy.special
import tensorflow as tf

from official_bert.objectives import distillation_losses as losses

RNG = np.random.default_rng(0)
WEIGHTS = np.array([1.0, 2.0, 0.0], np.float32)


def numbers(*shape):
    return RNG.normal(size=shape).astype("float32")


def kl(theirs, ours):
    """Sum of p log(p / q) over the last axis."""
    return np.sum(theirs * (np.log(theirs) - np.log(ours)), axis=-1)


@pytest.mark.parametrize("temperature", [1.0, 2.5])
def test_the_divergence_is_that_of_hinton_and_others(temperature):
    ours, theirs = numbers(3, 5), numbers(3, 5)
    total, weight = losses.divergence(ours, theirs, WEIGHTS, temperature)
    each = temperature**2 * kl(*(scipy.special.softmax(values / temperature, axis=-1) for values in (theirs, ours)))
    assert float(weight) == 3.0 and float(total) == pytest.approx(float(np.sum(each * WEIGHTS)), rel=1e-5)
    present = np.array([[1, 1, 1, 0, 0]] * 3, bool)
    total = losses.divergence(ours, theirs, WEIGHTS, temperature, tf.constant(present))[0]
    each = temperature**2 * kl(
        *(scipy.special.softmax(values[:, :3] / temperature, axis=-1) for values in (theirs, ours))
    )
    assert float(total) == pytest.approx(float(np.sum(each * WEIGHTS)), rel=1e-5)


def test_independent_labels_are_choices_between_yes_and_no():
    ours, theirs = numbers(3, 4), numbers(3, 4)
    total, weight = losses.binary_divergence(ours, theirs, WEIGHTS, 2.0)
    pairs = (
        np.stack([scipy.special.expit(values / 2), scipy.special.expit(-values / 2)], axis=-1)
        for values in (theirs, ours)
    )
    assert float(weight) == 3.0 and float(total) == pytest.approx(
        float(np.sum(4.0 * kl(*pairs).mean(axis=-1) * WEIGHTS)), rel=1e-5
    )


def test_the_cosine_of_states_is_that_of_distilbert():
    ours, theirs = numbers(3, 6), numbers(3, 6)
    cosines = [a @ b / np.linalg.norm(a) / np.linalg.norm(b) for a, b in zip(ours, theirs)]
    total, weight = losses.cosine_distance(ours, theirs, WEIGHTS)
    assert float(weight) == 3.0 and float(total) == pytest.approx(float((1.0 - np.array(cosines)) @ WEIGHTS), rel=1e-5)


def test_relations_are_those_of_minilm_v2_in_heads_of_other_widths():
    ours, theirs = numbers(2, 4, 6), numbers(2, 4, 12)  # rows, tokens, width
    mask = np.array([[1, 1, 1, 0], [1, 1, 1, 1]], np.float32)
    total, weight = losses.relation_divergence(ours, theirs, mask, tf.constant(mask[:, None, None] > 0), heads=3)
    wanted = 0.0
    for row in range(2):
        real = int(mask[row].sum())
        for head in range(3):
            parts = [values[row, :real, head * size : (head + 1) * size] for values, size in ((theirs, 4), (ours, 2))]
            relations = [scipy.special.softmax(part @ part.T / np.sqrt(part.shape[-1]), axis=-1) for part in parts]
            wanted += kl(*relations).sum() / 3
    assert float(weight) == 7.0 and float(total) == pytest.approx(wanted, rel=1e-4)
