"""Tables of byte-level BPE, for TensorFlow ops: classes of characters, and which pairs of symbols may be joined at
once.

BPE joins the pair of symbols of lowest rank, again and again: as many rounds as joins. The graph joins in each round
every pair that BPE would certainly join later, wherever it stands, so that a few rounds do for any length. A pair (B,
C) of rank r between A and D is certain if no join of a lower rank can ever take B away to the left or C to the right.
On the left only symbols X that end with A can be joined with B; `left` is the lowest rank of such a join (X, B), over
all X that A can grow into. `right` is the same of (C, Y). This needs that a symbol's own join comes before those which
use it, as in every learned list of merges; others are refused.

Pairs whose symbols cannot even grow into a pair that is joined are a wall: what stands on both sides of it is
independent from then on.

Also Unicode's NFC, which composes letters with the accents behind them before byte-level BPE sees a text.
"""

import functools
import itertools
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import tokenizers

from official_bert.limits import MOST_PAIRS, require_at_most

NEVER = (1 << 20) - 1  # a rank above all others
PAIRS_OF_A_MERGE = 32  # learned ones have about 9
LETTER, NUMBER, OTHER, SPACE = range(4)  # classes of characters
# Unicode assigns no others; the rest is OTHER
CHARACTERS = (range(0xD800), range(0xE000, 0x40000), range(0xE0000, 0xF0000))
# \s of Unicode
WHITE_SPACE_CODES = (
    *range(0x09, 0x0E),
    0x20,
    0x85,
    0xA0,
    0x1680,
    *range(0x2000, 0x200B),
    0x2028,
    0x2029,
    0x202F,
    0x205F,
    0x3000,
)
HANGUL = (*range(0x1161, 0x1176), *range(0x11A8, 0x11C3))  # vowels and finals, which are composed by arithmetic


class Merges(NamedTuple):
    """Joins of pairs of symbols; a symbol's number is its id."""

    keys: np.ndarray  # int64 [pairs], first symbol << 32 | second; a pair that is not here is a wall
    values: np.ndarray  # int64 [pairs], rank << 40 | left << 20 | right; NEVER for none
    products: np.ndarray  # int32 [merges], the symbol that a join gives
    bytes: np.ndarray  # int32 [256], the symbol of each byte


def byte_letters() -> list[str]:
    """Returns the letter of each byte (GPT-2): printable bytes map to themselves, the others to U+0100 onwards, in
    order.
    """
    plain = {*range(33, 127), *range(161, 173), *range(174, 256)}
    others = iter(range(256, 512))
    return [chr(byte) if byte in plain else chr(next(others)) for byte in range(256)]


def merges(vocab: Mapping[str, int], pairs: Sequence[Sequence[str] | str], where: str) -> Merges:
    """Returns the tables for a list of merges, each "a b" or (a, b), in the order of their ranks.

    Raises ValueError for symbols without an id, too many merges, and a list in which a symbol is used before it is
    made.
    """
    if len(pairs) >= NEVER:
        raise ValueError(f"{where}: expected fewer than {NEVER} merges, got {len(pairs)}")
    letters = byte_letters()
    merged = [tuple(pair.split(" ")) if isinstance(pair, str) else tuple(pair) for pair in pairs]
    tokens = [*letters, *(token for pair in merged for token in (*pair, "".join(pair)))]
    if unknown := [token for token in tokens if token not in vocab]:
        raise ValueError(
            f"{where}: {unknown[0]!r:.80} is joined by a merge, or is a byte, and has no id in the vocabulary"
        )
    joins = [(vocab[first], vocab[second], vocab[first + second]) for first, second in merged]
    last_merges = dict.fromkeys((vocab[letter] for letter in letters), -1)  # the last merge that makes a symbol
    last_merges |= {product: rank for rank, (_, _, product) in enumerate(joins)}
    for rank, (first, second, _) in enumerate(joins):
        if max(last_merges.get(first, NEVER), last_merges.get(second, NEVER)) >= rank:
            raise ValueError(
                f"{where}: merge {rank + 1}, {' '.join(merged[rank])}: one of its symbols is made by a later "
                "merge or by none; operations of TensorFlow do not apply such merges"
            )
    values = _lowest_ranks(joins, last_merges, where)
    return Merges(
        np.array([first << 32 | second for first, second in values], np.int64),
        np.array([rank << 40 | left << 20 | right for rank, left, right in values.values()], np.int64),
        np.array([product for _, _, product in joins], np.int32),
        np.array([vocab[letter] for letter in letters], np.int32),
    )


def _lowest_ranks(
    joins: Sequence[tuple[int, int, int]], symbols: Iterable[int], where: str
) -> dict[tuple[int, int], list[int]]:
    """Returns rank, `left` and `right` of each pair of symbols that can grow into a pair of `joins`.

    Raises ValueError for more of them than learned merges have.
    """
    # The symbols that end, or begin, each symbol: all that make one are joined before those that use it.
    ends, begins = ({symbol: {symbol} for symbol in symbols} for _ in range(2))
    values: dict[tuple[int, int], list[int]] = {}
    most, work = max(MOST_PAIRS, PAIRS_OF_A_MERGE * len(joins)), 0
    for rank, (first, second, product) in enumerate(joins):
        work += len(ends[first]) * len(begins[second]) + len(ends[second]) + len(begins[first])
        require_at_most(most, work, "pairs of symbols on the way to those of its merges", where)
        ends[product] |= ends[second]
        begins[product] |= begins[first]
        for symbol, symbol_behind in itertools.product(ends[first], begins[second]):
            value = values.setdefault((symbol, symbol_behind), [NEVER] * 3)
            is_first, is_second = symbol == first, symbol_behind == second
            for place, applies in enumerate((is_first and is_second, is_second, is_first)):
                if applies:
                    value[place] = min(value[place], rank)
    return values


@functools.cache
def character_classes() -> np.ndarray:
    """Returns the class of each code point, uint8 [0x110000], in the library's word pattern, with the library's Unicode
    version.
    """
    split = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True).pre_tokenize_str
    skipped = {*WHITE_SPACE_CODES, ord("'")}
    codes = np.array([code for part in CHARACTERS for code in part if code not in skipped])
    starts = np.array([start for _, (start, _) in split("".join(map(chr, codes.tolist())))])  # runs of one class
    # Between a letter and a digit, a letter is joined with the letter and a number with the digit.
    probed = split("".join(f"a{chr(code)}1 " for code in codes[starts].tolist()))
    begins = np.zeros(4 * len(starts) + 1, np.bool_)
    begins[[start for _, (start, _) in probed]] = True
    kinds = np.where(begins[1::4] & begins[2::4], OTHER, np.where(begins[2::4], LETTER, NUMBER))
    classes = np.full(0x110000, OTHER, np.uint8)
    classes[codes] = np.repeat(kinds, np.diff([*starts, len(codes)]))
    classes[list(WHITE_SPACE_CODES)] = SPACE
    return classes


@functools.cache
def _joining() -> frozenset[str]:
    """The characters that may be composed with one before them."""
    pairs = (unicodedata.decomposition(chr(code)).split() for code in range(0x30000))
    return frozenset(
        {chr(int(pair[1], 16)) for pair in pairs if len(pair) == 2 and not pair[0].startswith("<")}
        | set(map(chr, HANGUL))
    )


def may_compose(char: str) -> bool:
    """Returns whether NFC may compose or reorder a character with the one before it."""
    return unicodedata.combining(unicodedata.normalize("NFD", char)[0]) > 0 or char in _joining()


def composed(text: str) -> tuple[str, Sequence[int]]:
    """Returns a text in NFC, and for each place in it, its end included, the place in `text`.

    Both texts have as many parts, each a letter and what may be composed with it; within a part, places are counted
    from its start.
    """
    if unicodedata.is_normalized("NFC", text):
        return text, range(len(text) + 1)
    starts = [place for place, char in enumerate(text) if not place or not may_compose(char)]
    parts, places = [], []
    for start, end in zip(starts, [*starts[1:], len(text)]):
        part = text[start:end]
        parts.append(new := unicodedata.normalize("NFC", part))
        places += [min(start + place, end) for place in range(len(new))]
    return "".join(parts), [*places, len(text)]
