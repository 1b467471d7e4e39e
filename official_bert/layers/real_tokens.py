"""Rows without their padding: between the layers of a training step, the real tokens of a batch lie beside each other as one row.

So products, norms, activations and dropout compute no padding. Attention, and whatever else reads rows as wholes, gets the padding back.
Both ways are gathers, and so are their gradients. B batch, S sequence, T real tokens of the batch.
"""

import contextlib
import contextvars
from collections.abc import Iterator

from keras import ops

MULTIPLE = 128  # of which T is for pieces that are compiled for each shape
_multiple = contextvars.ContextVar("multiple", default=0)


@contextlib.contextmanager
def padding_left_out(active: bool, rounded: bool = False) -> Iterator[None]:
    """While it is open, and `active`, encoders in training leave padding out of rows whose length is not known beforehand.

    If T is `rounded`, compiled pieces have few shapes.
    """
    token = _multiple.set((MULTIPLE if rounded else 1) * active)
    try:
        yield
    finally:
        _multiple.reset(token)


class AllTokens:
    """The tokens of rows that keep their padding."""

    def take(self, x):
        """[B,S,...], as it is."""
        return x

    put = take


ALL = AllTokens()


class RealTokens(AllTokens):
    """The real tokens of rows: input_mask [B,S], 1 = real; rows of 0 make T a multiple of a number."""

    def __init__(self, input_mask, multiple: int = 1):
        # The first place counts in any case, so that there is a token even if all texts are empty.
        real = ops.concatenate([ops.ones((1,), "bool"), ops.reshape(ops.cast(input_mask, "bool"), (-1,))[1:]], axis=0)
        self.mask = ops.reshape(real, ops.shape(input_mask))
        self.places = ops.cast(ops.nonzero(real)[0], "int32")                     # of each real token among the B * S
        self.rounded, self.zeros = multiple > 1, -ops.shape(self.places)[0] % multiple
        numbers = ops.cumsum(ops.cast(real, "int32")) - 1                         # of each place among the T; of padding, one before it
        self.numbers = ops.reshape(numbers, ops.shape(input_mask))                # [B,S]

    def take(self, x):
        """[B,S,...] -> [1,T,...]."""
        @ops.custom_gradient
        def taken(x):
            def gradient(upstream):
                return ops.where(ops.expand_dims(self.mask, tuple(range(2, len(x.shape)))), self._padded(upstream), 0)
            return self._joined(x), gradient
        return taken(x)

    def put(self, x):
        """[1,T,...] -> [B,S,...], in which padding repeats a real token. Nothing may read it: it has no gradient."""
        @ops.custom_gradient
        def padded(x):
            return self._padded(x), self._joined
        return padded(x)

    def _joined(self, x):
        rows = ops.take(ops.reshape(x, (-1, *x.shape[2:])), self.places, axis=0)
        filled = ops.pad(rows, [(0, self.zeros), *[(0, 0)] * (len(x.shape) - 2)]) if self.rounded else rows
        return ops.expand_dims(filled, 0)

    def _padded(self, x):
        return ops.take(ops.squeeze(x, 0), self.numbers, axis=0)


def tokens_of(input_mask, training) -> AllTokens:
    """What layers compute of rows with the mask [B,S]."""
    multiple = _multiple.get()
    return RealTokens(input_mask, multiple) if training and multiple and None in tuple(input_mask.shape) else ALL
