"""Separates a discriminator and its generator in a run's checkpoint, and joins them again."""

import dataclasses
from collections.abc import Iterable

from official_bert.config import Config
from official_bert.models.encoder import GENERATOR
from official_bert.models.interchange.names import Tensors, Weights, with_prefix
from official_bert.models.interchange.stored_models import OBJECTIVE_OPTIONS, StoredModel
from official_bert.models.replaced_tokens import generator_config

OF_ITS_ENCODER = f"{GENERATOR}/encoder/"
DIFFERENCE = "_difference"  # at the end of the name of a table that is added to the generator's
TABLES, NORM = "_embeddings", "embeddings/LayerNorm/"  # what a generator may share


def _own_name(name: str) -> str:
    """Returns the name that a generator's weight has in a model of its own."""
    return name.removeprefix(OF_ITS_ENCODER) if name.startswith(OF_ITS_ENCODER) else name.removeprefix(f"{GENERATOR}/")


def told_apart(stored: StoredModel, config: Config | None) -> StoredModel:
    """Returns a discriminator with its generator as a separate model, each with all its tables.

    Without the `config` of their run, which has the generator's size, the generator is left out.
    """
    of_generator = {_own_name(name): weight for name, weight in with_prefix(stored.weights, f"{GENERATOR}/").items()}
    weights = {name: weight for name, weight in stored.weights.items() if not name.startswith(f"{GENERATOR}/")}
    for name in [name for name in weights if name.endswith(DIFFERENCE)]:
        table = name.removesuffix(DIFFERENCE)
        weights[table] = of_generator[table] + weights.pop(name)
    if config is None:
        return dataclasses.replace(
            stored, weights=weights, notes=[*stored.notes, "its generator is not used: there is no configuration"]
        )
    shared = {name: weight for name, weight in weights.items() if name.endswith(TABLES) or name.startswith(NORM)}
    sizes = generator_config(
        config.model, config.options.get("generator_width", 0.25), config.options.get("generator_layers", 1.0)
    )
    generator = dataclasses.replace(
        stored,
        weights={**shared, **of_generator},
        config=sizes,
        head="pretraining",
        objective="masked_lm",
        sentence_task="",
    )
    own = {key: config.options[key] for key in OBJECTIVE_OPTIONS if key in config.options}
    return dataclasses.replace(
        stored,
        weights=weights,
        head="replaced",
        objective="replaced_tokens",
        objective_options=own,
        generator=generator,
    )


def put_together(stored: StoredModel, names: Iterable[str]) -> StoredModel:
    """Returns a discriminator with its generator's weights among its own, for a model of both with weights of these
    `names`.

    Without a generator, the discriminator's tables are also used for the generator.
    """
    weights: Tensors = dict(stored.weights)
    lent: Weights = {} if stored.generator is None else stored.generator.weights
    for name in names:
        if name.startswith(f"{GENERATOR}/") and (own := _own_name(name)) in lent:
            weights[name] = lent[own]
        elif name.endswith(DIFFERENCE) and (table := name.removesuffix(DIFFERENCE)) in weights:
            whole = weights.pop(table)
            weights[name] = whole - lent.get(table, whole)
            weights.setdefault(f"{OF_ITS_ENCODER}{table}", lent.get(table, whole))
    return dataclasses.replace(stored, weights=weights)
