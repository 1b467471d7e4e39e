"""The learning rate of each step: warm-up, then a schedule over all steps."""

import tensorflow as tf

from official_bert.config import OptimizerConfig


def scheduled_rate(config: OptimizerConfig, step: tf.Tensor, total_steps: int) -> tf.Tensor:
    """The learning rate of step number `step` (from 0), float32: warm-up from 0, then the schedule over all `total_steps`.

    2018 counted the step before it computed the rate. So the first step has 1 / warm-up of the peak rate, and because the
    decay counts from the first step, the rate drops a little at the end of the warm-up.
    """
    step = tf.cast(step, tf.float32) + 1.0
    warmup = warmup_steps(config, total_steps)
    peak, end = config.learning_rate, config.end_learning_rate
    if config.schedule == "constant":
        rate = tf.constant(peak, tf.float32)
    else:
        power = config.power if config.schedule == "polynomial" else 1.0
        done = tf.minimum(step / max(total_steps, 1), 1.0)
        rate = (peak - end) * tf.pow(1.0 - done, power) + end
    return tf.where(step < warmup, peak * step / max(warmup, 1), rate)


def warmup_steps(config: OptimizerConfig, total_steps: int) -> int:
    """The steps of warm-up: a number, or a share of all steps (2018's fine-tuning, rounded down)."""
    return config.warmup_steps or int(total_steps * config.warmup_proportion)
