"""The tokenizer for whole corpora: text to ids in a compiled kernel, equal to `FullTokenizer` on every string.

2018's `BasicTokenizer` treats nearly every character (cleaning, lower-casing, decomposing, dropping accents, setting
punctuation apart) without regard to its neighbours. So a table, made by that very code, says what each code point
becomes; a space in it ends a word. WordPiece's longest match probes a hash table with the hashes of a word's prefixes.
The exceptions are capital sigmas, whose lower-case form depends on the word, and combining characters that are no
accents, which canonical ordering may move: the text between spaces around one goes through `FullTokenizer`.
"""

import functools
import itertools
import sys
import unicodedata
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from official_bert.text.compiling import compiled, read_only
from official_bert.text.tokenization import CJK_RANGES, MAX_WORD_LENGTH, UNKNOWN, BasicTokenizer, FullTokenizer

DIFFICULT = 1  # flags of a code point: depends on its neighbours and goes through FullTokenizer
BOUNDARY = 2  # nothing on one side of it depends on the other side
VISIBLE = 4  # a line with it is not blank (str.strip keeps it)
UNCHANGED = -1
LINE_SEPARATOR = "\u2028"
ASSIGNED = (range(0x40000), range(0xE0000, 0xF0000))  # code points; Unicode assigns no others, private use apart
SPACE, NEWLINE, HASH_SIGN = 0x20, 0x0A, 0x23
HASH_START, HASH_SHIFT = -0x340D631B7BDDDCDB, 40  # FNV-1a; the slot number is the hash's higher bits
ID_MASK = 2**24 - 1
LARGEST_BUFFER = 2**31 - 1  # offsets are int32


class EncodedLines(NamedTuple):
    """The ids of a text's lines, one line after another."""

    ids: np.ndarray  # int32 [tokens]
    lengths: np.ndarray  # int32 [lines]; may be 0 for a line that is not blank (a zero-width space alone)
    blank: np.ndarray  # bool [lines]; white space only: ends a document


class CharacterTable(NamedTuple):
    """The text that each code point becomes."""

    flags: np.ndarray  # uint8 [code points]
    offsets: np.ndarray  # int32 [code points], into pool, or UNCHANGED
    pool: np.ndarray  # uint8; at each offset, the number of bytes and then the bytes; a space ends a word


class PieceTable(NamedTuple):
    """A hash table of the vocabulary's entries; `##` counts as the first two bytes of an entry."""

    slots: np.ndarray  # int64 [power of 2]; high bits of the hash | id + 1, 0 in an empty slot
    starts: np.ndarray  # int32 [entries + 1], into text
    text: np.ndarray  # uint8
    longest: int  # bytes of the longest entry


class FastTokenizer:
    """Turns lines of text into ids in a compiled kernel, exactly as `FullTokenizer`; see
    docs/results/tokenizers.md.

    Takes about 20 MB of memory (there is no cache of words) and, the first time, half a second to build; can be
    pickled: build one and hand it to worker processes. Raises ValueError for a vocabulary that cannot be used.
    """

    def __init__(self, vocab_file: str, do_lower_case: bool = True):
        self.tokenizer = FullTokenizer(vocab_file, do_lower_case)
        # Plain tuples: Numba cannot read a kernel's cache once a class among its arguments has changed.
        self._characters = tuple(_character_table(do_lower_case))
        self._pieces = tuple(_piece_table(self.tokenizer.vocab))
        self._unknown_id = self.tokenizer.vocab[UNKNOWN]

    def encode_lines(self, lines: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        """Returns (ids int32 [tokens], lengths int32 [lines]), as `FullTokenizer` does for each string."""
        text = "".join([line.replace("\n", " ") + "\n" for line in lines])  # a newline within a line is a space
        encoded = self._encode(np.frombuffer(text.encode("utf-8", "surrogatepass"), np.uint8), True)
        return encoded.ids, encoded.lengths

    def encode_bytes(self, buffer: bytes | bytearray | memoryview | np.ndarray) -> EncodedLines:
        """Encodes the lines of a UTF-8 buffer, each ended by a newline byte (the last one may lack it).

        Faster than `encode_lines` for files: read chunks of some megabytes that end with a newline. Takes up to four
        times the buffer's size besides. Raises UnicodeDecodeError, with the offset in the buffer as `start`, if the
        buffer is not UTF-8.
        """
        return self._encode(np.frombuffer(buffer, np.uint8), False)

    def _encode(self, text: np.ndarray, surrogates: bool) -> EncodedLines:
        if len(text) >= LARGEST_BUFFER:
            raise ValueError(f"expected a buffer of less than {LARGEST_BUFFER} bytes, got {len(text)}")
        if len(text) and text[-1] != NEWLINE:
            text = np.append(text, np.uint8(NEWLINE))
        lines = int(np.count_nonzero(text == NEWLINE))
        ids, lengths, blank = np.empty(len(text), np.int32), np.empty(lines, np.int32), np.empty(lines, np.bool_)
        count = _encode_text(
            read_only(text), surrogates, self._characters, self._pieces, self._unknown_id, ids, lengths, blank
        )
        if count < 0:
            text.tobytes().decode("utf-8")  # raises the error with the offset
        return self._with_difficult_words(EncodedLines(ids[:count].copy(), lengths, blank), text)

    def _with_difficult_words(self, encoded: EncodedLines, text: np.ndarray) -> EncodedLines:
        """Replaces the pairs of negative numbers that the kernel wrote for difficult words by these words' ids."""
        places = np.flatnonzero(encoded.ids < 0)[::2]
        if not len(places):
            return encoded
        words = [
            text[-1 - first : -1 - end].tobytes().decode("utf-8", "surrogatepass")
            for first, end in zip(encoded.ids[places], encoded.ids[places + 1])
        ]
        pieces = [self.tokenizer.convert_tokens_to_ids(self.tokenizer.tokenize(word)) for word in words]
        sizes = np.array([len(ids) for ids in pieces])
        repeats = np.ones(len(encoded.ids), np.int64)
        repeats[places], repeats[places + 1] = sizes, 0
        ids = np.repeat(encoded.ids, repeats)
        ids[ids < 0] = np.concatenate([np.array(piece, np.int32) for piece in pieces])
        lines = np.searchsorted(np.cumsum(encoded.lengths), places, side="right")
        np.add.at(encoded.lengths, lines, sizes - 2)
        return encoded._replace(ids=ids)


@functools.cache
def _character_table(do_lower_case: bool) -> CharacterTable:
    """Runs the plain tokenizer's steps on every character. The table is made once: it knows no vocabulary, and nothing
    writes to it.
    """
    basic = BasicTokenizer(do_lower_case)
    flags = np.full(sys.maxunicode + 1, VISIBLE, np.uint8)
    offsets = np.full(sys.maxunicode + 1, UNCHANGED, np.int32)
    pool = bytearray()
    chars = _characters_that_matter()
    # One call for all: U+2028 passes every step unchanged, and no step looks across it.
    cleaned, normalised = (
        step(LINE_SEPARATOR.join(chars)).split(LINE_SEPARATOR) for step in (basic.clean, basic.normalise)
    )
    for char, clean, output in zip([*chars, LINE_SEPARATOR], [*cleaned, " "], [*normalised, " "]):
        output = " " if output.isspace() else output  # U+2029 ends a word without being cleaned
        difficult = do_lower_case and (char == "Σ" or any(map(unicodedata.combining, output)))
        flags[ord(char)] = DIFFICULT * difficult | BOUNDARY * (" " in clean) | VISIBLE * (not char.isspace())
        if output != char:
            encoded = output.encode()
            assert len(output.replace(" ", "")) <= len(char.encode())  # ids need no more room than the text
            offsets[ord(char)] = len(pool)
            pool += bytes([len(encoded)]) + encoded
    # can be written, as after pickling: see `read_only`
    return CharacterTable(flags, offsets, np.frombuffer(pool, np.uint8).copy())


def _characters_that_matter() -> list[str]:
    """All characters that Unicode assigns and the whole CJK blocks, without U+2028: no other character changes."""
    candidates = list(map(chr, itertools.chain(*ASSIGNED)))
    unassigned = {"Cn", "Co", "Cs"}
    chars = {char for char, kind in zip(candidates, map(unicodedata.category, candidates)) if kind not in unassigned}
    chars.update(*(map(chr, range(first, last + 1)) for first, last in CJK_RANGES))
    return sorted(chars - {LINE_SEPARATOR})


def _piece_table(vocab: Mapping[str, int]) -> PieceTable:
    """Entries need not be normalised: those that no word can match are never found."""
    if len(vocab) > ID_MASK:
        raise ValueError(f"expected a vocabulary of at most {ID_MASK} entries, got {len(vocab)}")
    entries = [token.encode() for token in vocab]
    starts = np.cumsum([0, *map(len, entries)]).astype(np.int32)
    slots = np.zeros(1 << (2 * len(vocab)).bit_length(), np.int64)
    text = np.frombuffer(b"".join(entries), np.uint8).copy()  # can be written, as after pickling
    _fill_slots(text, starts, slots)
    return PieceTable(slots, starts, text, max(map(len, entries)))


@compiled(inline="always")
def _hash(state: np.int64, byte: int) -> np.int64:
    """One byte's step of FNV-1a."""
    return (state ^ np.int64(byte)) * np.int64(0x100000001B3)


@compiled()
def _fill_slots(text: np.ndarray, starts: np.ndarray, slots: np.ndarray) -> None:
    """Adds all entries, each under its number as id."""
    mask = len(slots) - 1
    for entry in range(len(starts) - 1):
        state = np.int64(HASH_START)
        for index in range(starts[entry], starts[entry + 1]):
            state = _hash(state, text[index])
        slot = (state >> HASH_SHIFT) & mask
        while slots[slot]:
            slot = (slot + 1) & mask
        slots[slot] = state & ~ID_MASK | entry + 1


@compiled(inline="always")
def _find(
    slots: np.ndarray,
    starts: np.ndarray,
    text: np.ndarray,
    state: np.int64,
    word: np.ndarray,
    first: int,
    end: int,
    prefix: int,
) -> np.int64:
    """Returns the id of the entry `word[first:end]` after `prefix` bytes of ##, whose hash is `state`, or -1."""
    mask = len(slots) - 1
    slot = (state >> HASH_SHIFT) & mask
    while slots[slot]:
        if (slots[slot] ^ state) & ~ID_MASK == 0:
            entry = (slots[slot] & ID_MASK) - 1
            start = starts[entry] + prefix
            same = starts[entry + 1] - start == end - first
            for index in range(end - first if same else 0):
                same &= text[start + index] == word[first + index]
            if same:
                return entry
        slot = (slot + 1) & mask
    return np.int64(-1)


@compiled()
def _decode(text: np.ndarray, position: int, surrogates: bool) -> tuple[np.int64 | int, int]:
    """Returns (code point, bytes) of the character at `position`; (0, 0) for malformed UTF-8."""
    lead = np.int64(text[position])
    if lead < 0x80:
        return lead, 1
    size = 2 if 0xC2 <= lead < 0xE0 else 3 if 0xE0 <= lead < 0xF0 else 4 if 0xF0 <= lead < 0xF5 else 0
    if size == 0 or position + size > len(text):
        return 0, 0
    code = lead & (0x7F >> size)
    for byte in text[position + 1 : position + size]:
        if byte & 0xC0 != 0x80:
            return 0, 0
        code = code << 6 | np.int64(byte & 0x3F)
    overlong = (size == 3 and code < 0x800) or (size == 4 and code < 0x10000)
    if overlong or code > 0x10FFFF or (0xD800 <= code < 0xE000 and not surrogates):
        return 0, 0
    return code, size


@compiled()
def _encode_word(
    word: np.ndarray, length: int, hashes: np.ndarray, pieces: PieceTable, unknown_id: int, ids: np.ndarray, count: int
) -> int:
    """Writes the ids of `word[:length]` to `ids[count:]` by longest match; returns the new number of ids."""
    slots, starts, text, longest = pieces
    before, first = count, 0
    state, prefix = np.int64(HASH_START), 0
    while first < length:
        piece, end = np.int64(-1), min(length, first + longest)
        for index in range(first, end):
            state = _hash(state, word[index])
            hashes[index] = state
        while end > first:
            piece = _find(slots, starts, text, hashes[end - 1], word, first, end, prefix)
            if piece >= 0:
                break
            end -= 1
        if piece < 0:
            ids[before] = unknown_id
            return before + 1
        ids[count] = piece
        count += 1
        state, prefix, first = _hash(_hash(np.int64(HASH_START), HASH_SIGN), HASH_SIGN), 2, end
    return count


@compiled(inline="always")
def _encode_segment(
    text: np.ndarray,
    start: int,
    surrogates: bool,
    characters: CharacterTable,
    pieces: PieceTable,
    unknown_id: int,
    word: np.ndarray,
    hashes: np.ndarray,
    ids: np.ndarray,
    count: int,
) -> tuple[int, int, bool]:
    """Encodes from `start` to the next boundary, included; returns (its end or -1, number of ids, whether visible).

    Writes two negative numbers for a segment with a difficult character: -1 minus its start, -1 minus its end.
    """
    flags, offsets, pool = characters
    first, seen, position, length, word_chars = count, np.uint8(0), start, 0, 0
    while not seen & BOUNDARY:
        code, size = np.int64(text[position]), 1
        if code >= 0x80:
            code, size = _decode(text, position, surrogates)
            if not size:
                return -1, count, False
        seen |= flags[code]
        offset = offsets[code]
        for index in range(size if offset == UNCHANGED else np.int64(pool[offset])):
            byte = text[position + index] if offset == UNCHANGED else pool[offset + 1 + index]
            if byte != SPACE:
                word_chars += byte & 0xC0 != 0x80
                if word_chars <= MAX_WORD_LENGTH:
                    word[length] = byte
                    length += 1
            elif word_chars > MAX_WORD_LENGTH:
                ids[count] = unknown_id
                count, length, word_chars = count + 1, 0, 0
            elif length:
                count = _encode_word(word, length, hashes, pieces, unknown_id, ids, count)
                length = word_chars = 0
        position += size
    if seen & DIFFICULT:
        ids[first], ids[first + 1] = -1 - start, -1 - position
        count = first + 2
    return position, count, seen & VISIBLE != 0


@compiled(nogil=True)
def _encode_text(
    text: np.ndarray,
    surrogates: bool,
    characters: CharacterTable,
    pieces: PieceTable,
    unknown_id: int,
    ids: np.ndarray,
    lengths: np.ndarray,
    blank: np.ndarray,
) -> int:
    """Fills `ids`, `lengths` and `blank` from a text that ends with a newline; returns the number of ids (-1: not
    UTF-8).
    """
    word, hashes = np.empty(4 * MAX_WORD_LENGTH, np.uint8), np.empty(4 * MAX_WORD_LENGTH, np.int64)
    position = count = line = line_start = 0
    visible = False
    while position < len(text):
        position, count, seen = _encode_segment(
            text, position, surrogates, characters, pieces, unknown_id, word, hashes, ids, count
        )
        if position < 0:
            return -1
        visible |= seen
        if text[position - 1] == NEWLINE:
            lengths[line], blank[line] = count - line_start, not visible
            line, line_start, visible = line + 1, count, False
    return count
