"""Unicode's NFC, which composes letters with the accents behind them, and where the characters of the result stood before."""

import functools
import unicodedata
from collections.abc import Sequence

HANGUL = (*range(0x1161, 0x1176), *range(0x11A8, 0x11C3))  # vowels and finals, which are composed by arithmetic


@functools.cache
def _joining() -> frozenset[str]:
    """The characters that may be composed with one before them."""
    pairs = (unicodedata.decomposition(chr(code)).split() for code in range(0x30000))
    return frozenset({chr(int(pair[1], 16)) for pair in pairs if len(pair) == 2 and not pair[0].startswith("<")} | set(map(chr, HANGUL)))


def joins(char: str) -> bool:
    """Whether a character may change, or change its place, with one before it."""
    return unicodedata.combining(unicodedata.normalize("NFD", char)[0]) > 0 or char in _joining()


def composed(text: str) -> tuple[str, Sequence[int]]:
    """Returns a text in NFC, and for each place in it, its end included, the place in `text`.

    Both texts have as many parts, each a letter and what may be composed with it; within a part, places are counted from its start.
    """
    if unicodedata.is_normalized("NFC", text):
        return text, range(len(text) + 1)
    starts = [place for place, char in enumerate(text) if not place or not joins(char)]
    parts, places = [], []
    for start, end in zip(starts, [*starts[1:], len(text)]):
        part = text[start:end]
        parts.append(new := unicodedata.normalize("NFC", part))
        places += [min(start + place, end) for place in range(len(new))]
    return "".join(parts), [*places, len(text)]
