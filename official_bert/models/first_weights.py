"""Initial weights of a model: each variable depends on the seed and its own name alone.

Keras gives every initializer one seed. Tables that share an initializer then begin with the same rows, and one layer
more or less changes the values of all layers made after it.
"""

import zlib

import keras
import numpy as np

from official_bert.layers.embeddings import Embeddings
from official_bert.model_config import BERT_BASE, OF_RELATIVES
from official_bert.models.encoder import BertEncoder, weights_by_name

NEIGHBOURS = (1, -1, 2, -2)  # where the heads of a first layer look, in tokens
# what does not change how a first layer sees positions
OF_ANY_SHAPE = ("embedding_size", "layer_groups", "layers_in_group")
MATCH = 6.0  # the score of that token before the softmax; the others' are near 0


def draw_first_weights(model: keras.Model, seed: int) -> None:
    """Draws every random weight of a built model again, by its own initializer with a seed of (`seed`, the variable's
    name).

    The values are the same under every strategy. Weights that begin as constants (biases, layer norms, a CRF's scores)
    keep their values.
    """
    names = {id(variable): name for name, variable in weights_by_name(model).items()}
    for layer in model._flatten_layers():
        for attribute, initializer in vars(layer).items():
            if not attribute.endswith("_initializer") or "seed" not in (settings := initializer.get_config()):
                continue
            stem = attribute.removesuffix("_initializer")  # of `kernel`, or of an LSTM's `recurrent_kernel`
            variable = getattr(layer, stem, None)
            variable = getattr(layer, f"{stem}_kernel") if variable is None else variable
            drawn = type(initializer).from_config(settings | {"seed": _own_seed(seed, names[id(variable)])})
            variable.assign(drawn(variable.shape, variable.dtype))


def begin_with_neighbours(model: keras.Model, seed: int) -> None:
    """Initializes up to four heads of a pre-trainer's first layer to attend to the next and the previous token, and to
    the tokens two steps away.

    A small model with random weights takes a thousand steps and more to learn that these tokens matter. In a
    left-to-right model, heads attend to previous tokens only. Position embeddings become orthogonal (nearly, if there
    are more positions than numbers in a row) and keep their length. The head for masked words begins by predicting its
    input word. All other weights keep their values. A replaced-token model and its generator both begin this way;
    layers with shared weights change together. Raises ValueError for an encoder with other parts than BERT's.
    """
    _look_at_neighbours(model.encoder, seed)
    guesser = getattr(model, "generator", model)
    if guesser is not model:
        _look_at_neighbours(guesser.encoder, seed)
    projection = guesser.encoder.embeddings.projection
    words = np.eye(guesser.encoder.config.hidden_size) if projection is None else np.array(projection.kernel).T
    guesser.masked_lm.transform.kernel.assign(words / (np.linalg.norm(words) / len(words) ** 0.5))


def _look_at_neighbours(encoder: BertEncoder, seed: int) -> None:
    """Lets heads of an encoder's first layer look at the tokens beside; its positions, and the product behind them,
    fit.
    """
    config = encoder.config
    if differing := [
        key for key in OF_RELATIVES if key not in OF_ANY_SHAPE and getattr(config, key) != getattr(BERT_BASE, key)
    ]:
        raise ValueError(
            f"a first layer that looks at neighbours: expected an encoder of BERT's parts, got model.{differing[0]} "
            f"{getattr(config, differing[0])!r}"
        )
    attention, embeddings = encoder.transformer_layers[0].attention, encoder.embeddings
    positions, width = config.max_position_embeddings, config.table_width
    query, key = (np.array(layer.kernel) for layer in (attention.query, attention.key))  # [D,N,H]
    heads, head_size = query.shape[1:]
    rows = _unit_rows(positions, width, _own_seed(seed, "neighbours/positions"))  # [P,E]
    # [P,H]: what stands for a position in a head
    marks = _unit_rows(positions, head_size, _own_seed(seed, "neighbours/marks"))
    if type(embeddings) is Embeddings:  # a table of its own: others are lent, or add differences that begin at 0
        embeddings.position_embeddings.assign(rows * config.initializer_range * width**0.5)
    # Normalized, a row of the embeddings has length sqrt(E); words, segments and positions have a third of its square
    # each.
    length = (width / 3) ** 0.5
    if embeddings.projection is not None:
        kernel = _projection(rows, config.hidden_size, _own_seed(seed, "neighbours/projection"))
        kernel *= np.linalg.norm(embeddings.projection.kernel) / np.linalg.norm(kernel)
        embeddings.projection.kernel.assign(kernel)
        rows = rows @ kernel  # [P,D]
        kept = np.linalg.norm(rows, axis=1).mean()
        rows, length = rows / kept, length * kept
    scale = (MATCH * head_size**0.5) ** 0.5 / length
    shifts = [shift for shift in NEIGHBOURS if shift < 0 or config.attention == "bidirectional"]
    for head, shift in zip(range(heads), shifts):
        sought = np.zeros_like(marks)
        sought[max(shift, 0) : positions + min(shift, 0)] = marks[max(-shift, 0) : positions - max(shift, 0)]
        query[:, head] = scale * rows.T @ marks
        key[:, head] = scale * rows.T @ sought  # position p + shift has the mark of p
    attention.query.kernel.assign(query)
    attention.key.kernel.assign(key)


def _projection(rows: np.ndarray, width: int, seed: int) -> np.ndarray:
    """Returns a product [E,D] that keeps lengths as far as it can, first of all those of `rows` [P,E], and the angles
    between them.
    """
    positions, table_width = rows.shape
    # [E,E]: the directions of the rows first
    basis, _ = np.linalg.qr(np.concatenate([rows.T, np.eye(table_width)], axis=1))
    kept = basis[:, : max(positions, width)]
    turn = np.array(keras.initializers.Orthogonal(seed=seed)((kept.shape[1], width), "float32"))
    return kept @ turn


def _own_seed(seed: int, name: str) -> int:
    """Returns a variable's seed, below 2^31, which every backend takes."""
    return zlib.crc32(f"{seed}/{name}".encode()) >> 1


def _unit_rows(count: int, width: int, seed: int) -> np.ndarray:
    """Returns rows [count,width] of length 1; orthogonal ones if they are no more than the width."""
    rows = np.array(keras.initializers.Orthogonal(seed=seed)((count, width), "float32"))
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)
