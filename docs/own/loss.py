"""A loss of your own: focal loss (Lin et al., 2017), in which texts that the model is sure of count less."""

import dataclasses

import tensorflow as tf

from official_bert.objectives.labels import OneLabel
from official_bert.tasks.texts import classification


@dataclasses.dataclass(frozen=True)
class FocalLoss(OneLabel):
    """One label a text; accuracy and predictions are those of `OneLabel`."""

    focus: float = 2.0  # 0 is cross-entropy

    def losses(self, outputs, batch):
        """Returns (sum, weight): only the training step divides, over all devices and micro-batches."""
        logits, weights = tf.cast(outputs["logits"], tf.float32), batch["example_weights"]
        right = tf.gather(tf.nn.log_softmax(logits), batch["label_ids"], batch_dims=1)  # [B]
        loss = -((1.0 - tf.exp(right)) ** self.focus) * right
        return {"loss": (tf.reduce_sum(loss * weights), tf.reduce_sum(weights))}


class Task(classification.Task):
    """Classification, one label a text, with focal loss."""

    objective = FocalLoss()
