"""Computes official metrics from labels and logits, by name: GLUE's, and those of tasks with several labels."""

import math
import types
import warnings
from collections.abc import Callable, Iterable, Mapping
from functools import partial

import numpy as np
import scipy.stats
import sklearn.metrics

Metric = Callable[[np.ndarray, np.ndarray], float]


def _accuracy(labels: np.ndarray, logits: np.ndarray) -> float:
    return float(np.mean(np.argmax(logits, axis=-1) == labels))


def _f1(labels: np.ndarray, logits: np.ndarray) -> float:
    """F1 of label 1, GLUE's for MRPC and QQP."""
    return float(sklearn.metrics.f1_score(labels == 1, np.argmax(logits, axis=-1) == 1, zero_division=0.0))


def _macro_f1(labels: np.ndarray, logits: np.ndarray) -> float:
    """The mean F1 of the classes that labels or answers contain."""
    return float(sklearn.metrics.f1_score(labels, np.argmax(logits, axis=-1), average="macro", zero_division=0.0))


def _matthews(labels: np.ndarray, logits: np.ndarray) -> float:
    return float(sklearn.metrics.matthews_corrcoef(labels, np.argmax(logits, axis=-1)))


def _correlation(function: Callable, scores: np.ndarray, logits: np.ndarray) -> float:
    """Undefined, NaN, if one side is constant: that says nothing about the other."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return float(function(scores, logits[:, 0])[0]) if len(scores) > 1 else math.nan


def _mean_squared_error(scores: np.ndarray, logits: np.ndarray) -> float:
    return float(np.mean((scores - logits[:, 0]) ** 2))


def _f1_of_labels(average: str, labels: np.ndarray, logits: np.ndarray) -> float:
    """Labels without a row and without an answer do not count; 0 if there are no others."""
    only = [1] if logits.shape[1] == 1 else None  # scikit-learn takes a single column for two classes, 0 and 1
    score = sklearn.metrics.f1_score(labels, logits >= 0.0, labels=only, average=average, zero_division=np.nan)
    return float(np.nan_to_num(score))


def _exact_match(labels: np.ndarray, logits: np.ndarray) -> float:
    """The share of rows with every label right."""
    return float(np.mean(np.all((logits >= 0.0) == (labels > 0.5), axis=-1)))


METRICS: Mapping[str, Metric] = types.MappingProxyType(
    {
        "accuracy": _accuracy,
        "f1": _f1,
        "macro_f1": _macro_f1,
        "matthews": _matthews,
        "exact_match": _exact_match,
        "pearson": partial(_correlation, scipy.stats.pearsonr),
        "spearman": partial(_correlation, scipy.stats.spearmanr),
        "mean_squared_error": _mean_squared_error,
        "micro_f1_of_labels": partial(_f1_of_labels, "micro"),
        "macro_f1_of_labels": partial(_f1_of_labels, "macro"),
    }
)

# By the kind of answer.
FITTING: Mapping[str, tuple[str, ...]] = types.MappingProxyType(
    {
        "classifier": ("accuracy", "f1", "macro_f1", "matthews"),
        "regression": ("pearson", "spearman", "mean_squared_error"),
        "multi_label": ("micro_f1_of_labels", "macro_f1_of_labels", "exact_match"),
    }
)


def measure(names: Iterable[str], targets: np.ndarray, logits: np.ndarray, end: str = "") -> dict[str, float]:
    """Computes metrics of logits [N,K]: `targets` are label numbers [N], 0 and 1 for several labels [N,K], or scores
    [N].

    The names of the results have the suffix `end`.
    """
    return {f"{name}{end}": METRICS[name](targets, np.asarray(logits, np.float64)) for name in names}


def best_threshold(targets: np.ndarray, probabilities: np.ndarray) -> float:
    """Returns the threshold of probabilities [N] with the best F1 for targets [N], 0 or 1.

    It lies half-way between two probabilities, or below the lowest; of several best thresholds, the one nearest 0.5 is
    returned, and 0.5 if no target is 1.
    """
    order = np.argsort(-probabilities, kind="stable")
    falling = probabilities[order].astype(np.float64)
    right = np.cumsum(targets[order])
    following = np.append(falling[1:], 0.0)
    cuts = falling > following  # equal probabilities stand on one side
    if not right[-1] or not cuts.any():
        return 0.5
    scores = (2.0 * right / (np.arange(1, len(falling) + 1) + right[-1]))[cuts]
    thresholds = ((falling + following) / 2.0)[cuts]
    best = thresholds[scores >= scores.max() - 1e-12]
    return float(best[np.argmin(np.abs(best - 0.5))])
