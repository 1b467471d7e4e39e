"""Windowed attention: a token sees a fixed number of tokens on each side (Beltagy et al. 2020; ModernBERT).

B batch, S sequence, W a window, K windows that a row of S has, N heads, H head size.
"""

import dataclasses
import functools
from typing import Any

import numpy as np
from jaxtyping import Bool, Float
from keras import ops

from official_bert.layers.attention_mask import TokenInputs, Tokens, is_within, join
from official_bert.layers.token_layout import TokenLayout, swap_heads


@dataclasses.dataclass(frozen=True)
class WindowedLayout(TokenLayout):
    """The layout of layers with a window.

    Each window of queries sees three windows of keys; the mask is [B*K,1,W,3W].
    """

    @property
    def window(self) -> int:
        """The number W of tokens on each side."""
        assert self.mask is not None
        return self.mask.shape[2]

    def at(self, query_positions: Any) -> "WindowedLayout":
        """Returns the layout for these queries: all rows are computed, and only theirs are returned."""
        return dataclasses.replace(self, query_positions=query_positions)

    def query_rows(self, x: Any, queries: Any) -> Any:
        return x

    def split_heads(self, q: Any, k: Any, v: Any) -> tuple[Any, Any, Any]:
        """Returns queries [B*K,N,W,H], and keys and values [B*K,N,3W,H], after rotation of queries and keys.

        The arguments are [B,S,N,H] each, or [1,T,N,H] without padding.
        """
        q, k = self.positions.rotate(self.pad(q), self.pad(k), None)
        keys, values = (swap_heads(windows_around(rows, self.window)) for rows in (k, self.pad(v)))
        return swap_heads(windows_of(q, self.window)), keys, values

    def merge_rows(self, context: Float[Any, "BK N W H"]) -> Any:
        """Returns the context as rows: [B*K,N,W,H] -> [B,Q,N,H], or [1,T,N,H] without padding."""
        batch, length = ops.shape(self.inputs.input_mask)
        rows = ops.reshape(swap_heads(context), (batch, -1, *context.shape[1::2]))[:, :length]  # [B,S,N,H]
        if self.query_positions is None:
            return self.unpad(rows)
        return ops.take_along_axis(rows, ops.expand_dims(self.query_positions, (2, 3)), axis=1)


def in_windows(layout: TokenLayout, window: int) -> TokenLayout:
    """Returns the layout for layers in which a token sees `window` tokens on each side.

    Rows known to be no longer than the window are not divided.
    """
    positions = layout.positions.in_windows()
    length = layout.inputs.input_mask.shape[1]
    if length is not None and length <= window:
        return dataclasses.replace(layout, positions=positions)
    return WindowedLayout(
        mask_of_windows(layout.inputs, window), layout.inputs, layout.tokens, positions, layout.query_positions
    )


def mask_of_windows(inputs: TokenInputs, window: int) -> Bool[Any, "BK 1 W W3"]:
    """Returns the mask [B*K,1,W,3W] of `windows_of` the queries for the keys in `windows_around` them."""
    own, around = (
        None if inputs.instance_ids is None else divide(inputs.instance_ids, window)
        for divide in (windows_of, windows_around)
    )
    queries = Tokens(instance_ids=own, places=np.arange(window)[None])
    keys = Tokens(windows_around(inputs.input_mask, window), around, np.arange(-window, 2 * window)[None])
    return join([*inputs.rules, functools.partial(is_within, window)], queries, keys)


def windows_of(x: Any, window: int) -> Any:
    """Returns the windows of x [B,S,...], the last one padded: [B*K,W,...]."""
    length, row_shape = ops.shape(x)[1], ops.shape(x)[2:]
    # no remainder of a negative number, which ONNX has of another sign
    count = (length + window - 1) // window * window
    return ops.reshape(_padded(x, 0, count - length), (-1, window, *row_shape))


def windows_around(x: Any, window: int) -> Any:
    """Returns each window of x [B,S,...] with the one before and the one behind it: [B*K,3W,...]."""
    length, row_shape = ops.shape(x)[1], ops.shape(x)[2:]
    count = (length + window - 1) // window * window
    padded = _padded(x, window, window + count - length)  # [B,S+2W,...]
    neighbours = [
        ops.reshape(padded[:, start : start + count], (-1, window, *row_shape)) for start in (0, window, 2 * window)
    ]
    return ops.concatenate(neighbours, axis=1)


def _padded(x: Any, before: Any, behind: Any) -> Any:
    """Returns rows x [B,S,...] with zeros before and behind them."""
    shape = ops.shape(x)
    first = [ops.zeros((shape[0], before, *shape[2:]), x.dtype)] if before else []
    return ops.concatenate([*first, x, ops.zeros((shape[0], behind, *shape[2:]), x.dtype)], axis=1)
