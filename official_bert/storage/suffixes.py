"""Endings of file names."""

import os

PACKED = (".gz", ".bz2", ".xz", ".zst")


def suffix_of(path: str) -> str:
    """Returns the ending of a file's name in lower case, without that of its compression: `.csv` for `A.csv.gz`."""
    name = path.lower()
    return os.path.splitext(next((name.removesuffix(end) for end in PACKED if name.endswith(end)), name))[1]


def is_packed(path: str) -> bool:
    """Returns whether a file's name has the ending of a compressed file."""
    return path.lower().endswith(PACKED)
