"""Positions within attention: a table of distance buckets (Raffel et al. 2020, 2.1; MPNet), disentangled embeddings
(DeBERTa), a slope for each head (Press et al. 2022; JinaBERT), or rotation of queries and keys (Su et al. 2021;
ModernBERT).
"""

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import keras
import numpy as np
from jaxtyping import Float, Int
from keras import ops

from official_bert.layers.configured import Configured
from official_bert.layers.layer_norm import LayerNormalization
from official_bert.layers.positions import Positions
from official_bert.model_config import BERT_BASE, ModelConfig

LONGEST = ("max_position_embeddings", "first_position", "row_limit")  # fields that say how long the longest row is
FARTHEST = 128  # distances from here on share the last bucket


@functools.cache
def buckets_of_distances(buckets: int, longest: int) -> np.ndarray:
    """Returns the bucket of each distance -(longest - 1), ..., longest - 1 of a key from its query.

    Half of the buckets are for keys behind the query; of each half, half for single distances, half for ranges that
    grow by a factor.
    """
    distances = np.arange(1 - longest, longest)
    half, exact = buckets // 2, buckets // 4
    # in float32, as PyTorch computes it: borders of ranges depend on it
    far = np.maximum(np.abs(distances), 1).astype(np.float32)
    steps = np.log(far / np.float32(exact)) / np.float32(np.log(FARTHEST / exact)) * np.float32(half - exact)
    ranges = np.minimum(exact + steps.astype(np.int32), half - 1)
    return np.where(distances > 0, half, 0) + np.where(np.abs(distances) < exact, np.abs(distances), ranges)


@keras.saving.register_keras_serializable("official_bert")
class RelativePositions(Configured):
    """A table with a score for each head and bucket of distances (MPNet). B batch, Q query rows, S sequence, N heads.

    Fields: `relative_buckets`, `num_attention_heads`, `initializer_range`, and `max_position_embeddings`,
    `first_position` and `row_limit` for the tokens of the longest row.
    """

    FIELDS: ClassVar[Sequence[str]] = ("relative_buckets", "num_attention_heads", "initializer_range", *LONGEST)
    SYNONYMS: ClassVar[Mapping[str, str]] = {
        **Configured.SYNONYMS,
        "buckets": "relative_buckets",
        "longest": "max_position_embeddings",
    }

    def __init__(self, config: ModelConfig = BERT_BASE, **fields: Any) -> None:
        super().__init__(config, **fields)
        self.table_initializer = self.initializer()

    def build(self, *_: Any) -> None:
        """Makes the table."""
        self.table = self.add_weight(
            shape=(self.config.relative_buckets, self.config.num_attention_heads),
            initializer=self.table_initializer,
            name="table",
            autocast=False,
        )
        self.built = True

    def call(self, query_positions: Int[Any, "_ Q"], key_positions: Int[Any, "S"]) -> Float[Any, "_ N Q S"]:
        """Returns the bias [B or 1,N,Q,S] for the positions of queries [B or 1,Q] and of keys [S] in their row."""
        longest = self.config.longest_row
        # [2*longest-1,N]
        of_distance = ops.take(self.table, buckets_of_distances(self.config.relative_buckets, longest), axis=0)
        # [B or 1,Q,S]
        distances = ops.expand_dims(ops.expand_dims(key_positions, 0), 0) - ops.expand_dims(query_positions, 2)
        return ops.transpose(
            ops.take(ops.cast(of_distance, self.compute_dtype), distances + longest - 1, axis=0), (0, 3, 1, 2)
        )

    def positions(self, length: Any) -> "Bucketed":
        """Returns the positions of rows of `length` tokens."""
        keys = ops.arange(length, dtype="int32")
        return Bucketed(self, keys, (self(ops.expand_dims(keys, 0), keys),))


@dataclasses.dataclass(frozen=True)
class Bucketed(Positions):
    """Adds to each score the bias of its distance's bucket."""

    layer: RelativePositions
    key_positions: Any  # [S]
    learned: tuple = ()  # the numbers [B or 1,N,Q,S]

    def bias(self, attention: Any, q: Any, k: Any) -> Any:
        return self.learned[0]

    def at(self, query_positions: Any) -> "Bucketed":
        return dataclasses.replace(self, learned=(self.layer(query_positions, self.key_positions),))

    def with_learned(self, *learned: Any) -> "Bucketed":
        return dataclasses.replace(self, learned=learned)


@functools.cache
def rows_of_distances(buckets: int, span: int, longest: int) -> np.ndarray:
    """Returns the row of each distance -(longest - 1), ..., longest - 1 of a query from its key in a table of 2 *
    `buckets` rows.

    Distances up to half of the buckets have a row each; farther ones share rows by their logarithm, up to `span`
    (DeBERTa v2).
    """
    distances, half = np.arange(1 - longest, longest), buckets // 2
    # in float32, as PyTorch computes it: borders of ranges depend on it
    far = np.maximum(np.abs(distances), half).astype(np.float32)
    steps = np.ceil(np.log(far / np.float32(half)) / np.log(np.float32((span - 1) / half)) * np.float32(half - 1))
    ranges = np.where(np.abs(distances) <= half, distances, np.sign(distances) * (steps.astype(np.int32) + half))
    return np.clip(ranges + buckets, 0, 2 * buckets - 1).astype(np.int32)


@keras.saving.register_keras_serializable("official_bert")
class DistanceEmbeddings(Configured):
    """A table with a normalized row for each bucket of distances (He et al. 2021). B batch, Q query rows, S sequence, R
    rows, D hidden size.

    Fields: `position_buckets`, `position_span`, `hidden_size`, `initializer_range`, `layer_norm_epsilon`, and
    `max_position_embeddings`, `first_position` and `row_limit` for the tokens of the longest row.
    """

    FIELDS: ClassVar[Sequence[str]] = (
        "position_buckets",
        "position_span",
        "hidden_size",
        "initializer_range",
        "layer_norm_epsilon",
        *LONGEST,
    )
    SYNONYMS: ClassVar[Mapping[str, str]] = {
        "buckets": "position_buckets",
        "span": "position_span",
        "longest": "max_position_embeddings",
    }

    def __init__(self, config: ModelConfig = BERT_BASE, **fields: Any) -> None:
        super().__init__(config, **fields)
        self.table_initializer = self.initializer()
        self.layer_norm = LayerNormalization(
            epsilon=self.config.layer_norm_epsilon, name="LayerNorm", dtype=self.dtype_policy
        )

    def build(self, *_: Any) -> None:
        """Makes the table and its layer norm."""
        shape = (2 * self.config.position_buckets, self.config.hidden_size)
        self.table = self.add_weight(shape=shape, initializer=self.table_initializer, name="table", autocast=False)
        self.layer_norm.build(shape)
        self.built = True

    def call(
        self, query_positions: Int[Any, "_ Q"], key_positions: Int[Any, "S"]
    ) -> tuple[Float[Any, "R D"], Int[Any, "_ Q S"]]:
        """Returns the table [R,D] and the row of each pair of tokens [B or 1,Q,S].

        The arguments are the positions of queries [B or 1,Q] and of keys [S] in their row.
        """
        config, longest = self.config, self.config.longest_row
        numbers = ops.convert_to_tensor(rows_of_distances(config.position_buckets, config.position_span, longest))
        distances = ops.expand_dims(query_positions, 2) - ops.expand_dims(ops.expand_dims(key_positions, 0), 0)
        return self.layer_norm(self.table), ops.take(numbers, distances + longest - 1, axis=0)

    def positions(self, length: Any) -> "Distances":
        """Returns the positions of rows of `length` tokens."""
        keys = ops.arange(length, dtype="int32")
        distances, rows = self(ops.expand_dims(keys, 0), keys)
        return Distances(self, keys, rows, (distances,))


@dataclasses.dataclass(frozen=True)
class Distances(Positions):
    """Adds to the scores the products of words with distances (`DisentangledAttention`)."""

    layer: DistanceEmbeddings
    key_positions: Any  # [S]
    rows: Any  # [B or 1,Q,S], of each pair among the distances
    learned: tuple = ()  # the distances [R,D]

    def bias(self, attention: Any, q: Any, k: Any) -> Any:
        return attention.distance_scores(q, k, *self.learned, self.rows)

    def at(self, query_positions: Any) -> "Distances":
        distances, rows = self.layer(query_positions, self.key_positions)
        return dataclasses.replace(self, rows=rows, learned=(distances,))

    def with_learned(self, *learned: Any) -> "Distances":
        return dataclasses.replace(self, learned=learned)


@functools.cache
def slopes_of_heads(heads: int) -> np.ndarray:
    """Returns the slope of each head: 2^(-8h/p) of the largest power of two p, then every other one of 2p heads'."""
    power = 1 << (heads.bit_length() - 1)
    steps = [*np.arange(1, power + 1), *np.arange(0.5, power, 1)[: heads - power]]
    return (2.0 ** (-8 * np.array(steps) / power)).astype(np.float32)


@dataclasses.dataclass(frozen=True)
class Alibi(Positions):
    """Lowers the scores with the distance of two tokens in either direction, by the slope of their head (Press et al.
    2022).
    """

    heads: int
    key_positions: Int[Any, "1 S"]
    query_positions: Int[Any, "_ Q"]

    def bias(self, attention: Any, q: Any, k: Any) -> Any:
        return ops.cast(self.between(), attention.compute_dtype)

    def between(self, first: Any = None, last: Any = None) -> Float[Any, "_ N Q S"]:
        """Returns the bias of queries from `first` to before `last`, by default of all."""
        queries, keys = ops.expand_dims(self.query_positions[:, first:last], 2), ops.expand_dims(self.key_positions, 1)
        distances = ops.expand_dims(ops.cast(ops.abs(queries - keys), "float32"), 1)  # [B or 1,1,Q,S]
        return distances * -slopes_of_heads(self.heads)[:, None, None]

    def at(self, query_positions: Any) -> "Alibi":
        return dataclasses.replace(self, query_positions=ops.cast(query_positions, "int32"))


class Rotary(Positions):
    """Rotates pairs of numbers (j and j + H/2) of a head's rows by angles that grow with the position (Su et al. 2021).

    `position_ids` [B or 1,S]; `size` is H; `factor` divides the angles; `windows` are the positions of layers with a
    window, by default the same. The product of two rotated rows depends on their distance, not on their positions.
    """

    def __init__(
        self,
        position_ids: Int[Any, "_ S"],
        base: float,
        size: int,
        factor: float = 1.0,
        windows: "Rotary | None" = None,
    ) -> None:
        # in float32, as PyTorch computes it
        steps = base ** (-np.arange(0, size, 2, dtype=np.float32) / np.float32(size)) / np.float32(factor)
        angles = ops.expand_dims(ops.cast(position_ids, "float32"), 2) * steps.astype(np.float32)
        self.turns = ops.stack([ops.cos(angles), ops.sin(angles)], axis=2)  # [B or 1,S,2,H/2]
        self.windows = windows

    def rotate(self, q: Any, k: Any, query_positions: Any) -> tuple[Any, Any]:
        return self.turn(q, query_positions), self.turn(k)

    def in_windows(self) -> "Rotary":
        return self.windows or self

    def turn(self, rows: Float[Any, "B Q N H"], query_positions: Any = None) -> Float[Any, "B Q N H"]:
        """Returns rows [B,S or Q,N,H] rotated by `query_positions` [B,Q], or by all S positions if None."""
        turns = self.turns
        if query_positions is not None:
            turns = ops.broadcast_to(turns, (ops.shape(query_positions)[0], *ops.shape(turns)[1:]))
            turns = ops.take_along_axis(turns, ops.expand_dims(ops.cast(query_positions, "int32"), (2, 3)), axis=1)
        cos, sin = turns[:, :, 0:1], turns[:, :, 1:2]  # [B or 1,S or Q,1,H/2]
        first, second = ops.split(ops.cast(rows, "float32"), 2, axis=-1)
        return ops.cast(ops.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1), rows.dtype)
