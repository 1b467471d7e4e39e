"""Text vectors: the rows of an encoder are pooled, then layers follow, as in the modules of sentence-transformers.

Training, evaluation, answers, exports and servers all call `text_vectors`.

B batch, S sequence, D hidden size, W numbers of a vector.
"""

from collections.abc import Sequence
from typing import Any

import keras
from keras import ops

from official_bert.models.encoder import BertEncoder, Inputs
from official_bert.models.vector_layers import LAYER_PREFIX, Pooling, Poolings, VectorLayer, poolings_of

PROMPT_TOKENS = "prompt_tokens"  # [B,1]: first tokens of each row that are not pooled, [CLS] among them
LOWEST = -1e9  # in place of rows that the maximum does not see


def make_vector_layers(layers: Sequence[VectorLayer], width: int) -> list[keras.layers.Layer]:
    """Returns the layers after a pooling to `width` numbers, with their weights; they compute as PyTorch does, in
    float32.
    """
    made: list[keras.layers.Layer] = []
    for number, layer in enumerate(layers):
        name = f"{LAYER_PREFIX}{number}"
        if layer.kind == "dense":
            made.append(
                keras.layers.Dense(
                    layer.units, activation=layer.activation, use_bias=layer.use_bias, name=name, dtype="float32"
                )
            )
        elif layer.kind == "layer_norm":
            made.append(keras.layers.LayerNormalization(epsilon=1e-5, name=name, dtype="float32"))
        else:
            made.append(keras.layers.UnitNormalization(name=name, dtype="float32"))
        made[-1].build((None, width))
        width = layer.units or width
    return made


def text_vectors(
    encoder: BertEncoder,
    inputs: Inputs,
    pooling: Poolings = "mean",
    layers: Sequence[keras.layers.Layer] = (),
    training: bool | None = None,
) -> Any:
    """Returns a vector [B,W] for each text, float32: the results of the poolings are concatenated and passed through
    the layers.

    Inputs are the encoder's, and optionally `prompt_tokens`. `cls` takes the row of [CLS] (left to right, of the last
    token), or the first row behind the prompt. The other poolings read the rows of real tokens behind it.
    `mean_sqrt_len_tokens` divides their sum by the square root of their number; `weightedmean` weights each row by its
    position, from 1.
    """
    rows_of = {name: value for name, value in inputs.items() if name != PROMPT_TOKENS}
    if poolings_of(pooling) == ("cls",) and PROMPT_TOKENS not in inputs:
        place = encoder.reader.pooled_positions(inputs["input_mask"])
        vectors = ops.cast(
            encoder({**rows_of, "output_positions": place}, training=training)["sequence_output"][:, 0], "float32"
        )
    else:
        rows = ops.cast(encoder(rows_of, training=training)["sequence_output"], "float32")  # [B,S,D]
        vectors = [_pooled(rows, mode, inputs, encoder) for mode in poolings_of(pooling)]
        vectors = vectors[0] if len(vectors) == 1 else ops.concatenate(vectors, axis=1)
    for layer in layers:
        vectors = layer(vectors)
    return vectors


def _pooled(rows: Any, mode: Pooling, inputs: Inputs, encoder: BertEncoder) -> Any:
    """Returns the pooled rows [B,S,D] -> [B,D]."""
    seen = ops.cast(inputs["input_mask"], "float32")  # [B,S]
    if PROMPT_TOKENS not in inputs and mode == "cls":
        return encoder.reader.gather_rows(rows, encoder.reader.pooled_positions(inputs["input_mask"]))[:, 0]
    places = ops.arange(ops.shape(rows)[1], dtype="float32")[None]  # [1,S]
    if PROMPT_TOKENS in inputs:
        seen = seen * ops.cast(places >= ops.cast(inputs[PROMPT_TOKENS], "float32"), "float32")
    weights = ops.expand_dims(seen, 2)  # [B,S,1]
    if mode == "max":
        return ops.max(ops.where(weights > 0.0, rows, LOWEST), axis=1)
    if mode in ("cls", "lasttoken"):  # by a product, which every runtime has
        first, last = (
            ops.min(ops.where(seen > 0.0, places, -LOWEST), axis=1, keepdims=True),
            ops.max(places * seen, axis=1, keepdims=True),
        )
        chosen = seen * ops.cast(places == (first if mode == "cls" else last), "float32")
        return ops.sum(rows * ops.expand_dims(chosen, 2), axis=1)
    if mode == "weightedmean":
        weights = weights * ops.expand_dims(places + 1.0, 2)
    total, count = ops.sum(rows * weights, axis=1), ops.maximum(ops.sum(weights, axis=1), 1.0)
    return total / (ops.sqrt(count) if mode == "mean_sqrt_len_tokens" else count)
