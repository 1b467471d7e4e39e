"""WordPiece with other special tokens than BERT's (MPNet), which are found in a text first."""

import itertools
import json
from collections.abc import Mapping, Sequence
from typing import Any

from official_bert.text.subwords import tokenizer_files
from official_bert.text.subwords.added_tokens import AddedTokens
from official_bert.text.subwords.definition import Definition
from official_bert.text.subwords.host import SubwordTokenizer, added_tokens
from official_bert.text.tokenization import UNKNOWN, FullTokenizer
from official_bert.text.tokenizer import Span
from official_bert.text.vocab import number_entries

# Switches that change the tokens, with their values for BERT of 2018.
STEPS: Mapping[str, tuple] = {"tokenize_chinese_chars": (True, None), "do_basic_tokenize": (True, None),
                              "handle_chinese_chars": (True, None), "clean_text": (True, None)}


class WordPieceTokenizer(SubwordTokenizer):
    """The tokenizer of 2018 between the special and added tokens of a text."""

    kind, space = "wordpiece", "##"

    def __init__(self, vocab_file: str, definition: Definition):
        pieces = read_pieces(definition)
        added = added_tokens(definition, pieces)
        for token in added:
            if token.id != pieces.get(token.content, token.id):
                raise ValueError(f"{vocab_file}: added token {token.content!r}: expected id {pieces[token.content]}, its place in the "
                                 f"vocabulary, got {token.id}")
        super().__init__(vocab_file, definition, {**pieces, **{token.content: token.id for token in added}}, added)
        self.do_lower_case = definition.lower_cases
        if self.special["[UNK]"] != UNKNOWN:
            raise ValueError(f"{vocab_file}: unk_token: expected {UNKNOWN}, got {self.special['[UNK]']!r}, which is not computed here")
        self.plain = FullTokenizer(vocab_file, self.do_lower_case, pieces)
        self._finder = AddedTokens(added)

    def _continues(self, token: str) -> bool:
        return token.startswith("##")

    def tokenize_with_offsets(self, text: str) -> list[Span]:
        """Returns (token, start, end) for each token, see `Tokenizer`."""
        tokens: list[Span] = []
        for part in self._finder.split(text):
            if part.token:
                place = text.index(part.token.content, part.start)
                tokens.append((part.token.content, place, place + len(part.token.content)))
            else:
                tokens += [(token, start + part.start, end + part.start)
                           for token, start, end in self._tokenize_part(text[part.start:part.end])]
        return tokens

    def encode_all(self, texts: Sequence[str]) -> list[list[int]]:
        """Returns the ids of each text."""
        return [list(itertools.chain(*([part.token.id] if part.token else self._encode_part(text[part.start:part.end])
                                       for part in self._finder.split(text)))) for text in texts]

    def _tokenize_part(self, text: str) -> list[Span]:
        """Returns the tokens of text without special ones."""
        return self.plain.tokenize_with_offsets(text)

    def _encode_part(self, text: str) -> list[int]:
        return self.plain.tokenize_ids(text)


def read_pieces(definition: Definition) -> dict[str, int]:
    """Returns {token: id} of a list of WordPieces, or of `tokenizer.json`. Raises ValueError for steps that are not computed here."""
    files, where = definition.files, definition.where
    special = tuple(definition.special.values())
    settings = json.loads(files[tokenizer_files.JSON_FILE]) if tokenizer_files.JSON_FILE in files else {}
    if tokenizer_files.WORDPIECE_FILE in files:
        lines = files[tokenizer_files.WORDPIECE_FILE].decode("utf-8", "replace").split("\n")
        pieces = number_entries(lines, f"{where}/{tokenizer_files.WORDPIECE_FILE}", special)
    else:
        ids = {**settings["model"]["vocab"], **{token["content"]: token["id"] for token in settings.get("added_tokens") or ()}}
        pieces = number_entries(sorted(ids, key=ids.__getitem__), f"{where}/{tokenizer_files.JSON_FILE}", special)
        if pieces != ids:
            raise ValueError(f"{where}: {tokenizer_files.JSON_FILE}: expected a WordPiece vocabulary with ids 0, 1, 2, ..., got others")
    check_steps(definition.config, definition.lower_cases, f"{where}: {tokenizer_files.CONFIG_FILE}")
    check_steps(settings.get("normalizer") or {}, definition.lower_cases, f"{where}: {tokenizer_files.JSON_FILE}")
    return pieces


def check_steps(values: Mapping[str, Any], lower_cases: bool, where: str) -> None:
    """Raises ValueError for switches that change the words of a text otherwise than in 2018."""
    for key, usual in STEPS.items():
        if values.get(key) not in usual:
            raise ValueError(f"{where}: {key}: {values[key]!r} is not computed here; expected {usual[0]!r}")
    if (accents := values.get("strip_accents")) not in (None, lower_cases):
        raise ValueError(f"{where}: strip_accents: {accents!r} with do_lower_case {lower_cases} is not computed here: accents go if, and "
                         "only if, text is lower-cased")
