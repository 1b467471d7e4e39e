"""Disentangled attention (He et al. 2021, 3.1; DeBERTa): words score words and distances, and distances score words."""

from collections.abc import Sequence
from typing import Any, ClassVar

import keras
from jaxtyping import Float, Int
from keras import ops

from official_bert.layers.attention import SelfAttention, scaled_dot_product
from official_bert.layers.token_layout import swap_heads


@keras.saving.register_keras_serializable("official_bert")
class DisentangledAttention(SelfAttention):
    """A `SelfAttention` whose scores are the sum of three products.

    One more field: with `distance_projections`, distances have products of their own instead of those of queries and
    keys.
    """

    FIELDS: ClassVar[Sequence[str]] = (*SelfAttention.FIELDS, "distance_projections")
    score_terms = 3

    def make_more_products(self) -> None:
        self.distance_query = self.distance_key = None
        if self.config.distance_projections:
            head_shape = self.query.row_shape
            self.distance_query, self.distance_key = (
                self.dense(head_shape, "distance_query"),
                self.dense(head_shape, "distance_key"),
            )

    def build(self, x_shape: Any, *_: Any) -> None:
        """Makes the weights of the products."""
        super().build(x_shape)
        for product in (self.distance_query, self.distance_key):
            if product is not None:
                product.build(x_shape)

    def distance_scores(
        self, q: Float[Any, "B N Q H"], k: Float[Any, "B N S H"], distances: Float[Any, "R D"], rows: Int[Any, "_ Q S"]
    ) -> Float[Any, "B N Q S"]:
        """Returns the scores of queries with distances plus those of keys with distances, [B,N,Q,S].

        q is scaled. Pair Q,S has the distance of row `rows` [B or 1,Q,S] of `distances`, so R products a row suffice
        instead of S.
        """
        distances = ops.expand_dims(distances, 0)
        query, key = self.distance_query or self.query, self.distance_key or self.key
        of_queries, of_keys = swap_heads(query(distances) * self.scale), swap_heads(key(distances))  # [1,N,R,H]
        rows = ops.broadcast_to(ops.expand_dims(rows, 1), (*ops.shape(q)[:3], ops.shape(k)[2]))  # [B,N,Q,S]
        to_distance = ops.take_along_axis(scaled_dot_product(q, of_keys), rows, axis=3)
        # [B,N,S,Q]
        from_distance = ops.take_along_axis(
            scaled_dot_product(k, of_queries), ops.transpose(rows, (0, 1, 3, 2)), axis=3
        )
        return to_distance + ops.transpose(from_distance, (0, 1, 3, 2))
