"""The recipe of a training step: objective, model and settings."""

import dataclasses
from collections.abc import Callable
from typing import Any

import keras
from jaxtyping import Float

from official_bert.model_config import ModelConfig
from official_bert.objectives.objective import Batch, Objective
from official_bert.training.optimization import Update
from official_bert.training_config import OptimizerConfig, TrainingConfig


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Recipe:
    """An objective, its model, and the settings with which the model learns."""

    objective: Objective
    model: keras.Model
    sizes: ModelConfig
    training: TrainingConfig
    optimizer: OptimizerConfig
    seed: int
    update: Update  # of a weight
    flops: Callable[[Batch], Float[Any, ""]]  # of a training step on a batch
    reads_pooler: bool  # whether a head reads the pooler, whose weights do not decay otherwise
