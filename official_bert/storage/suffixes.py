"""Endings of the names of files."""

import os

PACKED = (".gz", ".bz2", ".xz", ".zst")


def suffix_of(path: str) -> str:
    """Returns the ending of a file's name in lower case, without that of its packing: `.csv` of `A.csv.gz`."""
    name = path.lower()
    return os.path.splitext(next((name.removesuffix(end) for end in PACKED if name.endswith(end)), name))[1]


def is_packed(path: str) -> bool:
    """Returns whether a file's name ends as that of a packed one."""
    return path.lower().endswith(PACKED)
