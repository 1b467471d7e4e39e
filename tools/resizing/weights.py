"""Changes a stored model's table of positions or its vocabulary, or starts its word embeddings from word vectors."""

import dataclasses
from collections.abc import Collection, Mapping, Sequence
from typing import Literal

import numpy as np

from official_bert.config import ModelConfig
from official_bert.models.first_weights import draw_first_weights
from official_bert.models.interchange import formats, stored_models
from official_bert.models.interchange.projects import ours
from official_bert.models.interchange.stored_models import StoredModel
from official_bert.models.pretrainer import Pretrainer

Fill = Literal["repeat", "interpolate"]
WORDS, POSITIONS = "embeddings/word_embeddings", "embeddings/position_embeddings"
BY_ENTRY = (WORDS, "masked_lm/output_bias")


def resize_positions(stored: StoredModel, length: int, fill: Fill) -> StoredModel:
    """Returns a model for rows of `length` tokens. A shorter table is cut.

    A longer table repeats the old rows from the first on, so that neighbours stay neighbours except at the seams
    (Longformer), or interpolates between them. A model with relative positions has no such table and takes longer rows
    unchanged.
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
            places = np.linspace(0, old - 1, length)  # [length]
            below = np.minimum(places.astype(int), max(old - 2, 0))
            share = (places - below)[:, None]
            rows = ((1 - share) * rows[below] + share * rows[np.minimum(below + 1, old - 1)]).astype(table.dtype)
        weights[POSITIONS] = np.concatenate([table[:first], rows])
    return dataclasses.replace(stored, config=config, weights=weights, longest_text=min(stored.longest_text, length))


def with_entries(stored: StoredModel, sources: Sequence[Sequence[int]]) -> StoredModel:
    """Returns a model whose entry i starts as the mean of the old entries `sources[i]`, in every table with a row per
    entry.
    """
    config = stored_models.require_config(stored)
    weights = {
        name: np.stack([weight[list(ids)].mean(axis=0) if len(ids) > 1 else weight[ids[0]] for ids in sources])
        if name in BY_ENTRY
        else weight
        for name, weight in stored.weights.items()
    }
    return dataclasses.replace(stored, config=dataclasses.replace(config, vocab_size=len(sources)), weights=weights)


def map_vectors(
    rows: np.ndarray, vectors: Mapping[int, np.ndarray], new: Collection[int]
) -> tuple[dict[int, np.ndarray], float]:
    """Returns rows [D] for `new` entries, mapped from their vectors [W], and the share of the old rows' variance that
    the map explains.

    The map, from W numbers and a constant to D numbers, is fitted by least squares to the old entries that have
    vectors. Two tables of words have only the words in common, even if they are equally wide. Raises ValueError if
    these entries are fewer than 2 W.
    """
    shared_ids = sorted(set(vectors) - set(new))
    width = len(next(iter(vectors.values()), ()))
    if len(shared_ids) < 2 * width or not shared_ids:
        raise ValueError(
            f"--vectors: expected vectors for at least {max(2 * width, 1)} words of the old vocabulary, twice "
            f"their {width} numbers, to map them to the checkpoint's rows; got {len(shared_ids)}"
        )

    def with_constant(indices: Collection[int]) -> np.ndarray:
        return np.array([[*vectors[index], 1.0] for index in indices]).reshape(-1, width + 1)

    old = rows[shared_ids].astype(np.float64)
    fitted = np.linalg.lstsq(with_constant(shared_ids), old, rcond=None)[0]  # [W+1,D]
    residual = np.square(old - with_constant(shared_ids) @ fitted).sum()
    mapped = [index for index in new if index in vectors]
    explained = 1.0 - residual / max(np.square(old - old.mean(axis=0)).sum(), 1e-30)
    return dict(zip(mapped, with_constant(mapped) @ fitted)), float(explained)


def begin_with_vectors(
    config: ModelConfig, vectors: Mapping[int, np.ndarray], seed: int, folder: str, form: str
) -> None:
    """Writes to `folder` a model for pre-training with random weights, except the word embeddings of ids with `vectors`
    [W].

    `form` is a format of `formats`. Raises ValueError if there are no vectors.
    """
    if not vectors:
        raise ValueError("--vectors: expected vectors for some words of the vocabulary, got none")
    model = Pretrainer.make(config, {})
    draw_first_weights(model, seed)
    weights = {name: np.array(value) for name, value in ours.named_weights(model).items()}
    for index, row in project_vectors(vectors, config.hidden_size, config.initializer_range, seed).items():
        weights[WORDS][index] = row
    stored = StoredModel(origin="word vectors", weights=weights, table=ours.TABLE, config=config, head="pretraining")
    formats.module_of(form).write(stored, folder)


def project_vectors(vectors: Mapping[int, np.ndarray], size: int, spread: float, seed: int) -> dict[int, np.ndarray]:
    """Returns vectors [W] as rows [size], all scaled by one factor so that the root mean square of their numbers is
    `spread`.

    If W is not `size`, they are multiplied by a random matrix with orthonormal rows or columns: narrower vectors keep
    their angles exactly, wider ones approximately.
    """
    rows = np.array(list(vectors.values()), np.float64)  # [N,W]
    if (width := rows.shape[1]) != size:
        basis = np.linalg.qr(np.random.default_rng(seed).normal(size=(max(width, size), min(width, size))))[0]
        rows = rows @ (basis.T if width < size else basis)  # [N,size]
    root = np.sqrt(np.mean(np.square(rows)))
    return dict(zip(vectors, rows * (spread / root if root else 0.0)))
