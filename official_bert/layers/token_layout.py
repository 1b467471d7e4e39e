"""The layout of the tokens in every layer of an encoder: which see which, their positions, which rows are queries.

B batch, S sequence, Q query rows, T real tokens of the batch, N heads, H head size.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, Self

from jaxtyping import Bool, Float, Int
from keras import ops

from official_bert.layers.positions import EMBEDDED, Positions
from official_bert.layers.speed.fused import Dropout
from official_bert.layers.speed.real_tokens import ALL, AllTokens

LONG = 1024  # rows of more tokens are computed by blocks of queries
SOME = object()  # `query_positions` of queries that are given to a layer beside a plain mask


@dataclasses.dataclass(frozen=True)
class TokenLayout:
    """The mask of attention, and how the rows of a batch lie in memory. One object serves all layers of an encoder.

    All tensors are made before the first layer: one that is made inside a recomputed function cannot leave it.
    """

    mask: Bool[Any, "#B 1 #Q S"] | None  # true = visible; None: made for some queries at a time (`LongLayout`)
    # a `TokenInputs`, for masks that are made for some queries; None: a plain mask
    inputs: Any = None
    tokens: AllTokens = ALL  # rows with their padding, or real tokens alone
    positions: Positions = EMBEDDED
    query_positions: Any = None  # [B,Q] of the queries; None: every token is a query
    windowed: "TokenLayout | None" = None  # for the layers in which a token sees a window only

    @classmethod
    def of(cls, attention_mask: Any, queries: Any = None) -> "TokenLayout":
        """Returns the layout that a layer is given as its mask, or one for a plain mask [B,1,1 or Q,S]."""
        if isinstance(attention_mask, TokenLayout):
            return attention_mask
        return cls(attention_mask, query_positions=None if queries is None else SOME)

    def at(self, query_positions: Int[Any, "B Q"]) -> Self:
        """Returns the layout for queries at these query_positions only; keys and values come from all tokens."""
        mask = self.mask
        if mask is not None and mask.shape[2] != 1:
            mask = ops.take_along_axis(mask, ops.expand_dims(query_positions, (1, 3)), axis=2)  # [B,1,Q,S]
        return dataclasses.replace(
            self,
            mask=mask,
            query_positions=query_positions,
            positions=self.positions.at(query_positions),
            windowed=self.windowed and self.windowed.at(query_positions),
        )

    def pad(self, x: Float[Any, "..."]) -> Float[Any, "..."]:
        """Returns rows with their padding: [1,T,...] -> [B,S,...], or x as it is if it has them."""
        return self.tokens.pad(x)

    def unpad(self, x: Float[Any, "..."]) -> Float[Any, "..."]:
        """Returns rows without padding, if the layers compute so: [B,S,...] -> [1,T,...]."""
        return self.tokens.unpad(x)

    def query_rows(self, x: Float[Any, "..."], queries: Any) -> Float[Any, "..."]:
        """Returns the query rows: `queries` [B,Q,D], or all of x [B,S,D]."""
        return x if queries is None else queries

    def split_heads(self, q: Any, k: Any, v: Any) -> tuple[Any, Any, Any]:
        """[B,Q,N,H], [B,S,N,H] twice (or [1,T,N,H]) -> [B,N,Q,H], [B,N,S,H] twice, queries and keys turned by their
        positions.
        """
        q = self.pad(q) if self.query_positions is None else q
        q, k = self.positions.rotate(q, self.pad(k), self.query_positions)
        return swap_heads(q), swap_heads(k), swap_heads(self.pad(v))

    def bias(self, attention: Any, q: Any, k: Any) -> Any:
        """Returns what `positions` add to the scores of an attention layer, [B or 1,N,Q,S], or None (BERT)."""
        return self.positions.bias(attention, q, k)

    def attend(
        self, kernel: Callable, q: Any, k: Any, v: Any, bias: Any, dropout: Dropout, training: bool | None = None
    ) -> Float[Any, "B N Q H"]:
        """Computes attention by a `kernel` (`attention.attend`, or one of its kind) with the mask of this layout."""
        return kernel(q, k, v, self.mask, bias, dropout, training=training)

    def merge_rows(self, context: Float[Any, "B N Q H"]) -> Float[Any, "..."]:
        """[B,N,Q,H] -> [B,Q,N,H], or [1,T,N,H] without padding."""
        rows = swap_heads(context)
        return self.unpad(rows) if self.query_positions is None else rows


def swap_heads(x: Float[Any, "B X Y H"]) -> Float[Any, "B Y X H"]:
    """[B,S,N,H] -> [B,N,S,H], and back."""
    return ops.transpose(x, (0, 2, 1, 3))
