"""Tables of the names of weights. A row is (our name, the other format's name); tables are used both ways."""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeVar

import numpy as np

T = TypeVar("T")
Rows = Sequence[tuple[str, str]]  # of a table
Weights = Mapping[str, np.ndarray]  # by their names
Tensors = dict[str, np.ndarray]  # the same, to be changed
DENSE, NORM, OUTPUT = ("kernel", "bias"), ("gamma", "beta"), ("output_weights", "output_bias")
# The parts of a layer in the code of 2018.
GOOGLES_LAYER = {
    "attention/query": "attention/self/query",
    "attention/key": "attention/self/key",
    "attention/value": "attention/self/value",
    "attention/output": "attention/output/dense",
    "attention_LayerNorm": "attention/output/LayerNorm",
    "intermediate": "intermediate/dense",
    "output": "output/dense",
    "output_LayerNorm": "output/LayerNorm",
}


class NameTable:
    """Names of weights here and in another format.

    `{i}` in a row stands for a layer's number; no name has two numbers.
    """

    def __init__(self, rows: Iterable[tuple[str, str]]):
        self.rows = tuple(rows)
        self._theirs, self._ours = dict(self.rows), {theirs: ours for ours, theirs in reversed(self.rows)}

    def theirs(self, ours: str) -> str | None:
        """Returns the other format's name of our weight, or None if it has none."""
        return self._translate(self._theirs, ours)

    def ours(self, theirs: str) -> str | None:
        """Returns our name of the other format's weight, or None if there is none.

        Of several rows, the first counts.
        """
        return self._translate(self._ours, theirs)

    def all_theirs(self, ours: Iterable[str], what: str) -> dict[str, str]:
        """Returns the other format's name of each of our weights.

        Raises ValueError that begins with `what` and lists the weights that have none.
        """
        names = {name: self.theirs(name) or "" for name in ours}
        if without := [name for name, theirs in names.items() if not theirs]:
            raise ValueError(f"{what} has no place for {', '.join(without)}")
        return names

    def all_ours(self, theirs: Iterable[str]) -> tuple[dict[str, str], list[str]]:
        """Returns {our name: other format's name}, and the other format's names that have none here."""
        names = {name: self.ours(name) for name in theirs}
        return {ours: name for name, ours in names.items() if ours}, [name for name, ours in names.items() if not ours]

    @staticmethod
    def _translate(table: dict[str, str], name: str) -> str | None:
        number = re.search(r"\d+", name)
        row = table.get(re.sub(r"\d+", "{i}", name, count=1))
        return None if row is None else row.replace("{i}", number.group() if number else "")


def rows(ours: str, theirs: str, parts: Sequence[str] = ("",), their_parts: Sequence[str] | None = None) -> Rows:
    """Returns a row for each part of a module (kernel, bias); `ours` and `theirs` are prefixes of the names."""
    return [(f"{ours}{part}", f"{theirs}{other}") for part, other in zip(parts, their_parts or parts)]


def layer_rows(
    theirs: str, parts: Mapping[str, str], separator: str = "/", variables: Sequence[str] | None = None
) -> Rows:
    """Returns the rows of a layer from {our part: other format's module}; `variables` are other names for kernel and
    bias.
    """
    return [
        row
        for part, module in parts.items()
        for row in rows(
            f"layer_{{i}}/{part}/",
            f"{theirs}{module}{separator}",
            NORM if part.endswith("LayerNorm") else DENSE,
            variables,
        )
    ]


def with_prefix(named: Mapping[str, T], *prefixes: str) -> dict[str, T]:
    """Returns the entries whose names begin with one of these."""
    return {name: value for name, value in named.items() if name.startswith(prefixes)}


def shown(names: Sequence[str], separator: str = ", ") -> str:
    """Returns the first six of many names, joined."""
    return separator.join(names[:6]) + (f" and {len(names) - 6} more" if len(names) > 6 else "")


def as_matrix(name: str, weight: np.ndarray) -> np.ndarray:
    """Returns our weight with heads and head size joined to one dimension, as most formats store it."""
    return weight.reshape(matrix_shape(name, weight.shape))


def matrix_shape(name: str, shape: Sequence[int]) -> tuple[int, ...]:
    """Returns the shape of `as_matrix`: [D,N,H] and [N,H,D] become [D,D], [N,H] becomes [D]."""
    if len(shape) == 3 and "/attention/" in name:
        return (shape[0], shape[1] * shape[2]) if "/attention/output/" not in name else (shape[0] * shape[1], shape[2])
    if len(shape) == 2 and name.endswith("/bias"):
        return (shape[0] * shape[1],)
    return tuple(shape)


def in_our_shape(name: str, weight: np.ndarray, num_heads: int) -> np.ndarray:
    """Returns a weight in our shape, from either shape: the reverse of `as_matrix`."""
    if re.search(r"/attention/(query|key|value)/kernel$", name):
        return weight.reshape(len(weight), num_heads, -1)
    if re.search(r"/attention/(query|key|value)/bias$", name):
        return weight.reshape(num_heads, -1)
    if name.endswith("/attention/output/kernel"):
        return weight.reshape(num_heads, -1, weight.shape[-1])
    return weight


def googles_encoder(prefix: str, layer: str = "encoder/layer_{i}/", parts: Mapping[str, str] = GOOGLES_LAYER) -> Rows:
    """Returns the rows of embeddings and layers with 2018's variable names behind a prefix such as `bert/`."""
    return [
        *rows(
            "embeddings/", f"{prefix}embeddings/", ("word_embeddings", "token_type_embeddings", "position_embeddings")
        ),
        *rows("embeddings/LayerNorm/", f"{prefix}embeddings/LayerNorm/", NORM),
        *layer_rows(f"{prefix}{layer}", parts),
    ]


def googles_heads() -> Rows:
    """Returns the rows of the heads of BERT and ALBERT with the names of 2018."""
    return [
        *rows("pooler/", "bert/pooler/dense/", DENSE),
        *rows("masked_lm/transform/", "cls/predictions/transform/dense/", DENSE),
        *rows("masked_lm/LayerNorm/", "cls/predictions/transform/LayerNorm/", NORM),
        ("masked_lm/output_bias", "cls/predictions/output_bias"),
        *rows("next_sentence/", "cls/seq_relationship/", OUTPUT),
        *rows("classifier/", "", OUTPUT),
    ]
