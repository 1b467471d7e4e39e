"""Word embeddings from word vectors: of new entries in a checkpoint, and of all words of a new model."""

from collections.abc import Collection, Mapping

import numpy as np

from official_bert.config import ModelConfig
from official_bert.models.first_weights import draw_first_weights
from official_bert.models.interchange import formats
from official_bert.models.interchange.projects import ours
from official_bert.models.interchange.resizing import WORDS
from official_bert.models.interchange.stored_models import StoredModel
from official_bert.models.pretrainer import Pretrainer


def map_vectors(rows: np.ndarray, vectors: Mapping[int, np.ndarray], new: Collection[int]) -> tuple[dict[int, np.ndarray], float]:
    """Maps the vectors [W] of `new` entries to rows [D]; returns them, and the share of the variance of old rows that the map explains.

    The map, W numbers and a constant to D numbers, is fitted by least squares to the old entries that have vectors: two tables of words
    have nothing in common but the words, even if they are equally wide. Raises ValueError if these are fewer than 2 W.
    """
    shared_ids = sorted(set(vectors) - set(new))
    width = len(next(iter(vectors.values()), ()))
    if len(shared_ids) < 2 * width or not shared_ids:
        raise ValueError(f"--vectors: expected vectors for at least {max(2 * width, 1)} words that the vocabulary had before, twice their "
                         f"{width} numbers, to map them to the checkpoint's rows; got {len(shared_ids)}")

    def with_constant(indices: Collection[int]) -> np.ndarray:
        return np.array([[*vectors[index], 1.0] for index in indices]).reshape(-1, width + 1)
    old = rows[shared_ids].astype(np.float64)
    fitted = np.linalg.lstsq(with_constant(shared_ids), old, rcond=None)[0]                    # [W+1,D]
    residual = np.square(old - with_constant(shared_ids) @ fitted).sum()
    mapped = [index for index in new if index in vectors]
    explained = 1.0 - residual / max(np.square(old - old.mean(axis=0)).sum(), 1e-30)
    return dict(zip(mapped, with_constant(mapped) @ fitted)), float(explained)


def begin_with_vectors(config: ModelConfig, vectors: Mapping[int, np.ndarray], seed: int, folder: str, form: str) -> None:
    """Writes to `folder` a model for pre-training whose weights are random but for the word embeddings of ids with `vectors` [W].

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
    """Projects vectors [W] to rows [size], all scaled by one factor so that the root of the mean of their squared numbers is `spread`.

    If W is not `size`, by a random matrix with orthonormal rows or columns: narrower vectors keep their angles exactly, wider ones about.
    """
    rows = np.array(list(vectors.values()), np.float64)                                   # [N,W]
    if (width := rows.shape[1]) != size:
        basis = np.linalg.qr(np.random.default_rng(seed).normal(size=(max(width, size), min(width, size))))[0]
        rows = rows @ (basis.T if width < size else basis)                                # [N,size]
    root = np.sqrt(np.mean(np.square(rows)))
    return dict(zip(vectors, rows * (spread / root if root else 0.0)))
