"""What the 2018 tokenizer does with each character, as small integer tables for `text/graph`.

The tables are made from `text/tokenization` and Python's Unicode database when a model is exported, so the graph needs
no character data of the server's own (tf's ICU and RE2 have other Unicode versions) and gives the same everywhere.

A character's entry is one integer: bits 0-20 what to add to its code (modulo 2^21) for the character that it becomes,
or the number of its row in `expansions`; bits 21-22 what `str.lower` asks of a capital sigma's neighbours; from bit 23
its kind.
"""

import dataclasses
import sys
import unicodedata

import numpy as np

from official_bert.text import tokenization

CODE_MASK = (1 << 21) - 1
CASED, IGNORABLE = 1 << 21, 1 << 22  # of a capital sigma's neighbours
KIND_BITS = 23  # below the kind
PAGE_BITS = 8

LETTER, ISOLATED, SPACE, CONTROL, ACCENT, SEVERAL, MARK, SIGMA = range(8)
# LETTER: part of a word. ISOLATED: a word of its own (punctuation, CJK). The rest is rarer and gets a look of its own:
# CONTROL, ACCENT: deleted, in cleaning and after decomposition. SEVERAL: becomes several characters. MARK: a letter
# that canonical ordering may move. SIGMA: a capital one, whose lower case depends on its neighbours.
FINAL_SIGMA = "ς"


@dataclasses.dataclass(frozen=True)
class CharacterTables:
    """See the module; all int32 but the first, which numbers the pages of 256 characters (many are alike)."""

    page_of: np.ndarray  # [0x110000 >> 8] int32: row of `pages`
    pages: np.ndarray  # [pages, 256] entries
    expansions: np.ndarray  # the characters that SEVERAL become, one after another, as `kind << 23 | code`
    expansion_splits: np.ndarray  # [rows + 1] where each row begins
    combining: np.ndarray  # [M] codes of class above 0 in canonical ordering, ascending
    combining_class: np.ndarray  # [M]


def character_tables(do_lower_case: bool) -> CharacterTables:
    """The tables of a tokenizer that lower-cases and strips accents, or does neither."""
    entries = np.zeros(sys.maxunicode + 1, np.int32)
    for first, last in tokenization.CJK_RANGES:  # with what is unassigned in them
        entries[first:last + 1] = ISOLATED << KIND_BITS
    expansions: list[list[int]] = []
    for code in range(sys.maxunicode + 1):
        char = chr(code)
        if unicodedata.category(char) in ("Cn", "Co", "Cs"):
            continue  # unassigned: a letter that stays as it is, entry 0
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
    pages, page_of = np.unique(entries.reshape(-1, 1 << PAGE_BITS), axis=0, return_inverse=True)
    combining = [code for code in range(sys.maxunicode + 1) if unicodedata.combining(chr(code))]
    return CharacterTables(
        page_of=page_of.reshape(-1).astype(np.int32), pages=pages,
        expansions=np.array([item for row in expansions for item in row], np.int32),
        expansion_splits=np.cumsum([0, *map(len, expansions)], dtype=np.int32),
        combining=np.array(combining, np.int32),
        combining_class=np.array([unicodedata.combining(chr(code)) for code in combining], np.int32))


def _normalised_items(char: str, do_lower_case: bool) -> list[tuple[int, int]]:
    """(kind, code) of what one character becomes, at least one."""
    alone = tokenization.is_cjk(char)
    normalised = unicodedata.normalize("NFD", char.lower()) if do_lower_case else char
    if normalised == char and unicodedata.category(char)[0] in "LN":  # two of three characters; only for speed
        return [(ISOLATED if alone else LETTER, ord(char))]
    if tokenization.is_control(char):
        return [(CONTROL, ord(char))]
    items = [(ISOLATED if alone else _kind(part, do_lower_case), ord(part)) for part in normalised]
    # Accents at the end delete themselves without a trace: they lie inside the character's own offsets.
    while len(items) > 1 and items[-1][0] == ACCENT:
        items.pop()
    return items


def _kind(char: str, do_lower_case: bool) -> int:
    """The kind of a character that cleaning, lower-casing and decomposition leave."""
    if char.isspace() or tokenization.is_whitespace(char):
        return SPACE
    if do_lower_case and unicodedata.category(char) == "Mn":
        return ACCENT
    if tokenization.is_punctuation(char):
        return ISOLATED
    return MARK if do_lower_case and unicodedata.combining(char) else LETTER


def _sigma_bits(char: str) -> int:
    """Whether `str.lower` sees `char` as a cased letter beside a capital sigma, or looks past it.

    Python publishes neither property, but shows them: a sigma at the end is final after a cased letter.
    """
    if (char + "Σ").lower()[-1] == FINAL_SIGMA:
        return CASED
    return IGNORABLE if ("A" + char + "Σ").lower()[-1] == FINAL_SIGMA else 0
