"""The core's access to adapters, which are imported only if they are used."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import keras

from official_bert.dotted_names import by_name
from official_bert.model_config import ModelConfig
from official_bert.models.encoder import weights_by_name
from official_bert.models.interchange.stored_models import StoredModel
from official_bert.run_folder import RunFolder
from official_bert.training_config import AdaptersConfig

ADAPTER = "/adapter/lora_"  # in the names of an adapter's two weights, before A and B


Adapted = tuple[Mapping[str, Any], tuple[str, ...]]  # what a run records of the base, and lines


class Adapters(Protocol):
    """The functions of `models/adapters.py` that the core calls."""

    read_peft: Callable[[str, str, str], StoredModel]  # what a folder makes of its base
    over_base: Callable[[StoredModel, RunFolder], StoredModel]  # the model of a run that keeps adapters and head
    targets: Callable[[ModelConfig, str | Sequence[str]], Any]  # refuses a name that no product has
    adapt_to_base: Callable[[keras.Model, AdaptersConfig, RunFolder, str, bool], Adapted]
    reset: Callable[[keras.Model], None]


def adapters() -> Adapters:
    """Imports and returns the module of adapters."""
    return by_name("official_bert.models.adapters")


def adapt_to_base(
    model: keras.Model, settings: AdaptersConfig | None, run: RunFolder, init_checkpoint: str, reads_pooler: bool
) -> Adapted:
    """Attaches the adapters of a training, if it has any, to a built model.

    Returns what the run records of the base, and lines for the user. Raises ValueError if there is no such base.
    """
    if settings is None:
        return {}, ()
    return adapters().adapt_to_base(model, settings, run, init_checkpoint, reads_pooler)


def reset(model: keras.Model) -> None:
    """Sets the adapters of a model, if it has any, so that they add nothing."""
    if any(ADAPTER in name for name in weights_by_name(model)):
        adapters().reset(model)
