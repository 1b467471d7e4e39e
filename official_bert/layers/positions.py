"""Positions of tokens within attention, in addition to those in the embeddings."""

from typing import Any, Self

from jaxtyping import Float, Int


class Positions:
    """BERT's positions within attention: none, because only the embeddings encode positions (paper 3, figure 2).

    Relatives of BERT override `rotate` or `bias`. B batch, S sequence, Q query rows, N heads, H head size.
    """

    learned: tuple = ()  # tensors with gradients: a function that is recomputed takes them as arguments
    # (first, last) -> the bias of these queries alone, without gradients, if long rows can take it by blocks
    between: Any = None

    def rotate(self, q: Float[Any, "B Q N H"], k: Float[Any, "B S N H"], query_positions: Any) -> tuple[Any, Any]:
        """Returns queries and keys, rotated by their positions.

        `query_positions` are [B,Q], or None if queries stand at all S positions.
        """
        return q, k

    def bias(self, attention: Any, q: Float[Any, "B N Q H"], k: Float[Any, "B N S H"]) -> Float[Any, "#B N Q S"] | None:
        """Returns the bias that is added to the scores of an attention layer, or None."""
        return None

    def at(self, query_positions: Int[Any, "B Q"]) -> Self:
        """Returns these positions for queries at `query_positions` only."""
        return self

    def with_learned(self, *learned: Any) -> Self:
        """Returns a copy of these positions with other tensors as `learned`."""
        return self

    def in_windows(self) -> Self:
        """Returns the positions for layers with windowed attention."""
        return self


EMBEDDED = Positions()
