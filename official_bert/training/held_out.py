"""The interface of held-out data."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from official_bert.data.batches.sources import BatchSource

Predictions = Sequence[Mapping[str, Any]]  # one a row, as NumPy values


class HeldOut(Protocol):
    """Data to evaluate on, with their metrics."""

    @property
    def source(self) -> BatchSource:
        """The batches of one evaluation."""

    def evaluate(self, predictions: Predictions) -> dict[str, float]:
        """Returns the official metrics for one prediction per row of `source` (without filler rows), in its order."""
