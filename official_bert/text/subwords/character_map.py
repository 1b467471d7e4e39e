"""The character map of a SentencePiece model, joined with the steps that ALBERT takes before it.

ALBERT's tokenizer makes quotes of `` and '', decomposes (NFKD), deletes accents and lower-cases; then the model maps characters by its
own table. Both together are one map, which replaces the model's: so the library and TensorFlow's op give ALBERT's pieces, with places
in the original text, without knowing of these steps. This is exact because each step but the composition of Hangul treats every
character by itself, once accents are gone.
"""

import functools
import io
import itertools
import os
import struct
import tempfile
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import sentencepiece
import tokenizers

from official_bert.text.subwords import model_proto

CHARACTERS = (range(1, 0xD800), range(0xE000, 0x40000), range(0xE0000, 0xE1000))  # Unicode assigns no others, private use apart
LEADS, VOWELS, TAILS = range(0x1100, 0x1113), range(0x1161, 0x1176), range(0x11A8, 0x11C3)  # parts of Hangul syllables
QUOTES = {"``": '"', "''": '"'}
LEAF, LABEL, LONGEST = 0x100, 0x800000FF, 64  # bits of a unit; the most bytes of a key


class Steps(NamedTuple):
    """What is done to a text before the model's own map, in this order."""

    quotes: bool = False
    strip_accents: bool = False
    lower: bool = False


def look_up(charsmap: bytes, keys: Sequence[str]) -> list[str | None]:
    """Returns what a character map (a Darts double array, then strings that end with 0) makes of each key as a whole, None for no entry."""
    if not charsmap:
        return [None] * len(keys)
    size = struct.unpack("<I", charsmap[:4])[0]
    units, pool = np.frombuffer(charsmap[4:4 + size], "<u4").astype(np.int64), charsmap[4 + size:]
    encoded = [key.encode() for key in keys]
    lengths = np.array([len(key) for key in encoded])
    letters = np.zeros((len(keys), max(lengths, default=0)), np.int64)
    for row, key in enumerate(encoded):
        letters[row, :len(key)] = list(key)

    def offset(unit):
        return (unit >> 10) << ((unit & 0x200) >> 6)
    place, leaf = np.full(len(keys), offset(units[0])), np.zeros(len(keys), bool)
    alive = lengths <= LONGEST
    for step in range(letters.shape[1]):
        going = alive & (lengths > step)
        place = np.where(going, place ^ letters[:, step], place)
        unit = units[np.where(place < len(units), place, 0)]
        alive &= ~going | ((place < len(units)) & ((unit & LABEL) == letters[:, step]))
        leaf = np.where(going, (unit & LEAF) > 0, leaf)
        place = np.where(going, place ^ offset(unit), place)
    starts = units[np.where(alive & leaf, place, 0)] & 0x7FFFFFFF
    return [pool[start:pool.index(0, start)].decode() if hit else None for start, hit in zip(starts.tolist(), alive & leaf)]


@functools.lru_cache(4)
def joined(charsmap: bytes, steps: Steps) -> bytes:
    """Returns a character map that does `steps` and then what `charsmap` does."""
    if not any(steps):
        return charsmap
    chars = [chr(code) for code in itertools.chain(*CHARACTERS) if code != 0x0A]
    composed = ["".join(parts) for parts in _hangul()]
    before = _before(steps).normalize_str("\n".join([*chars, *composed])).split("\n")
    keys = [*chars, *composed, "\n"]
    own = {key: value for key, value in zip(keys, look_up(charsmap, keys)) if value is not None}
    rules = {char: value for char, text in zip(chars, before) if (value := _mapped(text, own)) != char}
    rules |= {key: value for key, text in zip(composed, before[len(chars):]) if (value := _mapped(text, own)) != key}
    rules |= {key: value for key, value in own.items() if key == "\n"}
    if steps.quotes:
        rules |= {key: own.get(value, value) for key, value in QUOTES.items()}
    return _compiled(rules)


def _before(steps: Steps) -> tokenizers.normalizers.Sequence:
    chosen = [tokenizers.normalizers.NFKD(), tokenizers.normalizers.StripAccents()] if steps.strip_accents else []
    return tokenizers.normalizers.Sequence([*chosen, *([tokenizers.normalizers.Lowercase()] if steps.lower else [])])


def _hangul() -> Iterator[tuple[str, ...]]:
    """Sequences of parts that make a syllable."""
    pairs = [(chr(lead), chr(vowel)) for lead in LEADS for vowel in VOWELS]
    yield from pairs
    yield from ((*pair, chr(tail)) for pair in pairs for tail in TAILS)
    yield from ((chr(code), chr(tail)) for code in range(0xAC00, 0xD7A4, 28) for tail in TAILS)


def _mapped(text: str, own: dict[str, str]) -> str:
    """Maps a text by the entries of `own`, of at most three characters, always the longest."""
    mapped, place = "", 0
    while place < len(text):
        key = next((key for key in (text[place:place + 3], text[place:place + 2]) if key in own), text[place])
        mapped += own.get(key, key)
        place += len(key)
    return mapped


def _compiled(rules: dict[str, str]) -> bytes:
    """Compiles rules to a character map, which the library does when it trains a model."""
    def hexadecimal(text: str) -> str:
        return " ".join(f"{ord(char):X}" for char in text)
    trained = io.BytesIO()
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "rules.tsv")
        with open(path, "w", encoding="ascii") as file:
            file.writelines(f"{hexadecimal(key)}\t{hexadecimal(value)}\n" for key, value in rules.items())
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(["a b c d"]), model_writer=trained, vocab_size=8, hard_vocab_limit=False, minloglevel=2,
            normalization_rule_tsv=path)
    return model_proto.read(trained.getvalue(), "rules").normalizer_spec.precompiled_charsmap
