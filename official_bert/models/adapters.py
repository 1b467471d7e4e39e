"""Adapters in a trained model: which products get one, what else is trained, and their base."""

from collections.abc import Mapping
from typing import Any

import keras
import numpy as np

from official_bert.layers.adapters import attach
from official_bert.layers.dense import Dense
from official_bert.models.adaptation import ADAPTER
from official_bert.models.encoder import encoder_within, weights_by_name
from official_bert.models.interchange import formats
from official_bert.models.interchange.adapted_models import adapted
from official_bert.models.interchange.adapted_models.adapted import targets as targets
from official_bert.models.interchange.adapted_models.over_base import over_base as over_base
from official_bert.models.interchange.adapted_models.over_base import read_peft as read_peft
from official_bert.models.interchange.stored_models import LowRank, StoredModel
from official_bert.models.parameter_groups import part_of, size_of
from official_bert.run_folder import RunFolder
from official_bert.storage.files import absolute, exists
from official_bert.storage.temporaries import original_paths
from official_bert.training_config import AdaptersConfig

WHERE = "config.training.adapters"


def find_base(run: RunFolder, init_checkpoint: str) -> tuple[dict[str, Any], bool]:
    """Returns what a run records of its base, `path` and `digest`, and whether the base has a pooler.

    The base is `init_checkpoint`, or else the base that the run has recorded. Raises ValueError if there is none, or if
    it differs from the recorded one.
    """
    recorded = run.base
    path = init_checkpoint or recorded.get("path", "")
    if original_paths(path) != path:
        raise ValueError(
            f"{WHERE}: expected no --base, which names the base of adapters in --init_checkpoint; "
            "convert_checkpoint --merge_adapters writes the merged model, which can be a base"
        )
    if not path:
        raise ValueError(f"{WHERE}: expected --init_checkpoint with it, the base that is fixed")
    try:
        stored = formats.read(path)
    except ValueError as error:
        raise ValueError(f"{'--init_checkpoint=' if init_checkpoint else f'the base of {run.path}: '}{error}") from None
    digest = adapted.digest(stored)
    if recorded.get("digest", digest) != digest:
        raise ValueError(f"{path}: expected the base of the adapters in {run.path}, got a model with other weights")
    is_here = exists(path) or exists(f"{path}.index")  # if not, it is a name on a hub
    return {"path": absolute(path) if is_here else path, "digest": digest}, "pooler/kernel" in stored.weights


def adapt_to_base(
    model: keras.Model, settings: AdaptersConfig, run: RunFolder, init_checkpoint: str, reads_pooler: bool
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Attaches adapters to a built model and returns what the run records of the base, and lines for the user.

    Raises ValueError as `find_base` and `adapt` do.
    """
    base, has_pooler = find_base(run, init_checkpoint)
    return base, (adapt(model, settings, reads_pooler and not has_pooler, reads_pooler),)


def adapt(model: keras.Model, settings: AdaptersConfig, trains_pooler: bool, reads_pooler: bool = True) -> str:
    """Attaches adapters to a built model, freezes all other weights except the heads, and returns a line for the user.

    With `trains_pooler`, the base has no pooler, and the new one is trained like a head. A pooler that no head reads
    gets no adapter. Raises ValueError if nothing is left to train, and as `adapted.targets` does.
    """
    if hasattr(model, "generator"):
        raise ValueError(f"{WHERE}: expected none for the objective replaced_tokens, whose generator learns as a whole")
    names = adapted.targets(encoder_within(model).config, settings.target_modules) if settings.rank else []
    names = [name for name in names if name != "pooler" or (reads_pooler and not trains_pooler)]
    before = size_of(model.trainable_variables)
    products = products_of(model)
    for name in names:
        attach(products[name], rank=settings.rank, scale=settings.scale, dropout=settings.dropout)
    beside = tuple(f"{name}/bias" for name in names)
    biases = {"none": (), "all": ("/bias", "/beta"), "lora_only": beside}[settings.bias]
    for name, weight in weights_by_name(model).items():
        weight.trainable = (
            part_of(name) == "head"
            or (name.startswith("pooler/") and trains_pooler)
            or ADAPTER in name
            or name.endswith(biases)
        )
    if not model.trainable_variables:
        raise ValueError(f"{WHERE}.rank: expected at least 1 for a model without a head, got 0")
    return (
        f"adapters of rank {settings.rank} beside {len(names)} products; the base is fixed; "
        f"{size_of(model.trainable_variables):,} of {before:,} parameters are trained"
    )


def products_of(model: keras.Model) -> Mapping[str, Dense]:
    """Returns the dense layers of a built model's encoder by their names."""
    names = {id(weight): name.removesuffix("/kernel") for name, weight in weights_by_name(model).items()}
    layers = [layer for layer in encoder_within(model)._flatten_layers() if isinstance(layer, Dense)]
    return {names[id(layer.kernel)]: layer for layer in layers}


def separate(model: keras.Model, products: Mapping[str, LowRank], base: StoredModel) -> None:
    """Restores the base's kernels in a model with merged adapters, and attaches the `products` as adapters."""
    layers = products_of(model)
    for name, product in products.items():
        dense = layers[name]
        dense.kernel.assign(base.weights[f"{name}/kernel"].reshape(dense.kernel.shape))
        attach(dense, rank=product.down.shape[1], scale=product.scale).set_weights([product.down, product.up])


def reset(model: keras.Model) -> None:
    """Sets B of every adapter to 0, so that the adapters add nothing."""
    for name, weight in weights_by_name(model).items():
        if name.endswith(f"{ADAPTER}B"):
            weight.assign(np.zeros(weight.shape))
