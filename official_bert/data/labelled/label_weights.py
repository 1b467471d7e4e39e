"""Class weights in the training loss: given ones, or weights that make rare classes count as much as frequent ones."""

import math
from collections.abc import Mapping, Sequence
from typing import Annotated, Literal

import numpy as np

from official_bert.data.labelled.labelled_texts import described_counts, numbers_of
from official_bert.fields import Constraint

Weights = Annotated[
    Literal["", "balanced"] | tuple[float, ...] | dict[str, float],
    Constraint(
        "weights above 0",
        lambda weights: (
            isinstance(weights, str)
            or all(
                0.0 < weight < math.inf for weight in (weights.values() if isinstance(weights, Mapping) else weights)
            )
        ),
    ),
]


def class_weights(weights: Weights, labels: Sequence[str], counts: np.ndarray, where: str) -> np.ndarray:
    """Returns the weight of each label, float32 [K]; `counts` [K] are its training rows.

    `balanced` is scikit-learn's: all rows / (labels that have rows * rows of the label); a label without rows gets 1. A
    mapping gives the weights of some labels, 1 for the others.

    Raises ValueError, naming `where`, for a list of another length and for unknown labels.
    """
    if weights == "balanced":
        used = counts > 0
        return np.where(used, counts.sum() / (used.sum() * np.maximum(counts, 1)), 1.0).astype(np.float32)
    return _weights_by_label(weights, labels, where)


def positive_weights(weights: Weights, labels: Sequence[str], matrix: np.ndarray, where: str) -> np.ndarray:
    """Returns the weight of each label's positive rows, float32 [K]; `matrix` [N,K] holds 0 and 1.

    `balanced` is rows without the label / rows with it; a label that all rows have, or none, gets 1. Otherwise as
    `class_weights`.
    """
    if weights == "balanced":
        positive = matrix.sum(axis=0)
        negative = len(matrix) - positive
        return np.where((positive > 0) & (negative > 0), negative / np.maximum(positive, 1.0), 1.0).astype(np.float32)
    return _weights_by_label(weights, labels, where)


def _weights_by_label(weights: Weights, labels: Sequence[str], where: str) -> np.ndarray:
    by_label = np.ones(len(labels), np.float32)
    if isinstance(weights, Mapping):
        number_of = numbers_of(labels)
        for label, weight in weights.items():
            if (number := number_of(label)) < 0:
                hint = (
                    " (in YAML, yes and no are truth values: write them in quotes)"
                    if label in ("true", "false")
                    else ""
                )
                raise ValueError(f"{where}: expected labels of {list(labels)}, got {label!r}{hint}")
            by_label[number] = weight
    elif weights:
        if len(weights) != len(labels):
            raise ValueError(
                f"{where}: expected a weight for each of the {len(labels)} labels, {list(labels)}, got {len(weights)}"
            )
        by_label[:] = weights  # type: ignore[arg-type]
    return by_label


def describe(weights: np.ndarray, labels: Sequence[str]) -> str:
    """Returns the weights in a line: `no 0.6, yes 3.2`."""
    return described_counts(dict(zip(labels, (f"{weight:.4g}" for weight in weights))))
