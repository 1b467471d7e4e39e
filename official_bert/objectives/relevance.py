"""The objective of rerankers, which read query and passage together (Nogueira and Cho 2019).

B rows, C passages of a row: the positive first.
"""

import dataclasses
from typing import Literal

import tensorflow as tf

from official_bert.objectives import ranking_losses
from official_bert.objectives.objective import Batch, Fractions, Objective, Outputs, RowValues

LOSSES = {
    "pointwise": ranking_losses.pointwise,
    "pairwise": ranking_losses.pairwise,
    "listwise": ranking_losses.listwise,
}


@dataclasses.dataclass(frozen=True)
class Relevance(Objective):
    """The ranking loss `loss` of `logits` [B,C] over the passages of each query."""

    loss: Literal["pointwise", "pairwise", "listwise"] = "listwise"

    counter_names = ("accuracy",)

    def losses(self, outputs: Outputs, batch: Batch) -> Fractions:
        """Returns the loss, or {} if passages are only ranked."""
        if "labels" not in batch:
            return {}
        present = tf.reduce_max(batch["input_mask"], axis=-1) > 0
        return {"loss": LOSSES[self.loss](outputs["logits"], batch["labels"], present, batch["example_weights"])}

    def counters(self, outputs: Outputs, batch: Batch) -> Fractions:
        """Returns the share of queries whose positive has the highest score."""
        if "labels" not in batch:
            return {}
        best = tf.gather(batch["labels"], tf.argmax(outputs["logits"], axis=-1), batch_dims=1)
        return {"accuracy": (tf.reduce_sum(best * batch["example_weights"]), tf.reduce_sum(batch["example_weights"]))}

    def predictions(self, outputs: Outputs, batch: Batch) -> RowValues:
        return {"score": outputs["logits"][:, 0]}
