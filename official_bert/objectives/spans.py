"""Start and end of an answer in a window of a passage (paper 4.2 and 4.3)."""

import dataclasses

import tensorflow as tf

from official_bert.objectives import losses
from official_bert.objectives.objective import Batch, Fractions, Objective, Outputs, RowValues


@dataclasses.dataclass(frozen=True)
class AnswerSpan(Objective):
    """The mean of the start and end losses over the real tokens of a row; windows without an answer point to [CLS]."""

    names = ("start", "end")

    def losses(self, outputs: Outputs, batch: Batch) -> Fractions:
        if "start_positions" not in batch:
            return {}
        fractions = {}
        for name in self.names:
            # Padding is never an answer, whatever its logits, so that the loss does not depend on the batch's other
            # rows.
            logits = tf.where(tf.cast(batch["input_mask"], tf.bool), outputs[f"{name}_logits"], tf.float32.min)
            total, weight = losses.cross_entropy(logits, batch[f"{name}_positions"], batch["example_weights"])
            fractions[name] = (0.5 * total, weight)
        return fractions

    def predictions(self, outputs: Outputs, batch: Batch) -> RowValues:
        """Returns the start and end logits, including those of padding."""
        return {name: outputs[name] for name in ("start_logits", "end_logits")}
