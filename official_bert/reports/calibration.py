"""Fits a temperature to held-out answers (Guo et al. 2017), and finds the probability from which on enough of them are
right.

N rows, K classes.
"""

from typing import Any

import numpy as np
import scipy.optimize
import scipy.special

BOUNDS = 0.05, 20.0  # of a temperature: the likelihood alone has none if every answer is wrong
MARGIN = 1e-6  # of a threshold below a probability, which a served model computes in float32


def tune(options: Any, tunes: bool, gold: np.ndarray, logits: np.ndarray) -> dict[str, float]:
    """Returns temperature and threshold of the `CalibrationOptions`, tuned if `tunes` unless they are given, the share
    of rows that are answered, and the share of right answers among these. `gold` [N] are the right classes of the rows
    with logits [N,K].
    """
    temperature = options.temperature or (fit_temperature(gold, logits) if tunes else 1.0)
    confidence, right = confidences(gold, logits / temperature)
    below = options.abstain_below
    if options.target_accuracy and not below:
        below = find_threshold(confidence, right, options.target_accuracy)
    answered = confidence >= below
    return {
        "temperature": temperature,
        "abstain_below": below,
        "coverage": float(answered.mean()),
        "accuracy_of_answers": float(right[answered].mean()) if answered.any() else 0.0,
    }


def fit_temperature(gold: np.ndarray, logits: np.ndarray) -> float:
    """Returns the number by which logits [N,K] are divided so that the right answers `gold` [N] are likeliest; 1 if all
    answers are right, which any lower number would make likelier still.
    """
    logits = np.asarray(logits, np.float64)
    if (logits.argmax(axis=-1) == gold).all():
        return 1.0

    def loss(logarithm: float) -> float:
        logs = scipy.special.log_softmax(logits / np.exp(logarithm), axis=-1)
        return -np.take_along_axis(logs, gold[:, None], axis=-1).mean()

    found = scipy.optimize.minimize_scalar(loss, bounds=np.log(BOUNDS), method="bounded", options={"xatol": 1e-7})
    return float(np.exp(found.x))


def confidences(gold: np.ndarray, logits: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns the probability of the likeliest class [N], and whether it is the right one [N]."""
    return scipy.special.softmax(np.asarray(logits, np.float64), axis=-1).max(axis=-1), logits.argmax(axis=-1) == gold


def coverage_curve(confidence: np.ndarray, right: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns the different probabilities of answers, highest first, how many answers are at least as probable, and the
    share of these that is right.
    """
    order = np.argsort(-confidence, kind="stable")
    counts = np.flatnonzero(np.append(np.diff(confidence[order]), 1.0)) + 1
    return confidence[order][counts - 1], counts, np.cumsum(right[order])[counts - 1] / counts


def find_threshold(confidence: np.ndarray, right: np.ndarray, target: float) -> float:
    """Returns the lowest probability from which on a share `target` of the answers is right, or the greatest share that
    any has.

    Fewer than 1 / (1 - target) answers reach a target only without any error, which says little about other rows: they
    do not count.
    """
    probabilities, counts, shares = coverage_curve(confidence, right)
    shares = np.where(counts * (1.0 - target) > 1.0 - MARGIN, shares, 0.0)
    return float(probabilities[shares >= min(target, shares.max())][-1]) - MARGIN
