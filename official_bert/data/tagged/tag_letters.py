"""The letters that tell a tag of a chunk from one that stands for itself."""

from collections.abc import Iterable

OUTSIDE = "O"
# B begins a chunk, I continues it, E ends it, S is a chunk of one word; other schemes have other names for I, E and S.
PREFIXES = {"B": "B", "I": "I", "M": "I", "E": "E", "L": "E", "S": "S", "U": "S", "W": "S"}


def has_prefix(tag: str) -> bool:
    """Returns whether a tag is a letter and a type."""
    return tag[1:2] == "-" and len(tag) > 2 and tag[0] in PREFIXES


def are_of_chunks(labels: Iterable[str]) -> bool:
    """Returns whether the labels of a model mark chunks; parts of speech do not."""
    names = {*labels}
    return OUTSIDE in names or any(map(has_prefix, names)) or (bool(names) and names <= {*PREFIXES})
