"""The attention mask: it says which tokens see which (paper A.2: padding is not attended to; 2018
`create_attention_mask_from_input_mask`).

A mask joins rules. A rule compares queries, the tokens that look, with keys, the tokens that they see: bool [B or 1,1,1
or Q,S], true = visible. What padding sees does not matter. B batch, S sequence, Q query rows, N heads.
"""

import dataclasses
import functools
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from jaxtyping import Bool, Float, Int
from keras import ops

# the score of a masked place; not minus infinity: a row that sees nothing gets equal weights instead of NaN
UNSEEN = -1e9


class Tokens(NamedTuple):
    """Queries [B,Q] or keys [B,S]. The fields are those that a rule may ask for."""

    input_mask: Any = None  # bool, true = a real token
    instance_ids: Any = None  # int
    places: Any = None  # int [B or 1,...], in the row


Rule = Callable[[Any, Any], Bool[Any, "_ 1 _ S"]]


def is_real(queries: Any, keys: Any) -> Bool[Any, "B 1 1 S"]:
    """Returns whether the key is no padding."""
    # Not [:, None, None, :]: those are strided slices, which LiteRT lacks.
    return ops.expand_dims(ops.expand_dims(keys.input_mask, 1), 1)


def is_of_instance(queries: Any, keys: Any) -> Bool[Any, "B 1 Q S"]:
    """Returns whether the key belongs to the query's instance in a packed row."""
    return (queries.instance_ids[:, :, None] == keys.instance_ids[:, None, :])[:, None]


def is_not_behind(queries: Any, keys: Any) -> Bool[Any, "_ 1 Q S"]:
    """Returns whether the key is the query or stands before it: left to right."""
    return ops.expand_dims(keys.places, (1, 2)) <= ops.expand_dims(queries.places, (1, 3))


def is_within(window: int, queries: Any, keys: Any) -> Bool[Any, "_ 1 Q S"]:
    """Returns whether the key is at most `window` tokens away."""
    return ops.abs(ops.expand_dims(keys.places, (1, 2)) - ops.expand_dims(queries.places, (1, 3))) <= window


def join(rules: Iterable[Rule], queries: Any, keys: Any) -> Bool[Any, "_ 1 _ S"]:
    """Returns the mask [B,1,1 or Q,S] of the keys that all rules let a query see; true = visible."""
    return functools.reduce(ops.logical_and, (rule(queries, keys) for rule in rules))


@dataclasses.dataclass(frozen=True)
class TokenInputs:
    """The inputs from which masks are made, for all tokens or for some queries; they are the keys of rules."""

    input_mask: Any  # [B,S] bool, true = a real token
    instance_ids: Any = None  # [B,S]: tokens see their instance alone
    left_to_right: bool = False
    embedded: Any = None  # [B,S,D], the output of the embeddings

    @property
    def rules(self) -> list[Rule]:
        """The rules that every mask of these inputs joins."""
        return [
            is_real,
            *([is_not_behind] if self.left_to_right else []),
            *([] if self.instance_ids is None else [is_of_instance]),
        ]

    @property
    def places(self) -> Int[Any, "1 S"]:
        """The places of tokens in their row."""
        return ops.expand_dims(ops.arange(ops.shape(self.input_mask)[1], dtype="int32"), 0)

    def mask(
        self, query_positions: Int[Any, "B Q"] | None = None, first: Any = None, last: Any = None
    ) -> Bool[Any, "_ 1 _ S"]:
        """Returns the mask [B,1,1 or Q,S] of the queries at `query_positions`, by default of all tokens.

        `first` and `last` select a block of these queries, from `first` to before `last`.
        """
        if len(self.rules) == 1 or (query_positions is None and first is None):
            return join(self.rules, self, self)
        places = (self.places if query_positions is None else ops.cast(query_positions, "int32"))[:, first:last]
        own = self.instance_ids
        if own is not None:
            own = ops.take_along_axis(own, ops.broadcast_to(places, (ops.shape(own)[0], ops.shape(places)[1])), axis=1)
        return join(self.rules, Tokens(instance_ids=own, places=places), self)


def make_attention_mask(input_mask: Any, instance_ids: Any = None, left_to_right: bool = False) -> Bool[Any, "B 1 _ S"]:
    """Returns the attention mask [B,1,1,S] of input_mask [B,S], or [B,1,S,S] with `instance_ids` [B,S] or left to
    right; true = visible.
    """
    return TokenInputs(ops.cast(input_mask, "bool"), instance_ids, left_to_right).mask()


def masked_softmax(scores: Float[Any, "B N Q S"], attention_mask: Bool[Any, "#B 1 #Q S"]) -> Float[Any, "B N Q S"]:
    """Returns the softmax of the scores over visible tokens, in float32 under every precision policy."""
    return ops.softmax(ops.where(attention_mask, ops.cast(scores, "float32"), UNSEEN), axis=-1)
