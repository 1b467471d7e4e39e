"""Integer tables of how the 2018 tokenizer treats each character, for `text/graph`.

They are made from `text/tokenization` and Python's Unicode database when a model is exported, so that the graph does
not depend on the server's character data (tf's ICU and RE2 have other Unicode versions).

A character's entry is one integer. Bits 0-20: the difference (modulo 2^21) between its code and that of the character
that it becomes, or the number of its row in `expansions`. Bits 21-22: its role beside a capital sigma in `str.lower`.
From bit 23: its kind.
"""

import dataclasses
import functools
import sys
import unicodedata

import numpy as np

from official_bert.text import tokenization

CODE_MASK = (1 << 21) - 1
CASED, IGNORABLE = 1 << 21, 1 << 22  # roles beside a capital sigma
KIND_BITS = 23  # below the kind

LETTER, ISOLATED, SPACE, CONTROL, ACCENT, SEVERAL, MARK, SIGMA = range(8)
# LETTER: part of a word. ISOLATED: a word of its own (punctuation, CJK). The rarer kinds: CONTROL, ACCENT: deleted, in
# cleaning and after decomposition. SEVERAL: becomes several characters. MARK: a letter that canonical ordering may
# move. SIGMA: a capital sigma, whose lower case depends on its neighbours.
FINAL_SIGMA = "ς"


@dataclasses.dataclass(frozen=True)
class CharacterTables:
    """The tables, all int32."""

    entries: np.ndarray  # [0x110000]
    expansions: np.ndarray  # the items of SEVERAL characters, one row after another, as `kind << 23 | code`
    expansion_splits: np.ndarray  # [rows + 1] first item of each row
    combining: np.ndarray  # [M] codes whose class in canonical ordering is above 0, ascending
    combining_class: np.ndarray  # [M]


@functools.cache
def character_tables(do_lower_case: bool) -> CharacterTables:
    """Returns the tables of a tokenizer that lower-cases and strips accents, or does neither; they are cached."""
    entries = np.zeros(sys.maxunicode + 1, np.int32)
    for first, last in tokenization.CJK_RANGES:  # unassigned characters included
        entries[first : last + 1] = ISOLATED << KIND_BITS
    ideograph = (entries > 0).tolist()
    expansions: list[list[int]] = []
    combining: list[int] = []
    for code in range(sys.maxunicode + 1):
        char = chr(code)
        if unicodedata.category(char) in ("Cn", "Co", "Cs"):
            continue  # unassigned: an unchanged letter, entry 0
        if ideograph[code] and not unicodedata.decomposition(char):
            continue  # most assigned characters; their entries are made above
        if unicodedata.combining(char):
            combining.append(code)
        items = _normalised_items(char, do_lower_case)
        if len(items) == 1:
            kind, became = items[0]
            kind = SIGMA if do_lower_case and char == "Σ" else kind
            entries[code] = kind << KIND_BITS | (became - code) & CODE_MASK
        else:
            entries[code] = SEVERAL << KIND_BITS | len(expansions)
            expansions.append([kind << KIND_BITS | became for kind, became in items])
        if do_lower_case:
            entries[code] |= _sigma_bits(char)
    return CharacterTables(
        entries=entries,
        expansions=np.array([item for row in expansions for item in row], np.int32),
        expansion_splits=np.cumsum([0, *map(len, expansions)], dtype=np.int32),
        combining=np.array(combining, np.int32),
        combining_class=np.array([unicodedata.combining(chr(code)) for code in combining], np.int32),
    )


def _normalised_items(char: str, do_lower_case: bool) -> list[tuple[int, int]]:
    """Returns (kind, code) of each item of a character, at least one."""
    alone = tokenization.is_cjk(char)
    normalised = unicodedata.normalize("NFD", char.lower()) if do_lower_case else char
    if normalised == char and unicodedata.category(char)[0] in "LN":  # most characters; only for speed
        return [(ISOLATED if alone else LETTER, ord(char))]
    if tokenization.is_control(char):
        return [(CONTROL, ord(char))]
    items = [(ISOLATED if alone else _kind(part, do_lower_case), ord(part)) for part in normalised]
    # Accents at the end are dropped here: they lie inside the character's own offsets.
    while len(items) > 1 and items[-1][0] == ACCENT:
        items.pop()
    return items


def _kind(char: str, do_lower_case: bool) -> int:
    """The kind of a character after cleaning, lower-casing and decomposition."""
    if char.isspace() or tokenization.is_whitespace(char):
        return SPACE
    if do_lower_case and unicodedata.category(char) == "Mn":
        return ACCENT
    if tokenization.is_punctuation(char):
        return ISOLATED
    return MARK if do_lower_case and unicodedata.combining(char) else LETTER


def _sigma_bits(char: str) -> int:
    """Whether `str.lower` takes `char` beside a capital sigma for a cased letter, or ignores it.

    Python does not publish these properties but shows them: a sigma at the end is final after a cased letter.
    """
    if (char + "Σ").lower()[-1] == FINAL_SIGMA:
        return CASED
    return IGNORABLE if ("A" + char + "Σ").lower()[-1] == FINAL_SIGMA else 0
