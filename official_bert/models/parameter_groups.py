"""The parts of a model by depth: embeddings, layers, pooler, heads. Parts may be frozen, re-initialised, or trained at
learning rates of their own.
"""

import re
from collections.abc import Mapping, Sequence

import keras
import numpy as np

from official_bert.models.encoder import encoder_within, weights_by_name

WHERE = "config.training.freeze"
ANEW = "config.training.reinitialize_layers"
FROZEN_BY = "training.freeze or options.features"
LAYERS = re.compile(r"layers? +(\d+)(?: *- *(\d+))?")
LAYER = re.compile(r"layer_(\d+)/")
PARTS = ("embeddings", "pooler", "encoder")  # besides layers


def part_of(name: str) -> str:
    """Returns the part that a weight belongs to: `embeddings`, `layer_3`, `pooler` or `head`; `name` is its name in
    `weights_by_name`.
    """
    first = name.partition("/")[0]
    if first == "relative_positions":
        return "embeddings"
    if first in ("final_LayerNorm", "convolution"):
        return "pooler" if first == "final_LayerNorm" else "layer_0"
    return first if first in PARTS or LAYER.match(name) else "head"


def layers_of(model: keras.Model) -> int:
    """Returns the number of layers with weights of their own in a model's encoder. Raises ValueError if it has none."""
    config = getattr(encoder_within(model), "config", None)
    if config is None:
        raise ValueError(
            f"expected a model with a BertEncoder as its encoder, whose parts have names, got {type(model).__name__}"
        )
    return config.sharing.own_layers


def frozen_parts(freeze: str | Sequence[str], layers: int) -> set[str]:
    """Returns the parts that `freeze` names, as a list or separated by commas: `embeddings`, `layers 0-5`, `layer 3`,
    `pooler`, `encoder`.

    Raises ValueError for another name, and for a layer beyond the model's `layers`.
    """
    frozen: set[str] = set()
    every = [f"layer_{number}" for number in range(layers)]
    for name in filter(
        None, (part.strip() for text in ([freeze] if isinstance(freeze, str) else freeze) for part in text.split(","))
    ):
        if name == "encoder":
            frozen |= {"embeddings", *every, "pooler"}
        elif name in PARTS:
            frozen.add(name)
        elif match := LAYERS.fullmatch(name):
            first, last = int(match[1]), int(match[2] or match[1])
            if not first <= last < layers:
                raise ValueError(
                    f"{WHERE}: {name}: expected layers from 0 to {layers - 1}, the last one not before the first"
                )
            frozen |= set(every[first : last + 1])
        else:
            raise ValueError(
                f"{WHERE}: expected embeddings, layers 0-{layers - 1} (or any of them), pooler, encoder, got {name!r}"
            )
    return frozen


def freeze(model: keras.Model, parts: str | Sequence[str]) -> tuple[str, ...]:
    """Freezes all weights of these parts of a model and returns lines for the user; dropout in them stays on.

    Raises ValueError if nothing is left to train, and as `frozen_parts` does.
    """
    frozen = frozen_parts(parts, layers_of(model)) if parts else set()
    if not frozen:
        return ()
    before = size_of(model.trainable_variables)
    for name, weight in weights_by_name(model).items():
        if part_of(name) in frozen:
            weight.trainable = False
    if not model.trainable_variables:
        raise ValueError(f"{WHERE}: expected something left to train, got all parts of a model without a head")
    names = ", ".join(sorted(frozen, key=lambda part: (part == "pooler", part != "embeddings", len(part), part)))
    return (f"frozen: {names}; {size_of(model.trainable_variables):,} of {before:,} parameters are trained",)


def size_of(weights: Sequence[keras.Variable]) -> int:
    """Returns how many numbers the weights have."""
    return sum(int(np.prod(weight.shape)) for weight in weights)


def check_parts(freeze: str | Sequence[str], count: int, layer_decay: float, layers: int) -> None:
    """Checks which parts a model of `layers` layers can freeze, re-initialise, or train at learning rates of their own.

    Raises ValueError as `frozen_parts` does, if more layers are re-initialised than there are, if a re-initialised
    layer is frozen, and for a decay if all layers below the last are frozen.
    """
    frozen = frozen_parts(freeze, layers)
    if count > layers:
        raise ValueError(f"{ANEW}: expected at most the {layers} layers of the model, got {count}")
    if both := sorted(_parts_anew(count, layers) & frozen):
        raise ValueError(f"{ANEW}: {both[0]} would be reinitialized and frozen ({FROZEN_BY}), and never be trained")
    if layer_decay != 1.0 and {"embeddings", *(f"layer_{number}" for number in range(layers - 1))} <= frozen:
        raise ValueError(
            "config.optimizer.layer_decay: expected 1.0, embeddings and layers below the last are frozen "
            f"({FROZEN_BY}), got {layer_decay}"
        )


def _parts_anew(count: int, layers: int) -> set[str]:
    """Returns the parts that are made anew: the last `count` layers, and the pooler."""
    return {"pooler", *(f"layer_{number}" for number in range(layers - count, layers))} if count else set()


def first_values(model: keras.Model, count: int) -> Mapping[str, np.ndarray]:
    """Returns the weights of the last `count` layers and of the pooler, by name, for `put_back` after a checkpoint."""
    anew = _parts_anew(count, layers_of(model)) if count else ()
    return {name: np.array(weight.value) for name, weight in weights_by_name(model).items() if part_of(name) in anew}


def put_back(model: keras.Model, values: Mapping[str, np.ndarray]) -> None:
    """Assigns `values` to the weights of these names."""
    weights = weights_by_name(model)
    for name, value in values.items():
        weights[name].assign(value)


def rate_factors(model: keras.Model, layer_decay: float, head_rate: float) -> list[float]:
    """Returns the learning-rate factor of each trained weight, in their order.

    The factor is layer_decay ** (L - 1 - l) for layer l of L, layer_decay ** L for the embeddings, 1 for the pooler and
    `head_rate` for heads. Raises ValueError for a `head_rate` of a model without a head.
    """
    if layer_decay == head_rate == 1.0:
        return [1.0] * len(model.trainable_variables)
    layers = layers_of(model)
    parts = {id(weight): part_of(name) for name, weight in weights_by_name(model).items()}
    factors = {"embeddings": layer_decay**layers, "pooler": 1.0, "head": head_rate}
    factors |= {f"layer_{number}": layer_decay ** (layers - 1 - number) for number in range(layers)}
    if head_rate != 1.0 and "head" not in parts.values():
        raise ValueError(f"config.optimizer.head_rate: expected 1.0 for a model without a head, got {head_rate}")
    return [factors[parts[id(weight)]] for weight in model.trainable_variables]
