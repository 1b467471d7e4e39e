"""A stored model with a longer or shorter table of positions, or with another vocabulary."""

import dataclasses
from collections.abc import Sequence
from typing import Literal

import numpy as np

from official_bert.models.interchange import stored_models
from official_bert.models.interchange.stored_models import StoredModel

Fill = Literal["repeat", "interpolate"]
WORDS, POSITIONS = "embeddings/word_embeddings", "embeddings/position_embeddings"
BY_ENTRY = (WORDS, "masked_lm/output_bias")


def resize_positions(stored: StoredModel, length: int, fill: Fill) -> StoredModel:
    """Returns a model for rows of `length` tokens. A shorter table is cut.

    A longer one repeats the old rows from the first on, so that neighbours stay neighbours but at the seams (Longformer), or
    interpolates between them. A model that tells distances has no such table: it takes longer rows as it is.
    """
    config = stored_models.require_config(stored)
    first, old = config.first_position, config.longest_row
    if length < 1:
        raise ValueError(f"expected rows of at least 1 token, got {length}")
    config = dataclasses.replace(config, max_position_embeddings=length + first)
    weights = dict(stored.weights)
    if (table := weights.get(POSITIONS)) is not None:
        rows = table[first:]
        if length <= old:
            rows = rows[:length]
        elif fill == "repeat":
            rows = rows[np.arange(length) % old]
        else:
            places = np.linspace(0, old - 1, length)                                       # [length]
            below = np.minimum(places.astype(int), max(old - 2, 0))
            share = (places - below)[:, None]
            rows = ((1 - share) * rows[below] + share * rows[np.minimum(below + 1, old - 1)]).astype(table.dtype)
        weights[POSITIONS] = np.concatenate([table[:first], rows])
    return dataclasses.replace(stored, config=config, weights=weights, longest_text=min(stored.longest_text, length))


def with_entries(stored: StoredModel, sources: Sequence[Sequence[int]]) -> StoredModel:
    """Returns a model whose entry i begins as the mean of the old entries `sources[i]`, in every table with a row for each entry."""
    config = stored_models.require_config(stored)
    weights = {name: np.stack([weight[list(ids)].mean(axis=0) if len(ids) > 1 else weight[ids[0]] for ids in sources])
               if name in BY_ENTRY else weight for name, weight in stored.weights.items()}
    return dataclasses.replace(stored, config=dataclasses.replace(config, vocab_size=len(sources)), weights=weights)
