"""Statistics of predicted probabilities and right labels: scores of each class, confusions, calibration, ROC.

N rows, K classes.
"""

import collections
import dataclasses
import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import sklearn.metrics

BINS = 15  # of the reliability curve, as in Guo et al. 2017
SCORES = ("precision", "recall", "F1", "support")  # headings of a class's scores
# How often a class was wanted and another one, or the same, was answered; "" is no class.
Pairs = collections.Counter[tuple[str, str]]


def class_scores(pairs: Pairs, labels: Sequence[str]) -> dict[str, dict[str, float]]:
    """Returns precision, recall, F1 and support of each label. A share of nothing is 0."""
    wanted, got = collections.Counter[str](), collections.Counter[str]()
    for (right, answer), count in pairs.items():
        wanted[right] += count
        got[answer] += count
    return {
        label: {
            "precision": _share(pairs[label, label], got[label]),
            "recall": _share(pairs[label, label], wanted[label]),
            "f1": _share(2 * pairs[label, label], wanted[label] + got[label]),
            "support": wanted[label],
        }
        for label in labels
    }


def _share(part: int, whole: int) -> float:
    return part / whole if whole else 0.0


def most_confused(pairs: Pairs, most: int, counted: str) -> list[dict[str, Any]]:
    """Returns the pairs of different classes that are confused most often: `wanted`, `got`, and their number, whose key
    is `counted`. Equally frequent ones keep their order.
    """
    wrong = (
        {"wanted": right, "got": answer, counted: count}
        for (right, answer), count in pairs.most_common()
        if right != answer
    )
    return list(itertools.islice(wrong, most))


@dataclasses.dataclass(frozen=True)
class Bin:
    """Answers whose confidence lies above `low` and not above `high`: their number, mean confidence, and share of right
    ones.
    """

    low: float
    high: float
    rows: int
    confidence: float
    accuracy: float


def reliability(confidence: np.ndarray, right: np.ndarray) -> list[Bin]:
    """Returns the bins, of equal width from 0 to 1, that have rows. `confidence` [N] are probabilities, `right` [N] is
    0 or 1.
    """
    numbers = np.clip(np.ceil(np.asarray(confidence, np.float64) * BINS).astype(int) - 1, 0, BINS - 1)
    return [
        Bin(
            number / BINS,
            (number + 1) / BINS,
            int(inside.sum()),
            float(np.mean(confidence[inside])),
            float(np.mean(right[inside])),
        )
        for number in range(BINS)
        if (inside := numbers == number).any()
    ]


def expected_calibration_error(bins: Sequence[Bin]) -> float:
    """Returns the mean over all rows of the distance between confidence and accuracy of their bin (Guo et al. 2017)."""
    total = sum(entry.rows for entry in bins)
    return float(sum(entry.rows * abs(entry.accuracy - entry.confidence) for entry in bins) / total) if total else 0.0


def roc_auc(gold: np.ndarray, scores: np.ndarray) -> float | None:
    """Returns the area under the ROC curve of 0 and 1 [N]; None if all rows are of one class."""
    return float(sklearn.metrics.roc_auc_score(gold, scores)) if 0 < np.sum(gold) < len(gold) else None


def roc_curve(gold: np.ndarray, scores: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns the false positive rates and the true positive rates, from (0, 0) to (1, 1)."""
    false, true, _ = sklearn.metrics.roc_curve(gold, scores)
    return false, true
