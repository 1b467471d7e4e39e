"""The attention mask: it says which tokens see which (paper A.2: padding is not attended to; 2018
`create_attention_mask_from_input_mask`).

B batch, S sequence, Q query rows, N heads.
"""

import dataclasses
from typing import Any

from jaxtyping import Bool, Float, Int
from keras import ops

# the score of a masked place; not minus infinity: a row that sees nothing gets equal weights instead of NaN
UNSEEN = -1e9


def make_attention_mask(input_mask: Any, instance_ids: Any = None, left_to_right: bool = False) -> Bool[Any, "B 1 _ S"]:
    """Returns the attention mask [B,1,1,S] of input_mask [B,S], or [B,1,S,S] with `instance_ids` [B,S] or left to
    right; true = visible.

    Tokens of packed rows see their own instance only. Left to right, a token sees itself and the tokens before it. What
    padding sees does not matter.
    """
    # Not [:, None, None, :]: those are strided slices, which LiteRT lacks.
    mask = ops.expand_dims(ops.expand_dims(ops.cast(input_mask, "bool"), 1), 1)  # [B,1,1,S]
    if left_to_right:
        places = ops.arange(ops.shape(input_mask)[1])
        mask = ops.logical_and(mask, ops.expand_dims(places, 1) >= ops.expand_dims(places, 0))  # [B,1,S,S]
    if instance_ids is None:
        return mask
    return ops.logical_and(mask, (instance_ids[:, :, None] == instance_ids[:, None, :])[:, None])


def masked_softmax(scores: Float[Any, "B N Q S"], attention_mask: Bool[Any, "#B 1 #Q S"]) -> Float[Any, "B N Q S"]:
    """Returns the softmax of the scores over visible tokens, in float32 under every precision policy."""
    return ops.softmax(ops.where(attention_mask, ops.cast(scores, "float32"), UNSEEN), axis=-1)


@dataclasses.dataclass(frozen=True)
class TokenInputs:
    """The inputs from which layers make masks of their own: for long rows, windows and a convolution."""

    input_mask: Any  # [B,S] bool, true = a real token
    instance_ids: Any = None  # [B,S]: tokens see their instance alone
    left_to_right: bool = False
    embedded: Any = None  # [B,S,D], the output of the embeddings

    def mask(
        self, query_positions: Int[Any, "B Q"] | None = None, first: Any = None, last: Any = None
    ) -> Bool[Any, "_ 1 _ S"]:
        """Returns the mask [B,1,1 or Q,S] of the queries at `query_positions`, by default of all tokens.

        `first` and `last` select a block of these queries, from `first` to before `last`.
        """
        mask = ops.expand_dims(ops.expand_dims(self.input_mask, 1), 1)  # [B,1,1,S]
        if self.instance_ids is None and not self.left_to_right:
            return mask
        keys = ops.arange(ops.shape(self.input_mask)[1], dtype="int32")
        places = ops.expand_dims(keys, 0) if query_positions is None else ops.cast(query_positions, "int32")
        places = places if first is None else places[:, first:last]  # [B or 1,Q]
        if self.left_to_right:
            distances = ops.expand_dims(keys, 0) - ops.expand_dims(places, 2)  # [B or 1,Q,S]
            mask = ops.logical_and(mask, ops.expand_dims(distances, 1) <= 0)
        if self.instance_ids is None:
            return mask
        places = ops.broadcast_to(places, (ops.shape(mask)[0], ops.shape(places)[1]))
        own = ops.expand_dims(ops.take_along_axis(self.instance_ids, places, axis=1), 2)  # [B,Q,1]
        return ops.logical_and(mask, ops.expand_dims(own == ops.expand_dims(self.instance_ids, 1), 1))
