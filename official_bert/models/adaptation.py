"""Adapters, as far as the core asks for them."""

from collections.abc import Mapping, Sequence
from typing import Any

import keras

from official_bert.dotted_names import by_name
from official_bert.model_config import ModelConfig
from official_bert.models.encoder import weights_by_name
from official_bert.models.interchange.stored_models import StoredModel
from official_bert.run_folder import RunFolder
from official_bert.training_config import AdaptersConfig

ADAPTERS = "official_bert.models.adapters"
ADAPTER = "/adapter/lora_"  # in the names of an adapter's two weights, before A and B


def read_peft(path: str, folder: str, base: str) -> StoredModel:
    """Returns the model that a PEFT folder makes of its base."""
    return by_name(ADAPTERS).read_peft(path, folder, base)


def over_base(model: StoredModel, run: RunFolder) -> StoredModel:
    """Returns the whole model of a run whose checkpoints hold adapters and head."""
    return by_name(ADAPTERS).over_base(model, run)


def check_targets(config: ModelConfig, target_modules: str | Sequence[str]) -> None:
    """Raises ValueError for a name of `target_modules` that no product of the model has."""
    by_name(ADAPTERS).targets(config, target_modules)


def adapt_to_base(
    model: keras.Model, settings: AdaptersConfig | None, run: RunFolder, init_checkpoint: str, reads_pooler: bool
) -> tuple[Mapping[str, Any], tuple[str, ...]]:
    """Attaches the adapters of a training, if it has any, to a built model; returns what the run records of the base,
    and lines. Raises ValueError without that base.
    """
    if settings is None:
        return {}, ()
    return by_name(ADAPTERS).adapt_to_base(model, settings, run, init_checkpoint, reads_pooler)


def reset(model: keras.Model) -> None:
    """Lets the adapters of a model add nothing."""
    if any(ADAPTER in name for name in weights_by_name(model)):
        by_name(ADAPTERS).reset(model)
