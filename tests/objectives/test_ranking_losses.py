"""Losses of search against NumPy loops, and in whole batches against their groups."""

import numpy as np
import pytest
import tensorflow as tf

from official_bert.objectives import ranking_losses

RNG = np.random.default_rng(0)
WEIGHTS = np.array([1, 1, 1, 1, 1, 1, 1, 0], np.float32)


def unit(*shape):
    vectors = RNG.normal(size=shape).astype("float32")
    return vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)


def softplus(value):
    return float(np.logaddexp(0.0, value))


# Rows 0 and 1 have one anchor; row 2 has another row's positive among its negatives, row 3 an answer of its anchor from
# row 1 (text 6); row 4 lacks a negative; its negative is the anchor of row 5; row 7 is filler.
TEXTS = np.array(
    [[0, 1, 2], [0, 6, 3], [4, 5, 7], [8, 9, 6], [10, 11, -1], [12, 13, 10], [14, 5, 15], [14, 5, 15]], np.int32
)


def candidates_of(row, group):
    """Numbers (row, place) of the texts with which a row's anchor is compared, worked out one by one."""
    answers = {TEXTS[other, 1] for other in group if TEXTS[other, 0] == TEXTS[row, 0]}
    found = []
    for other in group:
        for place in (1, 2):
            number = TEXTS[other, place]
            own = (other, place) == (row, 1)
            if own or not (WEIGHTS[other] == 0 or number == -1 or number in answers or number == TEXTS[row, 0]):
                found.append((other, place))
    return found


def numpy_contrastive(vectors, temperature):
    total = 0.0
    for row in range(7):
        group = range(row // 4 * 4, row // 4 * 4 + 4)
        logits = {key: float(vectors[row, 0] @ vectors[key]) / temperature for key in candidates_of(row, group)}
        total += np.log(sum(map(np.exp, logits.values()))) - logits[row, 1]
    return total


def test_contrastive_loss_with_hard_negatives_is_that_of_a_loop():
    vectors = unit(8, 3, 6)
    total, weight = ranking_losses.contrastive(vectors, tf.constant(TEXTS), tf.constant(WEIGHTS), 4, 0.1)
    assert float(total) == pytest.approx(numpy_contrastive(vectors, 0.1), rel=1e-5) and float(weight) == 7.0
    # A known answer of the same anchor is never a wrong one: row 0 is not compared with text 6 of row 3.
    assert (3, 2) not in candidates_of(0, range(4)) and (3, 2) in candidates_of(2, range(4))


def test_both_directions_are_the_mean_with_the_reversed_search():
    vectors = unit(8, 3, 6)
    back = 0.0
    for row in range(7):
        group = range(row // 4 * 4, row // 4 * 4 + 4)
        askers = {TEXTS[other, 0] for other in group if TEXTS[other, 1] == TEXTS[row, 1]}
        logits = {
            other: float(vectors[row, 1] @ vectors[other, 0]) / 0.1
            for other in group
            if other == row or (WEIGHTS[other] and TEXTS[other, 0] not in askers and TEXTS[other, 0] != TEXTS[row, 1])
        }
        back += np.log(sum(map(np.exp, logits.values()))) - logits[row]
    total, _ = ranking_losses.contrastive(
        vectors, tf.constant(TEXTS), tf.constant(WEIGHTS), 4, 0.1, both_directions=True
    )
    assert float(total) == pytest.approx((numpy_contrastive(vectors, 0.1) + back) / 2.0, rel=1e-5)


SCORES = RNG.normal(size=(8, 4)).astype("float32")
TEACHER = RNG.normal(size=(8, 4)).astype("float32") * 3.0
PRESENT = np.array([[True, True, True, place < 7] for place in range(8)])
PRESENT[3, 2:] = False
LABELS = np.array([[1, 0, 0, 1]] * 4 + [[0, 1, 0, 0]] * 4, np.float32)


def rowwise(function):
    return sum(float(WEIGHTS[row]) * function(row, np.flatnonzero(PRESENT[row])) for row in range(8))


def log_softmax(values):
    return values - np.log(np.exp(values).sum())


EXPECTED = {
    "triplet": lambda: rowwise(
        lambda row, kept: np.mean([max(0.0, 0.5 - SCORES[row, 0] + SCORES[row, other]) for other in kept if other])
    ),
    "margin_mse": lambda: rowwise(
        lambda row, kept: np.mean(
            [
                ((SCORES[row, 0] - SCORES[row, other]) - (TEACHER[row, 0] - TEACHER[row, other])) ** 2
                for other in kept
                if other
            ]
        )
    ),
    "kl_divergence": lambda: rowwise(
        lambda row, kept: np.sum(
            np.exp(log_softmax(TEACHER[row, kept])) * (log_softmax(TEACHER[row, kept]) - log_softmax(SCORES[row, kept]))
        )
    ),
    "pointwise": lambda: rowwise(
        lambda row, kept: np.mean(
            [softplus(-SCORES[row, place]) if LABELS[row, place] else softplus(SCORES[row, place]) for place in kept]
        )
    ),
    "pairwise": lambda: rowwise(
        lambda row, kept: np.mean(
            [
                softplus(SCORES[row, low] - SCORES[row, high])
                for high in kept
                for low in kept
                if LABELS[row, high] > LABELS[row, low]
            ]
        )
    ),
    "listwise": lambda: rowwise(
        lambda row, kept: -np.sum(LABELS[row, kept] / LABELS[row, kept].sum() * log_softmax(SCORES[row, kept]))
    ),
}


@pytest.mark.parametrize("name", sorted(EXPECTED))
def test_losses_of_rows_are_those_of_loops(name):
    second = {"triplet": (), "margin_mse": (TEACHER,), "kl_divergence": (TEACHER,)}.get(name, (LABELS,))
    more = (0.5,) if name == "triplet" else ()
    function = getattr(ranking_losses, name)
    total, weight = function(
        tf.constant(SCORES), *map(tf.constant, second), tf.constant(PRESENT), tf.constant(WEIGHTS), *more
    )
    assert float(total) == pytest.approx(EXPECTED[name](), rel=1e-5) and float(weight) == 7.0


def test_cosent_compares_the_pairs_of_a_group():
    cosines, targets = RNG.uniform(-1, 1, 8).astype("float32"), np.array([0, 1, 1, 3, 2, 2, 0, 9], np.float32)
    wanted = 0.0
    for group in (range(4), range(4, 8)):
        real = [row for row in group if WEIGHTS[row]]
        found = sum(
            np.exp((cosines[low] - cosines[high]) / 0.2)
            for high in real
            for low in real
            if targets[high] > targets[low]
        )
        wanted += np.log(1.0 + found) * len(real)
    total, weight = ranking_losses.cosent(tf.constant(cosines), tf.constant(targets), tf.constant(WEIGHTS), 4, 0.2)
    assert float(total) == pytest.approx(wanted, rel=1e-5) and float(weight) == 7.0


def test_groups_in_parts_sum_to_the_whole_batch():
    vectors, targets = unit(8, 3, 6), RNG.normal(size=8).astype("float32")

    def measured(part):
        contrastive = ranking_losses.contrastive(
            vectors[part], tf.constant(TEXTS[part]), tf.constant(WEIGHTS[part]), 4, 0.05, True
        )
        cosent = ranking_losses.cosent(vectors[part, 0, 0], targets[part], tf.constant(WEIGHTS[part]), 4, 0.05)
        return np.array([[float(value) for value in pair] for pair in (contrastive, cosent)])

    np.testing.assert_allclose(measured(slice(0, 4)) + measured(slice(4, 8)), measured(slice(0, 8)), rtol=1e-5)
