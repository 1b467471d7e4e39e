"""Replaced-token detection: which real tokens has a generator replaced (ELECTRA; Clark et al. 2020)?"""

import dataclasses
from typing import Any

import tensorflow as tf
from jaxtyping import Float

from official_bert.objectives.cross_entropy import CrossEntropy, Predicted
from official_bert.objectives.losses import token_weights
from official_bert.objectives.objective import Batch, Fractions, Outputs


@dataclasses.dataclass(frozen=True)
class ReplacedTokens(CrossEntropy):
    """A binary loss for each real token, with the precision and the recall of detected replacements."""

    name: str = "replaced"
    factor: float = 50.0

    @property
    def counter_names(self) -> tuple[str, ...]:
        return (*super().counter_names, "replaced_precision", "replaced_recall")

    def predicted(self, outputs: Outputs, batch: Batch) -> Predicted:
        """Returns logits of two classes, whose softmax is the logistic function of the one logit, and their labels."""
        logits = outputs["replaced_logits"]
        return tf.stack([tf.zeros_like(logits), logits], axis=-1), outputs["replaced"]

    def place_weights(self, batch: Batch) -> Float[Any, "B S"]:
        return token_weights(batch)

    def counters(self, outputs: Outputs, batch: Batch) -> Fractions:
        called = tf.cast(outputs["replaced_logits"] > 0, tf.float32) * token_weights(batch)
        replaced = tf.cast(outputs["replaced"], tf.float32) * token_weights(batch)
        both = tf.reduce_sum(called * replaced)
        return super().counters(outputs, batch) | {
            "replaced_precision": (both, tf.reduce_sum(called)),
            "replaced_recall": (both, tf.reduce_sum(replaced)),
        }
