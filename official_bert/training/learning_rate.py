"""Learning-rate schedules: warm-up, then linear or polynomial decay, or a stable part with a decay at the end.

A new one is a class here, and a row of `training_config.SCHEDULES` that names the fields which not all schedules read.
"""

import abc
import types
from collections.abc import Mapping

import tensorflow as tf

from official_bert.config import OptimizerConfig


class LearningRate(abc.ABC):
    """The shape of the learning rate after the warm-up."""

    @abc.abstractmethod
    def share(self, config: OptimizerConfig, place: tf.Tensor, total: float, decay: float) -> tf.Tensor:
        """Returns the fraction of the way from `end_learning_rate` to the peak rate.

        `place` runs from 0 to `total`; its last `decay` are the `decay_steps`.
        """


class Constant(LearningRate):
    """Stays at the peak rate to the end."""

    def share(self, config: OptimizerConfig, place: tf.Tensor, total: float, decay: float) -> tf.Tensor:
        return tf.ones_like(place)


class Linear(LearningRate):
    """Decays linearly (2018)."""

    def share(self, config: OptimizerConfig, place: tf.Tensor, total: float, decay: float) -> tf.Tensor:
        return 1.0 - tf.minimum(place / (total or 1), 1.0)


class Polynomial(Linear):
    """Decays as the linear schedule to the power of `config.power`."""

    def share(self, config: OptimizerConfig, place: tf.Tensor, total: float, decay: float) -> tf.Tensor:
        return tf.pow(super().share(config, place, total, decay), config.power)


class WarmupStableDecay(LearningRate):
    """Stays at the peak rate and decays in the last steps (Hu et al., 2024, 4)."""

    def share(self, config: OptimizerConfig, place: tf.Tensor, total: float, decay: float) -> tf.Tensor:
        done = tf.clip_by_value((place - (total - decay)) / (decay or 1), 0.0, 1.0)
        return 1.0 - (tf.sqrt(done) if config.decay_shape == "one_minus_sqrt" else done)


CLASSES: Mapping[str, type[LearningRate]] = types.MappingProxyType(
    {
        "linear": Linear,
        "polynomial": Polynomial,
        "constant": Constant,
        "warmup_stable_decay": WarmupStableDecay,
    }
)


def scheduled_rate(config: OptimizerConfig, step: tf.Tensor, total_steps: int) -> tf.Tensor:
    """Returns the learning rate of step number `step` (from 0), float32: warm-up from 0, then the schedule over all
    `total_steps`.

    2018 counted the step before it computed the rate. The first step therefore has 1 / warm-up of the peak rate, and
    because the decay counts from the first step, the rate drops a little at the end of the warm-up.
    `warmup_stable_decay` (Hu et al., 2024, 4; the square root of Haegele et al., 2024) keeps the peak after the warm-up
    and lowers the rate in the last steps only. A run can therefore continue from its stable part to any number of
    steps; with `linear`, earlier rates would have been different.
    """
    return _rate(
        config,
        tf.cast(step, tf.float32) + 1.0,
        total_steps,
        warmup_steps(config, total_steps),
        decay_steps(config, total_steps),
    )


def rate_at_share(config: OptimizerConfig, share: tf.Tensor) -> tf.Tensor:
    """Returns the learning rate at a fraction, from 0 to 1, of a training's time, float32; warm-up and decay are
    fractions too.
    """
    return _rate(config, tf.cast(share, tf.float32), 1.0, config.warmup_proportion, config.decay_proportion)


def _rate(config: OptimizerConfig, place: tf.Tensor, total: float, warmup: float, decay: float) -> tf.Tensor:
    """The rate at a place in a schedule of the length `total`."""
    peak, end = config.learning_rate, config.end_learning_rate
    rate = (peak - end) * CLASSES[config.schedule]().share(config, place, total, decay) + end
    return tf.where(place < warmup, peak * place / (warmup or 1), rate)


def warmup_steps(config: OptimizerConfig, total_steps: int) -> int:
    """Returns the number of warm-up steps, given as a number or as a fraction of all steps (2018's fine-tuning, rounded
    down).
    """
    return config.warmup_steps or int(total_steps * config.warmup_proportion)


def decay_steps(config: OptimizerConfig, total_steps: int) -> int:
    """Returns the number of last steps in which `warmup_stable_decay` lowers the rate: a number, or a fraction of all,
    rounded down.
    """
    return config.decay_steps or int(total_steps * config.decay_proportion)


def check_shares(config: OptimizerConfig) -> None:
    """Raises ValueError for a schedule that a training limited in hours cannot follow.

    The number of its steps is unknown, so warm-up and decay must be fractions, of at most 1 together.
    """
    for key in ("warmup_steps", "decay_steps"):
        if steps := getattr(config, key):
            raise ValueError(
                f"config.optimizer.{key}: expected 0 and a {key.replace('steps', 'proportion')} beside training.hours, "
                f"whose steps nobody knows, got {steps:,}"
            )
    if config.warmup_proportion + config.decay_proportion > 1.0:
        raise ValueError(
            "config.optimizer: expected a warmup_proportion and a decay_proportion of at most 1 together, got "
            f"{config.warmup_proportion:g} and {config.decay_proportion:g}"
        )


def check_lengths(config: OptimizerConfig, total_steps: int) -> None:
    """Raises ValueError if the steps of `warmup_stable_decay` are too few for its warm-up and decay, or if no step
    decays.
    """
    if config.schedule != "warmup_stable_decay":
        return
    warmup, decay = warmup_steps(config, total_steps), decay_steps(config, total_steps)
    if not decay:
        raise ValueError(
            f"config.optimizer.decay_proportion: expected at least one of the training's {total_steps:,} steps, "
            f"got {config.decay_proportion:g} of them; give decay_steps"
        )
    if warmup + decay > total_steps:
        raise ValueError(
            f"config.optimizer: expected a warm-up and a decay of at most the training's {total_steps:,} steps, "
            f"got {warmup:,} and {decay:,}; shorten one or train longer"
        )
