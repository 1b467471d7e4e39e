"""Cross-entropy over K classes at each position, the base of most pre-training objectives.

A subclass gives logits, labels and weights; the loss, the accuracy and the sums for intervals follow from them.
"""

import abc
import dataclasses
from typing import Any

import tensorflow as tf
from jaxtyping import Float, Int

from official_bert.objectives import losses
from official_bert.objectives.objective import Batch, Fractions, Objective, Outputs, RowValues, Weights

Predicted = tuple[Float[Any, "*rows K"], Int[Any, "*rows"]]  # logits, labels


@dataclasses.dataclass(frozen=True)
class CrossEntropy(Objective):
    """A cross-entropy loss `name`, multiplied by `factor`, and its accuracy `name_accuracy`."""

    name: str = "loss"
    factor: float = 1.0

    @abc.abstractmethod
    def predicted(self, outputs: Outputs, batch: Batch) -> Predicted:
        """Returns the logits [...,K] and labels [...] of a batch's positions."""

    @abc.abstractmethod
    def place_weights(self, batch: Batch) -> Float[Any, "*rows"]:
        """Returns the weight of each position [...], from the batch alone."""

    @property
    def names(self) -> tuple[str, ...]:
        return (self.name,)

    @property
    def counter_names(self) -> tuple[str, ...]:
        return (f"{self.name}_accuracy",)

    def losses(self, outputs: Outputs, batch: Batch) -> Fractions:
        total, weight = losses.cross_entropy(*self.predicted(outputs, batch), self.place_weights(batch))
        return {self.name: (total * self.factor, weight)}

    def weights(self, batch: Batch) -> Weights:
        return {self.name: tf.reduce_sum(self.place_weights(batch))}

    def counters(self, outputs: Outputs, batch: Batch) -> Fractions:
        return {f"{self.name}_accuracy": losses.accuracy(*self.predicted(outputs, batch), self.place_weights(batch))}

    def predictions(self, outputs: Outputs, batch: Batch) -> RowValues:
        """Returns `sums`, from which intervals are computed: for each row the sums of losses, of correct answers and of
        weights, float32 [B,1,3].
        """
        (logits, labels), weights = self.predicted(outputs, batch), self.place_weights(batch)
        each = losses.negative_log_likelihoods(tf.cast(logits, tf.float32), labels) * self.factor
        right = tf.reshape(losses.largest_places(losses.as_rows(logits)), tf.shape(labels)) == labels
        parts = tf.stack([each * weights, tf.where(right, weights, 0.0), weights], axis=-1)
        return {"sums": tf.reduce_sum(tf.reshape(parts, (tf.shape(parts)[0], -1, 3)), axis=1)[:, None]}
