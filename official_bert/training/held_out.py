"""What evaluates predictions."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from official_bert.data.batches.sources import BatchSource

Predictions = Sequence[Mapping[str, Any]]  # one a row, as NumPy values


class HeldOut(Protocol):
    """Data to evaluate on."""

    @property
    def source(self) -> BatchSource:
        """The batches of one evaluation."""

    def evaluate(self, predictions: Predictions) -> dict[str, float]:
        """Computes the official metrics from one prediction a row of `source` (without filler rows), in its order."""
