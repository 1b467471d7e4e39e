"""A bidirectional LSTM over rows of texts of different lengths. B batch, S sequence, D width, half of it for each
direction.
"""

from typing import Any

import keras
from jaxtyping import Bool, Float, Int
from keras import ops


def make_bilstm(width: int, name: str, dtype: Any = None) -> keras.layers.Bidirectional:
    """Returns the layer [B,S,any] -> [B,S,D], whose first half is the forward direction."""
    lstm = keras.layers.LSTM(width // 2, return_sequences=True, name="lstm", dtype=dtype)
    return keras.layers.Bidirectional(lstm, name=name, dtype=dtype)


def run_bilstm(
    bilstm: keras.layers.Bidirectional, x: Float[Any, "B S _"], mask: Bool[Any, "B S"], training: bool | None = None
) -> Float[Any, "B S D"]:
    """Returns the outputs [B,S,D] of both directions for x [B,S,any].

    Rows where mask [B,S] is false (padding) are skipped, and their outputs are 0.
    """
    x = bilstm(x, mask=mask, training=training)
    return x * ops.cast(mask, x.dtype)[:, :, None]


def last_states(x: Float[Any, "B S D"], last: Int[Any, "B 1"]) -> Float[Any, "B D"]:
    """Returns the last states of x [B,S,D]: [B,D], forward at the row `last` [B,1], backward at row 0."""
    half = x.shape[-1] // 2
    forward = ops.take_along_axis(x[:, :, :half], last[:, :, None], axis=1)[:, 0]
    return ops.concatenate([forward, x[:, 0, half:]], axis=-1)
