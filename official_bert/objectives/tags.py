"""The tag of each word, at its first piece (paper 5.3).

B rows, S pieces. Training batches may have `loss_weights` [B,S].
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import tensorflow as tf
from jaxtyping import Float, Shaped

from official_bert.objectives import losses
from official_bert.objectives.objective import Batch, Fractions, Objective, Outputs, RowValues, Weights


@dataclasses.dataclass(frozen=True)
class Tags(Objective):
    """Cross-entropy of each word's tag."""

    smoothing: float = 0.0

    counter_names = ("tag_accuracy",)

    def losses(self, outputs: Outputs, batch: Batch) -> Fractions:
        return {"loss": losses.cross_entropy(outputs["logits"], batch["tags"], _weights(batch), self.smoothing)}

    def weights(self, batch: Batch) -> Weights:
        """Returns the number of words, or the sum of their weights."""
        return {"loss": tf.reduce_sum(_weights(batch))}

    def counters(self, outputs: Outputs, batch: Batch) -> Fractions:
        """Returns the accuracy of each word's likeliest tag."""
        return {"tag_accuracy": losses.accuracy(outputs["logits"], batch["tags"], word_weights(batch))}

    def predictions(self, outputs: Outputs, batch: Batch) -> RowValues:
        return {"logits": tf.cast(outputs["logits"], tf.float32)}


def word_weights(batch: Mapping[str, Shaped[Any, "B ..."]]) -> Float[Any, "B S"]:
    """Returns 1 at the first piece of each word of a real row, else 0: [B,S]."""
    return tf.cast(batch["tag_mask"], tf.float32) * batch["example_weights"][:, None]


def _weights(batch: Batch) -> Float[Any, "B S"]:
    """The weight of each word in the loss."""
    return word_weights(batch) * batch["loss_weights"] if "loss_weights" in batch else word_weights(batch)
