"""An optimizer of your own: Lion (Chen et al., 2023), whose step is a sign."""

import tensorflow as tf

from official_bert.tasks.texts import classification
from official_bert.training.optimization import Moments


class Task(classification.Task):
    """Classification with Lion: a tenth of AdamW's learning rate, `optimizer.beta_2` 0.99."""

    @staticmethod
    def update(config, weight, gradient, moments, rate, step, decayed):
        """Returns a weight after step number `step` (from 0), and its moments; all float32 tensors of its shape.

        The gradient is clipped, `rate` is that of the schedule, and `decayed` says whether the weight decays (all but
        LayerNorm and biases).
        """
        change = tf.sign(config.beta_1 * moments.first + (1.0 - config.beta_1) * gradient)
        if decayed:
            change += config.weight_decay_rate * weight
        first = config.beta_2 * moments.first + (1.0 - config.beta_2) * gradient
        return weight - rate * change, Moments(first, moments.second)
