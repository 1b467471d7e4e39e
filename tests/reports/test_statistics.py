"""The numbers of a report, against values worked out by hand."""

import numpy as np
import pytest
import sklearn.metrics

from official_bert.reports import statistics

PAIRS = statistics.Pairs(zip("aaabbc", "aabbcc"))


def test_scores_of_classes_are_those_worked_out_by_hand():
    scores = statistics.class_scores(PAIRS, ["a", "b", "c", "never"])
    assert scores["a"] == {"precision": 1.0, "recall": pytest.approx(2 / 3), "f1": pytest.approx(0.8), "support": 3}
    assert scores["b"] == {"precision": 0.5, "recall": 0.5, "f1": 0.5, "support": 2}
    assert scores["c"] == {"precision": 0.5, "recall": 1.0, "f1": pytest.approx(2 / 3), "support": 1}
    assert scores["never"] == {"precision": 0.0, "recall": 0.0, "f1": 0.0, "support": 0}
    several = statistics.Pairs([("x", "x"), ("", "y"), ("x", ""), ("y", "y")])
    assert statistics.class_scores(several, ["x", "y"]) == {
        "x": {"precision": 1.0, "recall": 0.5, "f1": pytest.approx(2 / 3), "support": 2},
        "y": {"precision": 0.5, "recall": 1.0, "f1": pytest.approx(2 / 3), "support": 1},
    }


@pytest.mark.parametrize("seed", range(3))
def test_scores_of_classes_are_those_of_scikit_learn(seed):
    gold, answers = np.random.default_rng(seed).integers(5, size=(2, 40))
    scores = statistics.class_scores(statistics.Pairs(zip(map(str, gold), map(str, answers))), list("01234"))
    expected = sklearn.metrics.precision_recall_fscore_support(gold, answers, labels=range(5), zero_division=0.0)
    assert [tuple(row.values()) for row in scores.values()] == list(zip(*expected))


def test_the_most_common_confusions_are_named_and_equally_frequent_ones_keep_their_order():
    assert statistics.most_confused(PAIRS, 10, "rows") == [
        {"wanted": "a", "got": "b", "rows": 1},
        {"wanted": "b", "got": "c", "rows": 1},
    ]
    pairs = statistics.Pairs({("a", "a"): 9, ("a", "b"): 1, ("b", "a"): 1, ("c", "a"): 2})
    assert statistics.most_confused(pairs, 2, "times") == [
        {"wanted": "c", "got": "a", "times": 2},
        {"wanted": "a", "got": "b", "times": 1},
    ]


def test_the_calibration_error_is_the_weighted_distance_of_confidence_and_accuracy():
    # The bins end at 9/15 (0.55 and 0.58, one of two right), 12/15 (0.75, wrong), 14/15 (0.91, right) and 1 (right).
    confidence, right = np.array([0.55, 0.58, 0.91, 0.95, 1.0, 0.75]), np.array([1, 0, 1, 1, 1, 0])
    bins = statistics.reliability(confidence, right)
    ends = [(0.6, 2, 0.5), (0.8, 1, 0.0), (14 / 15, 1, 1.0), (1.0, 2, 1.0)]
    assert [(one.high, one.rows, one.accuracy) for one in bins] == ends
    assert statistics.expected_calibration_error(bins) == pytest.approx((2 * 0.065 + 1 * 0.75 + 3 * (1 - 2.86 / 3)) / 6)
    assert statistics.expected_calibration_error(statistics.reliability(np.array([0.0, 1.0]), np.array([0, 1]))) == 0.0
    assert statistics.expected_calibration_error([]) == 0.0


def test_the_area_under_the_roc_curve_is_the_share_of_pairs_in_order():
    gold, scores = np.array([0, 0, 1, 1]), np.array([0.1, 0.4, 0.35, 0.8])
    # of four pairs, one (0.4 before 0.35) is in the wrong order
    assert statistics.roc_auc(gold, scores) == pytest.approx(3 / 4)
    assert statistics.roc_auc(np.ones(3), np.array([0.1, 0.2, 0.3])) is None
    false, true = statistics.roc_curve(gold, scores)
    assert (false[0], true[0], false[-1], true[-1]) == (0.0, 0.0, 1.0, 1.0)
