"""Rows without their padding: between layers, in a training step or a served graph, the real tokens of a batch lie
beside each other as one row.

So products, norms, activations and dropout compute no padding. Attention, and whatever else reads rows as wholes, gets
the padding back. Both ways are gathers, and so are their gradients. B batch, S sequence, T real tokens of the batch.
"""

from typing import Any

from jaxtyping import Float
from keras import ops

from official_bert.layers.speed.computing import current

MULTIPLE = 128  # of which T is for pieces that are compiled for each shape


class AllTokens:
    """The tokens of rows that keep their padding."""

    def unpad(self, x: Float[Any, "..."]) -> Float[Any, "..."]:
        """Returns x [B,S,...] unchanged."""
        return x

    pad = unpad


ALL = AllTokens()


class RealTokens(AllTokens):
    """The real tokens of rows by input_mask [B,S] (1 = real); filler rows round T up to a multiple of a number."""

    def __init__(self, input_mask: Any, multiple: int = 1):
        real = ops.cast(input_mask, "bool")
        # a row without any is computed as a whole
        real = ops.logical_or(real, ops.logical_not(ops.any(real, axis=1, keepdims=True)))
        counts = ops.cast(real, "int32")
        self.mask = real  # [B,S]
        self.places = ops.cast(ops.nonzero(ops.reshape(real, (-1,)))[0], "int32")  # of each real token among the B * S
        self.rounded, self.zeros = multiple > 1, -ops.shape(self.places)[0] % multiple
        of_rows = ops.sum(counts, axis=1)
        first = ops.expand_dims(ops.cumsum(of_rows) - of_rows, 1)  # [B,1]: of each row among the T
        # Of each place among the T; of padding, that of a token of the same row: nobody gets numbers of another's text.
        self.numbers = first + ops.maximum(ops.cumsum(counts, axis=1) - 1, 0)  # [B,S]

    def unpad(self, x: Float[Any, "..."]) -> Float[Any, "..."]:
        """Returns the real tokens as one row: [B,S,...] -> [1,T,...]."""
        rows = ops.take(ops.reshape(x, (-1, *x.shape[2:])), self.places, axis=0)
        filled = ops.pad(rows, [(0, self.zeros), *[(0, 0)] * (len(x.shape) - 2)]) if self.rounded else rows
        return ops.expand_dims(filled, 0)

    def pad(self, x: Float[Any, "..."]) -> Float[Any, "..."]:
        """Returns rows with padding: [1,T,...] -> [B,S,...].

        Padding repeats a real token. Nothing may read it, because it has no gradient.
        """
        return ops.take(ops.squeeze(x, 0), self.numbers, axis=0)


class LearningTokens(RealTokens):
    """Real tokens whose gradients are gathers too."""

    def unpad(self, x: Float[Any, "..."]) -> Float[Any, "..."]:
        @ops.custom_gradient
        def taken(x: Any) -> Any:
            def gradient(upstream: Any) -> Any:
                rows = RealTokens.pad(self, upstream)
                return ops.where(ops.expand_dims(self.mask, tuple(range(2, len(x.shape)))), rows, 0)

            return RealTokens.unpad(self, x), gradient

        return taken(x)

    def pad(self, x: Float[Any, "..."]) -> Float[Any, "..."]:
        @ops.custom_gradient
        def padded(x: Any) -> Any:
            return RealTokens.pad(self, x), lambda upstream: RealTokens.unpad(self, upstream)

        return padded(x)


def tokens_of(input_mask: Any, training: bool | None) -> AllTokens:
    """Returns the tokens that the layers compute for the mask [B,S]: all, unless `Computing.removes_padding` is set and
    S is unknown.
    """
    if not current().removes_padding or None not in tuple(input_mask.shape):
        return ALL
    return (LearningTokens if training else RealTokens)(input_mask, MULTIPLE if current().compiles_every_length else 1)
