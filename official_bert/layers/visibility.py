"""Which rows see which, asked for by a few rows at a time, because no tensor of [S,S] fits for long rows; and the windows of rows.

B batch, S sequence, Q query rows, W a window, K windows that a row of S has.
"""

import numpy as np
from keras import ops

LONG = 1024  # rows from here on are computed by blocks of queries


class Visibility:
    """What a layer knows of rows [B,S] and their places: the masks of its attention, and what turns its queries and keys.

    `make_attention_mask` says which rows see which. With a `window` above 0, so many tokens on each side alone. Queries are the rows at
    `places` [B,Q], or all. `rotary` is a `Rotary`, or None.
    """

    def __init__(self, input_mask, instance_ids=None, left_to_right=False, window=0, rotary=None, places=None):
        self.input_mask, self.instance_ids, self.left_to_right = ops.cast(input_mask, "bool"), instance_ids, left_to_right
        self.window, self.rotary, self.places = window, rotary, places

    def of_layer(self, window, rotary, places=None):
        """The same for a layer and its queries."""
        return Visibility(self.input_mask, self.instance_ids, self.left_to_right, window, rotary, places)

    def turned(self, queries, keys):
        """Queries [B,Q,N,H] and keys [B,S,N,H], turned by their places."""
        return (self.rotary(queries, self.places), self.rotary(keys)) if self.rotary else (queries, keys)

    def mask(self, first=None, last=None):
        """The mask [B,1,1 or Q,S], true = visible, of all queries, or of those from `first` to before `last`."""
        mask = ops.expand_dims(ops.expand_dims(self.input_mask, 1), 1)                    # [B,1,1,S]
        if self.instance_ids is None and not self.left_to_right:
            return mask
        keys = ops.arange(ops.shape(self.input_mask)[1], dtype="int32")
        places = ops.expand_dims(keys, 0) if self.places is None else ops.cast(self.places, "int32")
        places = places if first is None else places[:, first:last]                       # [B or 1,Q]
        distances = ops.expand_dims(keys, 0) - ops.expand_dims(places, 2)                 # [B or 1,Q,S]
        mask = ops.logical_and(mask, ops.expand_dims(distances, 1) <= 0) if self.left_to_right else mask
        if self.instance_ids is None:
            return mask
        own = ops.take_along_axis(self.instance_ids, ops.broadcast_to(places, (ops.shape(mask)[0], ops.shape(places)[1])), axis=1)
        return ops.logical_and(mask, ops.expand_dims(ops.expand_dims(own, 2) == ops.expand_dims(self.instance_ids, 1), 1))

    def mask_of_windows(self):
        """The mask [B*K,1,W,3W] of `windows_of` for the keys in `windows_around` them."""
        window = self.window
        mask = ops.expand_dims(ops.expand_dims(windows_around(self.input_mask, window), 1), 1)
        distances = np.arange(3 * window)[None] - window - np.arange(window)[:, None]     # [W,3W]
        near = (abs(distances) <= window) & ((distances <= 0) | (not self.left_to_right))
        mask = ops.logical_and(mask, near[None, None])
        if self.instance_ids is None:
            return mask
        own, others = windows_of(self.instance_ids, window), windows_around(self.instance_ids, window)
        return ops.logical_and(mask, ops.expand_dims(ops.expand_dims(own, 2) == ops.expand_dims(others, 1), 1))


def windows_of(x, window):
    """Cuts rows x [B,S,...] into windows, the last one filled up: [B*K,W,...]."""
    length, row_shape = ops.shape(x)[1], ops.shape(x)[2:]
    count = (length + window - 1) // window * window  # no remainder of a negative number, which ONNX has of another sign
    return ops.reshape(_padded(x, 0, count - length), (-1, window, *row_shape))


def windows_around(x, window):
    """Returns each window of x [B,S,...] with the one before and the one behind it: [B*K,3W,...]."""
    length, row_shape = ops.shape(x)[1], ops.shape(x)[2:]
    count = (length + window - 1) // window * window
    padded = _padded(x, window, window + count - length)                                  # [B,S+2W,...]
    parts = [ops.reshape(padded[:, start:start + count], (-1, window, *row_shape)) for start in (0, window, 2 * window)]
    return ops.concatenate(parts, axis=1)


def _padded(x, before, behind):
    """Rows x [B,S,...] with zeros before and behind them."""
    shape = ops.shape(x)
    parts = [ops.zeros((shape[0], before, *shape[2:]), x.dtype)] if before else []
    return ops.concatenate([*parts, x, ops.zeros((shape[0], behind, *shape[2:]), x.dtype)], axis=1)
