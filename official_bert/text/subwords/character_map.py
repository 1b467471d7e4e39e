"""The character map of a SentencePiece model, joined with the steps that ALBERT takes before it.

ALBERT's tokenizer makes quotes of `` and '', decomposes (NFKD), deletes accents and lower-cases; then the model maps
characters by its own table. Both together are one map, which replaces the model's: so the library and TensorFlow's op
give ALBERT's pieces, with places in the original text, without knowing of these steps. This is exact because each step
but the composition of Hangul treats every character by itself, once accents are gone.
"""

import functools
import itertools
import tempfile
from collections.abc import Iterator
from typing import NamedTuple

import sentencepiece
import tokenizers

from official_bert.text.subwords import model_proto

# Unicode assigns no others, private use apart
CHARACTERS = (range(1, 0xD800), range(0xE000, 0x40000), range(0xE0000, 0xE1000))
LEADS, VOWELS, TAILS = range(0x1100, 0x1113), range(0x1161, 0x1176), range(0x11A8, 0x11C3)  # parts of Hangul syllables
QUOTES = {"``": '"', "''": '"'}


class Steps(NamedTuple):
    """The steps applied to a text before the model's own map, in this order."""

    quotes: bool = False
    strip_accents: bool = False
    lower: bool = False


@functools.lru_cache(4)
def joined(charsmap: bytes, steps: Steps, where: str) -> bytes:
    """Returns a character map that applies `steps` and then `charsmap`. Raises ValueError, naming `where`, for a
    damaged map.
    """
    if not any(steps):
        return charsmap
    chars = [chr(code) for code in itertools.chain(*CHARACTERS) if code != 0x0A]
    keys = [*chars, *map("".join, _hangul())]
    before = _before(steps).normalize_str("\n".join(keys)).split("\n")
    model = model_proto.ModelProto(normalizer_spec={"precompiled_charsmap": charsmap}).SerializeToString()
    try:
        mapped = sentencepiece.SentencePieceNormalizer(
            model_proto=model, add_dummy_prefix=False, escape_whitespaces=False, remove_extra_whitespaces=False
        ).normalize
        rules = {key: value for key, text in zip([*keys, "\n"], [*before, "\n"]) if (value := mapped(text)) != key}
    except (RuntimeError, UnicodeDecodeError) as error:  # a damaged table, or texts in it that are no UTF-8
        raise model_proto.damage(error, where) from None
    return _compiled(rules | ({key: mapped(value) for key, value in QUOTES.items()} if steps.quotes else {}))


def _before(steps: Steps) -> tokenizers.normalizers.Sequence:
    chosen = [tokenizers.normalizers.NFKD(), tokenizers.normalizers.StripAccents()] if steps.strip_accents else []
    return tokenizers.normalizers.Sequence([*chosen, *([tokenizers.normalizers.Lowercase()] if steps.lower else [])])


def _hangul() -> Iterator[tuple[str, ...]]:
    """Sequences of parts that make a syllable."""
    pairs = [(chr(lead), chr(vowel)) for lead in LEADS for vowel in VOWELS]
    yield from pairs
    yield from ((*pair, chr(tail)) for pair in pairs for tail in TAILS)
    yield from ((chr(code), chr(tail)) for code in range(0xAC00, 0xD7A4, 28) for tail in TAILS)


def _compiled(rules: dict[str, str]) -> bytes:
    """Compiles rules to a character map."""

    def hexadecimal(text: str) -> str:
        return " ".join(f"{ord(char):X}" for char in text)

    with tempfile.NamedTemporaryFile("w", suffix=".tsv", encoding="ascii") as file:
        file.writelines(f"{hexadecimal(key)}\t{hexadecimal(value)}\n" for key, value in rules.items())
        file.flush()
        sentencepiece.set_min_log_level(2)  # warnings: it logs each map
        compiled = sentencepiece.SentencePieceNormalizer(rule_tsv=file.name).serialized_model_proto()
    return model_proto.ModelProto.FromString(compiled).normalizer_spec.precompiled_charsmap
