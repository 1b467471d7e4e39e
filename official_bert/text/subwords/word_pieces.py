"""WordPiece with special tokens other than BERT's (MPNet), which are matched in a text first."""

from collections.abc import Mapping
from typing import Any

from official_bert.text.subwords import tokenizer_files
from official_bert.text.subwords.definition import Definition, check_values, mapping_in
from official_bert.text.subwords.host import SplitTokenizer, added_tokens
from official_bert.text.tokenization import UNKNOWN, FullTokenizer
from official_bert.text.tokenizer import Span
from official_bert.text.vocab import number_entries

# Switches that change the tokens, with their values for BERT of 2018.
STEPS: Mapping[str, tuple] = {
    "tokenize_chinese_chars": (True, None),
    "do_basic_tokenize": (True, None),
    "handle_chinese_chars": (True, None),
    "clean_text": (True, None),
}


class WordPieceTokenizer(SplitTokenizer):
    """The 2018 tokenizer, applied between the special and added tokens of a text."""

    kind, space = "wordpiece", "##"

    def __init__(self, vocab_file: str, definition: Definition):
        pieces = read_pieces(definition)
        added = added_tokens(definition, pieces)
        for token in added:
            if token.id != pieces.get(token.content, token.id):
                raise ValueError(
                    f"{vocab_file}: added token {token.content!r}: expected id {pieces[token.content]}, its place in "
                    f"the vocabulary, got {token.id}"
                )
        super().__init__(vocab_file, definition, {**pieces, **{token.content: token.id for token in added}}, added)
        self.do_lower_case = definition.lower_cases
        if self.special["[UNK]"] != UNKNOWN:
            raise ValueError(
                f"{vocab_file}: unk_token: expected {UNKNOWN}, got {self.special['[UNK]']!r}, which is not computed "
                f"here"
            )
        self.plain = FullTokenizer(vocab_file, self.do_lower_case, pieces)

    def _continues(self, token: str) -> bool:
        return token.startswith("##")

    def _tokenize_part(self, text: str) -> list[Span]:
        return self.plain.tokenize_with_offsets(text)

    def _encode_part(self, text: str) -> list[int]:
        return self.plain.tokenize_ids(text)


def read_pieces(definition: Definition) -> dict[str, int]:
    """Returns {token: id} of a list of WordPieces, or of `tokenizer.json`. Raises ValueError for unsupported steps."""
    files, where = definition.files, definition.where
    special = tuple(definition.special.values())
    settings = mapping_in(files, tokenizer_files.JSON_FILE, where)
    if tokenizer_files.WORDPIECE_FILE in files:
        lines = files[tokenizer_files.WORDPIECE_FILE].decode("utf-8", "replace").split("\n")
        pieces = number_entries(lines, f"{where}/{tokenizer_files.WORDPIECE_FILE}", special)
    else:
        try:
            ids = {
                **settings["model"]["vocab"],
                **{token["content"]: token["id"] for token in settings.get("added_tokens") or ()},
            }
            if {*map(type, ids)} != {str}:
                raise TypeError("a token that is no text")
            entries = sorted(ids, key=ids.__getitem__)
        except (TypeError, LookupError) as error:  # a text for an id, and the like
            raise ValueError(
                f"{where}: {tokenizer_files.JSON_FILE}: expected a WordPiece vocabulary with ids: {error}"
            ) from None
        pieces = number_entries(entries, f"{where}/{tokenizer_files.JSON_FILE}", special)
        if pieces != ids:
            raise ValueError(
                f"{where}: {tokenizer_files.JSON_FILE}: expected a WordPiece vocabulary with ids 0, 1, 2, ..., got "
                f"others"
            )
    check_steps(definition.config, definition.lower_cases, f"{where}: {tokenizer_files.CONFIG_FILE}")
    check_types(settings, f"{where}: {tokenizer_files.JSON_FILE}")
    check_steps(settings.get("normalizer") or {}, definition.lower_cases, f"{where}: {tokenizer_files.JSON_FILE}")
    return pieces


def check_types(library: Mapping[str, Any], where: str) -> None:
    """Raises ValueError for a `tokenizer.json` with other steps than BERT's."""
    for key, kind in (("normalizer", "BertNormalizer"), ("pre_tokenizer", "BertPreTokenizer"), ("model", "WordPiece")):
        if (step := (library.get(key) or {}).get("type", kind)) != kind:
            raise ValueError(f"{where}: {key}: expected {kind}, got {step!s:.80}")


def check_steps(values: Mapping[str, Any], lower_cases: bool, where: str) -> None:
    """Raises ValueError for settings that normalise text differently from 2018."""
    check_values(values, STEPS, f"{where}: ")
    if (accents := values.get("strip_accents")) not in (None, lower_cases):
        raise ValueError(
            f"{where}: strip_accents: {accents!r:.80} with do_lower_case {lower_cases} is not supported: accents "
            "go if, and only if, text is lower-cased"
        )
