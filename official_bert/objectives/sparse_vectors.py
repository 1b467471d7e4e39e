"""Sparse word vectors (SPLADE; Formal et al. 2021): related texts get large dot products, and each text few words.

B rows, T texts of a row, V words.
"""

import dataclasses
from typing import Any

import tensorflow as tf
from jaxtyping import Float, Shaped

from official_bert.objectives.objective import Batch, Fractions, Outputs, RowValues
from official_bert.objectives.vectors import NearVectors

MOST_WORDS = 256  # of a vector that is evaluated


@dataclasses.dataclass(frozen=True)
class SparseVectors(NearVectors):
    """The loss of `NearVectors` on the dot products of `weights` [B,T,V], and penalties on queries and passages."""

    query_penalty: float = 0.0
    passage_penalty: float = 0.0

    names = ("ranking", "flops")
    counter_names = ("words",)

    def losses(self, outputs: Outputs, batch: Batch) -> Fractions:
        """Returns the losses, or {} if texts are only searched."""
        if "penalty_share" not in batch:
            return {}
        weights, real = outputs["weights"], batch["example_weights"]
        total, count = self.of_vectors(weights, batch)
        present = tf.cast(tf.reduce_max(batch["input_mask"], axis=-1) > 0, tf.float32) * real[:, None]  # [B,T]
        sides = [
            flops_penalty(weights[:, place], present[:, place], self.group_size) for place in range(weights.shape[1])
        ]
        penalty = self.query_penalty * sides[0] + self.passage_penalty * tf.add_n(sides[1:]) / (len(sides) - 1)
        return {"ranking": (total, count), "flops": (penalty * batch["penalty_share"][0], count)}

    def counters(self, outputs: Outputs, batch: Batch) -> Fractions:
        """Returns the mean number of words of second texts, or of the only text of each row."""
        weights = outputs["weights"]
        words = tf.reduce_sum(tf.cast(weights[:, min(1, weights.shape[1] - 1)] > 0.0, tf.float32), axis=-1)
        return {"words": (tf.reduce_sum(words * batch["example_weights"]), tf.reduce_sum(batch["example_weights"]))}

    def predictions(self, outputs: Outputs, batch: Batch) -> RowValues:
        """Returns `ids` and `weights` of the heaviest words."""
        weights, ids = tf.math.top_k(outputs["weights"], min(MOST_WORDS, outputs["weights"].shape[-1]))
        return {"ids": ids, "weights": weights}


def flops_penalty(weights: Float[Any, "B V"], present: Shaped[Any, " B"], group_size: int) -> Float[Any, ""]:
    """Returns the sum over groups of (sum over words of the squared mean weight) * the group's number of real rows
    (FLOPS, Paria et al. 2020).

    weights [B,V], present [B] -> []. The mean is over a group, which is the same in a global batch and in its parts.
    """
    real = tf.reshape(tf.cast(present, tf.float32), (-1, group_size, 1))
    count = tf.reduce_sum(real, axis=1)  # [B/G,1]
    means = tf.math.divide_no_nan(
        tf.reduce_sum(tf.reshape(weights, (-1, group_size, weights.shape[-1])) * real, axis=1), count
    )
    return tf.reduce_sum(tf.reduce_sum(tf.square(means), axis=-1) * count[:, 0])
