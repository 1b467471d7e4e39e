"""The configuration of the optimizer and of its learning-rate schedule."""

import dataclasses
from typing import Annotated, Literal

from official_bert.fields import Constraint, Natural, NonNegative, Positive, PositiveShare, Share, check_fields, only_with

STABLE = ("schedule", "warmup_stable_decay")
Moment = Annotated[float, Constraint("a factor from 0 (adamw alone) to below 1", lambda value: 0 <= value < 1)]


@dataclasses.dataclass(frozen=True, kw_only=True)
class OptimizerConfig:
    """The optimizer and its learning-rate schedule; the defaults are those of 2018's pre-training."""

    name: Literal["adamw", "adamw_bias_corrected", "lamb", "stable_adamw"] = "adamw"
    """Update rule; adamw is that of 2018, without bias correction."""
    learning_rate: NonNegative = 1e-4
    """Highest learning rate, reached at the end of the warm-up."""
    schedule: Literal["linear", "polynomial", "constant", "warmup_stable_decay"] = "linear"
    """Form of the learning rate after the warm-up; warmup_stable_decay keeps the highest rate until the decay."""
    power: NonNegative = only_with(1.0, "schedule", "polynomial")
    """Exponent of the polynomial schedule."""
    decay_steps: Natural = only_with(0, *STABLE)
    """Last steps of the run, in which the learning rate falls."""
    decay_proportion: Share = only_with(0.0, *STABLE)
    """The same as a share of all steps, used if decay_steps is 0."""
    decay_shape: Literal["linear", "one_minus_sqrt"] = only_with("linear", *STABLE)
    """Factor at the share x of the decay: 1 - x, or 1 - sqrt(x)."""
    end_learning_rate: NonNegative = only_with(0.0, "schedule", "linear", "polynomial", "warmup_stable_decay")
    """Learning rate at the end of the run."""
    warmup_steps: Natural = 0
    """First steps of the run, in which the learning rate rises from 0."""
    warmup_proportion: Share = 0.0
    """The same as a share of all steps, used if warmup_steps is 0."""
    weight_decay_rate: NonNegative = 0.01
    """Weight decay, of all weights but those of layer norms and biases."""
    beta_1: Moment = 0.9
    """Decay of the mean of the gradients."""
    beta_2: Moment = 0.999
    """Decay of the mean of the squared gradients."""
    epsilon: NonNegative = 1e-6
    """Added to the root of the mean squared gradient."""
    clip_norm: NonNegative = 1.0
    """Largest norm of the global gradient; 0 switches clipping off."""
    layer_decay: PositiveShare = 1.0
    """Factor between the learning rates of neighbouring layers; embeddings are below the first layer."""
    head_rate: Positive = 1.0
    """Factor of the learning rate of the task's head."""

    def __post_init__(self):
        check_fields(self, "config.optimizer.")
        for key in ("beta_1", "beta_2"):
            if getattr(self, key) == 0 and self.name != "adamw":
                raise ValueError(f"config.optimizer.{key}: expected a factor from 0 (adamw alone) to below 1, got 0 for {self.name}")
        if self.schedule == "warmup_stable_decay" and not (self.decay_steps or self.decay_proportion):
            raise ValueError("config.optimizer.decay_steps: expected decay_steps or decay_proportion above 0 for the schedule "
                             "warmup_stable_decay, got neither; without a decay use the schedule constant")
