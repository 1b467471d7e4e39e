"""A second loss of your own that is no cross-entropy: large logits cost something (the z-loss of PaLM, 2022)."""

import dataclasses

import tensorflow as tf

from official_bert.objectives.objective import Objective, Sum
from official_bert.tasks.texts import classification


@dataclasses.dataclass(frozen=True)
class LogitPenalty(Objective):
    """The square of log(sum of exp(logits)), times `factor`."""

    names = ("penalty",)  # the log has `penalty_loss`
    factor: float = 1e-2

    def losses(self, outputs, batch):
        """Returns (sum, weight), the weight that `weights` gives: by default the number of real rows."""
        squares = tf.square(tf.reduce_logsumexp(tf.cast(outputs["logits"], tf.float32), axis=-1))  # [B]
        weights = batch["example_weights"]  # 0 for rows that only fill a batch
        return {"penalty": (self.factor * tf.reduce_sum(squares * weights), tf.reduce_sum(weights))}


class Task(classification.Task):
    """Classification with its own loss and the penalty."""

    @property
    def objective(self):
        """What is learned and measured."""
        return Sum((super().objective, LogitPenalty()))
