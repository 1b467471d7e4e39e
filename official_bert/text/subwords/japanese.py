"""Hugging Face's BertJapaneseTokenizer: words by MeCab and its dictionary, then WordPieces or characters."""

import functools
import os
import types
import unicodedata
from typing import Any

from official_bert.dotted_names import by_name
from official_bert.text.subwords.definition import Definition, check_values
from official_bert.text.subwords.word_pieces import WordPieceTokenizer
from official_bert.text.tokenization import UNKNOWN
from official_bert.text.tokenizer import Span

LONGEST_WORD = 100  # characters; a longer word is one [UNK]
# Switches, with the values that are computed.
SWITCHES: dict[str, tuple] = {
    "word_tokenizer_type": ("mecab",),
    "subword_tokenizer_type": ("wordpiece", "character", None),
    "do_word_tokenize": (True, None),
    "do_subword_tokenize": (True, None),
    "never_split": (None, []),
}
DICTIONARIES = ("unidic_lite", "ipadic", "unidic")  # packages


class JapaneseTokenizer(WordPieceTokenizer):
    """Splits text into MeCab's words, then into WordPieces or characters; runs on the host only and needs `fugashi` and
    the dictionary that the files name.
    """

    kind = "japanese"  # type: ignore[assignment]
    exportable = (
        "MeCab's words have no form in TensorFlow: its dictionary and search are a program of their own; "
        "load_tokenizer, "
        "load_encoder, training and extract_features take this tokenizer, run_predict and run_export do not"
    )

    def __init__(self, vocab_file: str, definition: Definition):
        super().__init__(vocab_file, definition)
        check_values({"word_tokenizer_type": "basic"} | dict(definition.config), SWITCHES, f"{vocab_file}: ")
        options = definition.config.get("mecab_kwargs") or {}
        if not isinstance(options, dict) or options.get("mecab_option"):  # which may name files for MeCab to load
            raise ValueError(f"{vocab_file}: mecab_kwargs: expected no mecab_option, got {str(options)[:80]}")
        self._characters = definition.config.get("subword_tokenizer_type") == "character"
        self._normalizes, self._lower = (
            bool(options.get("normalize_text", True)),
            self.do_lower_case or bool(options.get("do_lower_case")),
        )

    @functools.cached_property
    def _tagger(self) -> Any:
        return _tagger(self.definition.config.get("mecab_kwargs") or {}, self.vocab_file)

    def _tokenize_part(self, text: str) -> list[Span]:
        normal, places = (
            _normalised(text) if self._normalizes else (text, [(index, index + 1) for index in range(len(text))])
        )
        tokens: list[Span] = []
        last = 0
        for word in self._tagger(normal):
            last = normal.index(word.surface, last)
            surface = word.surface.lower() if self._lower else word.surface
            pieces = (
                [char if char in self.vocab else UNKNOWN for char in surface]
                if self._characters
                else [UNKNOWN]
                if len(surface) > LONGEST_WORD
                else self.plain.split_word(surface)
            )
            covered = places[last : last + len(word.surface)]
            for piece, first, behind in _spread(pieces, len(covered), self._characters):
                tokens.append((piece, covered[first][0], covered[behind - 1][1]))
            last += len(word.surface)
        return tokens

    def _encode_part(self, text: str) -> list[int]:
        return self.convert_tokens_to_ids([token for token, _, _ in self._tokenize_part(text)])


def _spread(pieces: list[str], length: int, single: bool) -> list[tuple[str, int, int]]:
    """Returns each piece with the characters of the word that it covers; lower-casing may have made a word longer."""
    if pieces == [UNKNOWN] and not single:
        return [(UNKNOWN, 0, length)]
    ends, end = [], 0
    for piece in pieces:
        end += 1 if single else len(piece.removeprefix("##"))
        ends.append(end)
    starts = [0, *ends[:-1]]
    return [
        (piece, min(start, length - 1), max(min(end, length), 1)) for piece, start, end in zip(pieces, starts, ends)
    ]


def _normalised(text: str) -> tuple[str, list[tuple[int, int]]]:
    """Returns a text in NFKC, and for each of its characters the places of those of `text` that it comes from."""
    parts: list[tuple[str, int]] = []  # the shortest parts that are normalised by themselves, and where each begins
    for index, char in enumerate(text):
        before = parts[-1][0] if parts else ""
        joined = unicodedata.normalize("NFKC", before + char)
        if parts and joined != unicodedata.normalize("NFKC", before) + unicodedata.normalize("NFKC", char):
            parts[-1] = (before + char, parts[-1][1])
        else:
            parts.append((char, index))
    normal = [(unicodedata.normalize("NFKC", part), start, start + len(part)) for part, start in parts]
    return "".join(part for part, _, _ in normal), [(start, end) for part, start, end in normal for _ in part]


def _tagger(options: dict[str, Any], where: str) -> Any:
    """Returns MeCab with a dictionary. Raises ModuleNotFoundError without the extra, ValueError for another one."""
    fugashi: types.ModuleType = by_name("fugashi")
    name = options.get("mecab_dic", "unidic_lite")
    if name not in DICTIONARIES:
        raise ValueError(
            f"{where}: mecab_kwargs.mecab_dic: expected one of {', '.join(DICTIONARIES)}, got {name!r:.80}"
        )
    folder: str = by_name(name).DICDIR
    return fugashi.GenericTagger(f'-d "{folder}" -r "{os.path.join(folder, "mecabrc")}"')
