"""The token layout, which every layer of an encoder shares: which tokens see which, their positions, and which are
queries.

B batch, S sequence, Q query rows, T real tokens of the batch, N heads, H head size.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, ClassVar, Self

from jaxtyping import Bool, Float, Int
from keras import ops

from official_bert.layers.positions import EMBEDDED, Positions
from official_bert.layers.speed.fused import Dropout
from official_bert.layers.speed.real_tokens import ALL, AllTokens

LONG = 1024  # rows of more tokens are computed by blocks of queries
SOME = object()  # `query_positions` of queries that are given to a layer beside a plain mask


@dataclasses.dataclass(frozen=True)
class TokenLayout:
    """The attention mask, and the order of the batch's rows in memory. One object serves all layers of an encoder.

    All tensors exist before the first layer runs, because a tensor made inside a recomputed function cannot leave it.
    """

    mask: Bool[Any, "#B 1 #Q S"] | None  # true = visible; None: made for some queries at a time (`LongLayout`)
    # a `TokenInputs`, for masks that are made for some queries; None: a plain mask
    inputs: Any = None
    tokens: AllTokens = ALL  # rows with their padding, or real tokens alone
    positions: Positions = EMBEDDED
    query_positions: Any = None  # [B,Q] of the queries; None: every token is a query
    windowed: "TokenLayout | None" = None  # for the layers in which a token sees a window only
    blocks: ClassVar[Callable | None] = None  # computes attention by blocks of queries, if there is no bias

    @classmethod
    def of(cls, layout: Any, queries: Any = None) -> "TokenLayout":
        """Returns `layout`, or a layout for it if it is a plain mask [B,1,1 or Q,S]."""
        if isinstance(layout, TokenLayout):
            return layout
        return cls(layout, query_positions=None if queries is None else SOME)

    def at(self, query_positions: Int[Any, "B Q"]) -> Self:
        """Returns the layout for queries at `query_positions` only; keys and values still come from all tokens."""
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
        """Returns rows with padding: [1,T,...] -> [B,S,...], or x itself if it is padded."""
        return self.tokens.pad(x)

    def unpad(self, x: Float[Any, "..."]) -> Float[Any, "..."]:
        """Returns rows without padding if the layers skip it: [B,S,...] -> [1,T,...]."""
        return self.tokens.unpad(x)

    def query_rows(self, x: Float[Any, "..."], queries: Any) -> Float[Any, "..."]:
        """Returns `queries` [B,Q,D] if given, or else x [B,S,D]."""
        return x if queries is None else queries

    def split_heads(self, q: Any, k: Any, v: Any) -> tuple[Any, Any, Any]:
        """Returns queries, keys and values with the heads before the rows, after rotation of queries and keys.

        Shapes: [B,Q,N,H], [B,S,N,H] twice (or [1,T,N,H] without padding) -> [B,N,Q,H], [B,N,S,H] twice.
        """
        q = self.pad(q) if self.query_positions is None else q
        q, k = self.positions.rotate(q, self.pad(k), self.query_positions)
        return swap_heads(q), swap_heads(k), swap_heads(self.pad(v))

    def bias(self, attention: Any, q: Any, k: Any) -> Any:
        """Returns the bias [B or 1,N,Q,S] that `positions` add to an attention layer's scores, or None (BERT)."""
        return self.positions.bias(attention, q, k)

    def mask_of_queries(self) -> Bool[Any, "#B 1 #Q S"]:
        """Returns the mask of all queries."""
        return self.mask

    def attend(
        self, kernel: Callable, q: Any, k: Any, v: Any, bias: Any, dropout: Dropout, training: bool | None = None
    ) -> Float[Any, "B N Q H"]:
        """Returns the attention output [B,N,Q,H] that `kernel` (`attention.attend`) computes, for attention layers of
        one's own.
        """
        return kernel(q, k, v, self.mask_of_queries(), bias, dropout, training=training)

    def merge_rows(self, context: Float[Any, "B N Q H"]) -> Float[Any, "..."]:
        """Returns the context with the rows before the heads: [B,N,Q,H] -> [B,Q,N,H], or [1,T,N,H] without padding."""
        rows = swap_heads(context)
        return self.unpad(rows) if self.query_positions is None else rows


def swap_heads(x: Float[Any, "B X Y H"]) -> Float[Any, "B Y X H"]:
    """Returns x with heads and rows swapped: [B,S,N,H] -> [B,N,S,H], and back."""
    return ops.transpose(x, (0, 2, 1, 3))
