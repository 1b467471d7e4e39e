"""Objectives for a text or for each of its choices: one label (paper 4.1, 4.4), several labels, or a score.

B rows, K labels or choices. Training batches may have `loss_weights`.
"""

import dataclasses
from typing import Any

import tensorflow as tf
from jaxtyping import Float

from official_bert.objectives import losses
from official_bert.objectives.objective import Batch, Fractions, Objective, Outputs, RowValues, Weights


class OfLogits(Objective):
    """An objective on `logits` [B,K], which are also its predictions."""

    def predictions(self, outputs: Outputs, batch: Batch) -> RowValues:
        return {"logits": tf.cast(outputs["logits"], tf.float32)}


@dataclasses.dataclass(frozen=True)
class OneLabel(OfLogits):
    """Cross-entropy of `label_ids` [B], or of the probabilities `label_shares` [B,K] if a batch has them."""

    smoothing: float = 0.0

    counter_names = ("accuracy",)

    def losses(self, outputs: Outputs, batch: Batch) -> Fractions:
        if "label_shares" in batch:
            shares = batch["label_shares"] * (1.0 - self.smoothing) + self.smoothing / batch["label_shares"].shape[-1]
            each = tf.nn.softmax_cross_entropy_with_logits(shares, tf.cast(outputs["logits"], tf.float32))
            return {"loss": losses.weighted_sum(each, _row_weights(batch))}
        return {
            "loss": losses.cross_entropy(outputs["logits"], batch["label_ids"], _row_weights(batch), self.smoothing)
        }

    def weights(self, batch: Batch) -> Weights:
        return {"loss": tf.reduce_sum(_row_weights(batch))}

    def counters(self, outputs: Outputs, batch: Batch) -> Fractions:
        return {"accuracy": losses.accuracy(outputs["logits"], batch["label_ids"], batch["example_weights"])}


@dataclasses.dataclass(frozen=True)
class SeveralLabels(OfLogits):
    """Binary cross-entropy of `label_ids` [B,K]; `loss_weights` of labels do not count as rows."""

    smoothing: float = 0.0

    def losses(self, outputs: Outputs, batch: Batch) -> Fractions:
        each = batch.get("loss_weights", 1.0)
        return {
            "loss": losses.binary_cross_entropy(
                outputs["logits"], batch["label_ids"], batch["example_weights"], each, self.smoothing
            )
        }


@dataclasses.dataclass(frozen=True)
class Score(OfLogits):
    """Squared error of `scores` [B]."""

    def losses(self, outputs: Outputs, batch: Batch) -> Fractions:
        return {"loss": losses.squared_error(outputs["logits"][:, 0], batch["scores"], batch["example_weights"])}


def _row_weights(batch: Batch) -> Float[Any, " B"]:
    """The weight of each row in the loss of one label: 0 for filler rows."""
    return batch["example_weights"] * batch["loss_weights"] if "loss_weights" in batch else batch["example_weights"]
