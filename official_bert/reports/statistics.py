"""Statistics of predicted probabilities and right labels: scores of each class, confusions, calibration, ROC.

N rows, K classes.
"""

import dataclasses
from collections.abc import Sequence

import numpy as np
import sklearn.metrics

BINS = 15  # of the reliability curve, as in Guo et al. 2017


def class_scores(gold: np.ndarray, predicted: np.ndarray, labels: Sequence[str]) -> dict[str, dict[str, float]]:
    """Returns precision, recall, F1 and support of each label, from numbers of labels [N], or 0 and 1 [N,K].

    A share of nothing is 0.
    """
    # scikit-learn takes a single column for two classes, 0 and 1
    numbers = [1] if gold.shape[1:] == (1,) else range(len(labels))
    scores = sklearn.metrics.precision_recall_fscore_support(gold, predicted, labels=numbers, zero_division=0.0)
    return {
        label: {"precision": float(precision), "recall": float(recall), "f1": float(f1), "support": int(support)}
        for label, precision, recall, f1, support in zip(labels, *scores)
    }


def confusion(gold: np.ndarray, predicted: np.ndarray, count: int) -> np.ndarray:
    """Returns the rows of each class (first axis) that got each class (second axis): int [K,K]."""
    return sklearn.metrics.confusion_matrix(gold, predicted, labels=range(count))


def most_confused(matrix: np.ndarray, labels: Sequence[str], most: int = 10) -> list[dict]:
    """Returns the pairs of different classes that are confused most often: `wanted`, `got`, `rows`."""
    wrong = matrix * (1 - np.eye(len(matrix), dtype=matrix.dtype))
    order = np.argsort(-wrong, axis=None, kind="stable")[:most]
    pairs = (np.unravel_index(place, wrong.shape) for place in order)
    return [
        {"wanted": labels[row], "got": labels[column], "rows": int(wrong[row, column])}
        for row, column in pairs
        if wrong[row, column]
    ]


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


def reliability(confidence: np.ndarray, right: np.ndarray, bins: int = BINS) -> list[Bin]:
    """Returns the bins, of equal width from 0 to 1, that have rows. `confidence` [N] are probabilities, `right` [N] is
    0 or 1.
    """
    numbers = np.clip(np.ceil(np.asarray(confidence, np.float64) * bins).astype(int) - 1, 0, bins - 1)
    bars = []
    for number in range(bins):
        if (inside := numbers == number).any():
            bars.append(
                Bin(
                    number / bins,
                    (number + 1) / bins,
                    int(inside.sum()),
                    float(np.mean(confidence[inside])),
                    float(np.mean(right[inside])),
                )
            )
    return bars


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
