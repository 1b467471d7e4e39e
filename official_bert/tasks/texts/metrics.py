"""Official metrics of a task from labels and logits, by name: those of GLUE, and of tasks with several labels."""

import types
import warnings
from collections.abc import Callable, Iterable, Mapping

import numpy as np
import scipy.stats
import sklearn.metrics

Metric = Callable[[np.ndarray, np.ndarray], float]


def _accuracy(labels: np.ndarray, logits: np.ndarray) -> float:
    return float(np.mean(np.argmax(logits, axis=-1) == labels))


def _f1(labels: np.ndarray, logits: np.ndarray) -> float:
    """Of label 1 against the rest, as GLUE counts it for MRPC and QQP."""
    return float(sklearn.metrics.f1_score(labels == 1, np.argmax(logits, axis=-1) == 1, zero_division=0.0))


def _macro_f1(labels: np.ndarray, logits: np.ndarray) -> float:
    return float(sklearn.metrics.f1_score(labels, np.argmax(logits, axis=-1), labels=range(logits.shape[-1]), average="macro",
                                          zero_division=0.0))


def _matthews(labels: np.ndarray, logits: np.ndarray) -> float:
    return float(sklearn.metrics.matthews_corrcoef(labels, np.argmax(logits, axis=-1)))


def _pearson(scores: np.ndarray, logits: np.ndarray) -> float:
    return _correlation(scipy.stats.pearsonr, scores, logits)


def _spearman(scores: np.ndarray, logits: np.ndarray) -> float:
    return _correlation(scipy.stats.spearmanr, scores, logits)


def _correlation(function: Callable, scores: np.ndarray, logits: np.ndarray) -> float:
    """0 where one side is constant: nothing is known about the other from it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = float(function(scores, logits[:, 0])[0]) if len(scores) > 1 else 0.0
    return found if np.isfinite(found) else 0.0


def _mean_squared_error(scores: np.ndarray, logits: np.ndarray) -> float:
    return float(np.mean((scores - logits[:, 0]) ** 2))


def _several(average: str) -> Metric:
    def measure(labels, logits):
        return float(sklearn.metrics.f1_score(labels, logits > 0.0, average=average, zero_division=0.0))
    return measure


def _exact_match(labels: np.ndarray, logits: np.ndarray) -> float:
    """The share of rows of which every label is right."""
    return float(np.mean(np.all((logits > 0.0) == (labels > 0.5), axis=-1)))


METRICS: Mapping[str, Metric] = types.MappingProxyType({
    "accuracy": _accuracy, "f1": _f1, "macro_f1": _macro_f1, "matthews": _matthews, "pearson": _pearson, "spearman": _spearman,
    "mean_squared_error": _mean_squared_error, "micro_f1_of_labels": _several("micro"), "macro_f1_of_labels": _several("macro"),
    "exact_match": _exact_match})


def measure(names: Iterable[str], targets: np.ndarray, logits: np.ndarray, end: str = "") -> dict[str, float]:
    """The named metrics of logits [N,K]: `targets` are label numbers [N], 0 and 1 for several labels [N,K], or scores [N].

    `end` is put behind their names.
    """
    return {f"{name}{end}": METRICS[name](targets, np.asarray(logits, np.float64)) for name in names}
