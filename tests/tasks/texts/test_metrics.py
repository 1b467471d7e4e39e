"""Metrics against their definitions."""

import math

import numpy as np
import pytest

from official_bert.tasks.texts.metrics import measure


def logits_of(predicted, classes):
    return np.eye(classes)[np.array(predicted)]


def test_two_classes_by_hand():
    labels = np.array([1, 1, 1, 0, 0, 0, 0, 1])
    predicted = [1, 1, 0, 0, 0, 1, 0, 1]  # TP 3, FN 1, FP 1, TN 3
    found = measure(["accuracy", "f1", "matthews", "macro_f1"], labels, logits_of(predicted, 2), "_x")
    assert found == pytest.approx({"accuracy_x": 0.75, "f1_x": 0.75, "matthews_x": (9 - 1) / 16, "macro_f1_x": 0.75})


def test_macro_f1_counts_classes_that_nobody_predicts():
    found = measure(["macro_f1"], np.array([0, 1, 2, 2]), logits_of([0, 0, 2, 2], 3))
    assert found == pytest.approx({"macro_f1": (2 / 3 + 0 + 1) / 3})


def test_macro_f1_does_not_count_classes_that_neither_labels_nor_answers_contain():
    found = measure(["macro_f1"], np.array([0, 1, 2, 2]), logits_of([0, 0, 2, 2], 9))
    assert found == pytest.approx({"macro_f1": (2 / 3 + 0 + 1) / 3})
    labels, logits = np.array([[1, 0, 0, 0], [1, 0, 1, 0]]), np.array([[1, -1, -1, -1], [1, 1, -1, -1]])
    assert measure(["macro_f1_of_labels"], labels, logits) == pytest.approx({"macro_f1_of_labels": 1 / 3})
    assert measure(["macro_f1_of_labels"], np.zeros((2, 3)), np.full((2, 3), -1.0)) == {"macro_f1_of_labels": 0.0}


def test_correlations_by_their_formulas():
    scores, found = np.array([1.0, 2.0, 3.0, 5.0]), np.array([[0.9], [0.4], [2.0], [9.0]])
    x, y = scores - scores.mean(), found[:, 0] - found.mean()
    ranks = np.array([2.0, 1.0, 3.0, 4.0]) - 2.5
    measured = measure(["pearson", "spearman", "mean_squared_error"], scores, found)
    assert measured["pearson"] == pytest.approx((x * y).sum() / np.sqrt((x**2).sum() * (y**2).sum()))
    assert measured["spearman"] == pytest.approx((np.arange(4) - 1.5) @ ranks / (ranks**2).sum())
    assert measured["mean_squared_error"] == pytest.approx(((scores - found[:, 0]) ** 2).mean())


def test_constant_predictions_measure_nothing_and_break_nothing():
    scores = np.array([1.0, 2.0])
    for few in (scores, scores[:1]):  # undefined: 0 would be a value, and could be the best of a run
        assert all(
            math.isnan(value) for value in measure(["pearson", "spearman"], few, np.ones((len(few), 1))).values()
        )
    assert measure(["matthews", "f1"], np.array([0, 1]), logits_of([0, 0], 2)) == {"matthews": 0.0, "f1": 0.0}


def test_several_labels_by_hand():
    labels = np.array([[1, 0, 1], [0, 0, 0], [0, 1, 0]])
    logits = np.array([[2.0, -1.0, -1.0], [-1.0, -1.0, -1.0], [1.0, 3.0, -2.0]])  # TP 2, FP 1, FN 1
    found = measure(["micro_f1_of_labels", "macro_f1_of_labels", "exact_match"], labels, logits)
    assert found == pytest.approx(
        {"micro_f1_of_labels": 4 / 6, "macro_f1_of_labels": (2 / 3 + 1 + 0) / 3, "exact_match": 1 / 3}
    )


@pytest.mark.parametrize(("predicted", "wanted"), [([0] * 10, 0.0), ([1, 1] + [0] * 8, 2 / 3), ([1] + [0] * 9, 1.0)])
def test_a_single_label_is_measured_by_its_positive_rows(predicted, wanted):
    labels = np.array([[1.0]] + [[0.0]] * 9, np.float32)
    found = measure(["micro_f1_of_labels", "macro_f1_of_labels"], labels, np.array(predicted)[:, None] - 0.5)
    assert found == pytest.approx({"micro_f1_of_labels": wanted, "macro_f1_of_labels": wanted})
    assert measure(["micro_f1_of_labels"], np.zeros((3, 1)), np.full((3, 1), -1.0)) == {"micro_f1_of_labels": 0.0}
