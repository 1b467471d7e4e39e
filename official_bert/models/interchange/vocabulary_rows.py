"""Rows of a vocabulary: new entries' word embeddings and biases in a checkpoint, and a new model's embeddings from word vectors."""

import os
from collections.abc import Collection, Mapping

import numpy as np
import tensorflow as tf

from official_bert.config import ModelConfig
from official_bert.models.checkpoints import checkpoint_at
from official_bert.models.first_weights import draw_first_weights
from official_bert.models.interchange import casing, formats, stored_models
from official_bert.models.interchange.projects import ours, tf1
from official_bert.models.interchange.stored_models import StoredModel
from official_bert.models.pretrainer import Pretrainer
from official_bert.models.run_folder import CHECKPOINT, RunFolder
from official_bert.text.vocab import read_entries

# Suffixes of the variables with a row or number for each entry, here and in 2018.
EMBEDDINGS = "embeddings/word_embeddings"
VOCABULARY_VARIABLES = (EMBEDDINGS, "masked_lm/output_bias", "cls/predictions/output_bias")
PREFIX, VALUE = "weights/", "/.ATTRIBUTES/VARIABLE_VALUE"
OPTIMIZER_VARIABLES = ("/adam_m", "/adam_v", "global_step")  # of 2018


def check_vocabulary(path: str, vocab_file: str) -> None:
    """Raises ValueError if the vocabulary beside checkpoint `path` is as long as that of `vocab_file`, but has other entries."""
    if prefix := checkpoint_at(path):
        casing.check_entries(vocab_file, read_entries(vocab_file), stored_models.read_vocab(os.path.dirname(prefix)), path)


def extend_checkpoint(path: str, folder: str, vocab_size: int, pieces: Mapping[int, list[int]], size: int,
                      vectors: Mapping[int, np.ndarray] | None = None) -> float:
    """Writes to `folder` the weights of checkpoint `path` for a vocabulary of `size` entries, in the same format.

    `pieces` gives, for each new or replaced entry, the ids that spelled it: its row begins as the mean of their rows. Drops
    optimizer and step: training starts anew from these weights. With word `vectors` [W] by id, word embeddings of new entries that
    have one begin as `map_vectors` says; returns what it says of its fit, 0 without vectors.

    Raises ValueError if there is no checkpoint, if its tables do not have `vocab_size` rows, or if too few old entries have vectors.
    """
    weights, own = _read_weights(path)
    tables = [name for name in weights if name.endswith(VOCABULARY_VARIABLES)]
    if not any(name.endswith(EMBEDDINGS) for name in tables):
        raise ValueError(f"--init_checkpoint={path}: expected a BERT checkpoint with {EMBEDDINGS}, "
                         f"got {', '.join(sorted(weights)[:4])} ...")
    for name in tables:
        if len(weights[name]) != vocab_size:
            raise ValueError(f"--init_checkpoint={path}: {name} has {len(weights[name])} rows, "
                             f"but the configuration says vocab_size {vocab_size}")
        weights[name] = extend_rows(weights[name], pieces, size)
    explained = 0.0
    for name in tables:
        if vectors is not None and name.endswith(EMBEDDINGS):
            rows, explained = map_vectors(weights[name], vectors, pieces)
            for index, row in rows.items():
                weights[name][index] = row
    _write_weights(weights, folder, own)
    return explained


def extend_rows(rows: np.ndarray, pieces: Mapping[int, list[int]], size: int) -> np.ndarray:
    """Extends `rows` [V,...] to [size,...]: row i of `pieces` is the mean of its old rows, the other rows stay."""
    extended = np.zeros((size, *rows.shape[1:]), rows.dtype)
    extended[:len(rows)] = rows
    for index, parts in pieces.items():
        extended[index] = rows[parts].mean(axis=0)
    return extended


def map_vectors(rows: np.ndarray, vectors: Mapping[int, np.ndarray], new: Collection[int]) -> tuple[dict[int, np.ndarray], float]:
    """Maps the vectors [W] of `new` entries to rows [D]; returns them, and the share of the variance of old rows that the map explains.

    The map, W numbers and a constant to D numbers, is fitted by least squares to the old entries that have vectors: two tables of words
    have nothing in common but the words, even if they are equally wide. Raises ValueError if these are fewer than 2 W.
    """
    known = sorted(set(vectors) - set(new))
    width = len(next(iter(vectors.values()), ()))
    if len(known) < 2 * width or not known:
        raise ValueError(f"--vectors: expected vectors for at least {max(2 * width, 1)} words that the vocabulary had before, twice their "
                         f"{width} numbers, to map them to the checkpoint's rows; got {len(known)}")

    def with_constant(indices: Collection[int]) -> np.ndarray:
        return np.array([[*vectors[index], 1.0] for index in indices]).reshape(-1, width + 1)
    old = rows[known].astype(np.float64)
    fitted = np.linalg.lstsq(with_constant(known), old, rcond=None)[0]                    # [W+1,D]
    left = np.square(old - with_constant(known) @ fitted).sum()
    mapped = [index for index in new if index in vectors]
    explained = 1.0 - left / max(np.square(old - old.mean(axis=0)).sum(), 1e-30)
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
        weights[EMBEDDINGS][index] = row
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


def _read_weights(path: str) -> tuple[dict[str, np.ndarray], bool]:
    """Returns a checkpoint's weights by name, without optimizer and step, and whether the checkpoint is ours."""
    prefix = checkpoint_at(path)
    if prefix is None:
        raise ValueError(f"--init_checkpoint={path}: no checkpoint found there")
    reader = tf.train.load_checkpoint(prefix)
    names = sorted(reader.get_variable_to_shape_map())
    own = [name for name in names if name.startswith(PREFIX)]
    if own:
        return {name.removeprefix(PREFIX).removesuffix(VALUE).replace(".S", "/"): reader.get_tensor(name)
                for name in own}, True
    return {name: reader.get_tensor(name) for name in names if not name.endswith(OPTIMIZER_VARIABLES)}, False


def _write_weights(weights: Mapping[str, np.ndarray], folder: str, own: bool) -> None:
    if not own:
        return tf1.write_checkpoint(weights, folder)
    variables = {name: tf.Variable(value) for name, value in weights.items()}
    tf.train.Checkpoint(weights=variables).save(RunFolder(folder).file(CHECKPOINT))
