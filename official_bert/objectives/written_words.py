"""Words of a text that a decoder writes, each predicted from those before it and the source (Rothe et al. 2020)."""

import dataclasses
from typing import Any

import tensorflow as tf
from jaxtyping import Float

from official_bert.objectives import losses
from official_bert.objectives.cross_entropy import CrossEntropy, Predicted
from official_bert.objectives.objective import Batch, Fractions, Outputs

IGNORED = -100  # the label of a place that does not count


@dataclasses.dataclass(frozen=True)
class WrittenWords(CrossEntropy):
    """Predicts `labels` [B,T] at the places of a decoder's inputs; those of -100 do not count.

    With `smoothing` s, each of the V words gets s / V of the target, and the label also gets 1 - s.
    """

    smoothing: float = 0.0

    def predicted(self, outputs: Outputs, batch: Batch) -> Predicted:
        return outputs["logits"], tf.maximum(batch["labels"], 0)

    def place_weights(self, batch: Batch) -> Float[Any, "B T"]:
        return tf.cast(batch["labels"] != IGNORED, tf.float32) * batch["example_weights"][:, None]

    def losses(self, outputs: Outputs, batch: Batch) -> Fractions:
        predicted, weights = self.predicted(outputs, batch), self.place_weights(batch)
        return {self.name: losses.cross_entropy(*predicted, weights, self.smoothing)}
