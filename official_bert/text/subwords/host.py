"""Byte-level BPE and SentencePiece unigram on the host, by the reference libraries `sentencepiece` and `tokenizers`."""

import functools
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tokenizers

from official_bert.text.subwords import model_proto, tokenizer_files
from official_bert.text.subwords.byte_bpe import byte_letters, composed
from official_bert.text.subwords.character_map import joined
from official_bert.text.subwords.definition import (
    IDS,
    WHITE_SPACE,
    AddedToken,
    AddedTokens,
    Definition,
    check_values,
    mapping_in,
)
from official_bert.text.tokenizer import Span, Tokenizer

# What counts as a space at the ends of a piece: white space and what SentencePiece's usual character map makes a space
# or nothing.
SPACES = "".join(chr(code) for code in range(0x3001) if chr(code).isspace()) + "".join(
    map(
        chr,
        (
            *range(0x01, 0x09),
            0x0B,
            *range(0x0E, 0x20),
            0x7F,
            0x8F,
            0x9F,
            0x61C,
            *range(0x200B, 0x2010),
            0x2581,
            0xFEFF,
            0xFFFD,
        ),
    )
)
WORD_START, BYTE_SPACE = "\u2581", "\u0120"  # the letters for a space, of a unigram model and of byte-level BPE
SURROGATES = re.compile("[\ud800-\udfff]")


@functools.cache
def _bytes_of_letters() -> dict[str, int]:
    return {letter: byte for byte, letter in enumerate(byte_letters())}


class SubwordTokenizer(Tokenizer):
    """A tokenizer of pieces of words, as its files define it."""

    space: str  # letter of a space in tokens

    def __init__(self, vocab_file: str, definition: Definition, vocab: Mapping[str, int], added: Sequence[AddedToken]):
        super().__init__(vocab_file, definition.steps.lower, vocab, definition.special)
        self.definition, self.added = definition, added
        self.separators, self.second_segment = definition.family.separators, definition.family.second_segment
        if absent := [token for role, token in self.special.items() if token not in vocab and role != "[MASK]"]:
            raise ValueError(
                f"{vocab_file}: expected special tokens {' '.join(self.special.values())}, "
                f"got {len(vocab)} tokens without {' '.join(absent)}"
            )
        self._whole = {token.content for token in added} - {self.special["[UNK]"]}

    def is_blank(self, token: str) -> bool:
        """Returns whether a token is only white space, which may have no place in the text."""
        return not token.strip(self.space + WHITE_SPACE)

    def _continues(self, token: str) -> bool:
        return not token.startswith(self.space) and token not in self._whole

    def piece_text(self, index: int) -> bytes:
        """Returns the text of an id, see `Tokenizer`."""
        token, bytes_of = self.inv_vocab.get(index, ""), _bytes_of_letters()
        if self.kind == "byte_bpe":
            return bytes(map(bytes_of.__getitem__, token)) if bytes_of.keys() >= {*token} else token.encode()
        return token.replace(WORD_START, " ").encode() if self.kind == "unigram" else super().piece_text(index)

    def tokenize_ids(self, text: str) -> list[int]:
        """Returns the ids of a text's tokens."""
        return self.encode_all([text])[0]

    def tokenize(self, text: str) -> list[str]:
        """Returns the tokens of `text`."""
        return self.convert_ids_to_tokens(self.tokenize_ids(text))

    def encode_all(self, texts: Sequence[str]) -> list[list[int]]:
        """Returns the ids of each text."""
        raise NotImplementedError


class SplitTokenizer(SubwordTokenizer):
    """A tokenizer whose model sees only the text between added tokens, which are found first."""

    @functools.cached_property
    def _finder(self) -> AddedTokens:
        return AddedTokens(self.added)

    def tokenize_with_offsets(self, text: str) -> list[Span]:
        """Returns (token, start, end) for each token, see `Tokenizer`."""
        text = _readable(text)
        tokens: list[Span] = []
        for part in self._finder.split(text):
            if part.token:
                tokens.append((part.token.content, *_trimmed(text, part.start, part.end)))
            else:
                tokens += [
                    (token, start + part.start, end + part.start)
                    for token, start, end in self._tokenize_part(text[part.start : part.end])
                ]
        return tokens

    def encode_all(self, texts: Sequence[str]) -> list[list[int]]:
        """Returns the ids of each text."""
        return [
            [
                index
                for part in self._finder.split(text)
                for index in ([part.token.id] if part.token else self._encode_part(text[part.start : part.end]))
            ]
            for text in map(_readable, texts)
        ]

    def _tokenize_part(self, text: str) -> list[Span]:
        """Returns the tokens of text without added ones."""
        raise NotImplementedError

    def _encode_part(self, text: str) -> list[int]:
        raise NotImplementedError


class SentencePieceTokenizer(SplitTokenizer):
    """A SentencePiece unigram model (`.model`) by its own library, with the ids of XLM-R, CamemBERT, ALBERT, or of the
    model itself.
    """

    kind, space = "unigram", WORD_START

    def __init__(self, vocab_file: str, definition: Definition):
        assert definition.model is not None
        model = model_proto.read(definition.model, vocab_file)
        model.normalizer_spec.precompiled_charsmap = joined(
            model.normalizer_spec.precompiled_charsmap, definition.steps, vocab_file
        )
        model_proto.release_symbols(model, vocab_file)
        self.model = model.SerializeToString()
        self._library = model_proto.processor(self.model, vocab_file)
        pieces = [piece.piece for piece in model.pieces]
        unknown = [piece.type for piece in model.pieces].index(model_proto.UNKNOWN)
        vocab, self.ids = _ids(pieces, unknown, definition)
        added = added_tokens(definition, vocab)
        super().__init__(vocab_file, definition, vocab | {token.content: token.id for token in added}, added)

    def _tokenize_part(self, text: str) -> list[Span]:
        """A character that becomes several belongs to the piece with its last, and to pieces of some of them alone."""
        places, tokens = _places(text), []
        for piece in self._library.encode(text, return_type="proto").pieces:
            start, end = _trimmed(text, places[piece.begin], places[piece.end])
            token = self.inv_vocab[int(self.ids[piece.id])]
            of_some = piece.begin == piece.end or token.startswith(WORD_START)
            tokens.append((token, start, end + (start == end < len(text) and of_some and not self.is_blank(token))))
        return tokens

    def _encode_part(self, text: str) -> list[int]:
        return self.ids[self._library.encode(text)].tolist()


class LibraryTokenizer(SubwordTokenizer):
    """A tokenizer of Hugging Face's `tokenizers`: byte-level BPE, or a unigram model in `tokenizer.json`."""

    def __init__(self, vocab_file: str, definition: Definition):
        self.kind = definition.family.kind  # type: ignore[misc]
        self.space = BYTE_SPACE if self.kind == "byte_bpe" else WORD_START
        self.settings = library_settings(definition)
        try:
            # Without its last step, which may cut places.
            self._library = tokenizers.Tokenizer.from_str(json.dumps(self.settings | {"post_processor": None}))
        except Exception as error:  # of many types
            raise ValueError(f"{vocab_file}: the tokenizers library cannot read it: {error}") from None
        self._library.no_truncation()
        self._library.no_padding()
        self.composes = bool(self.settings.get("normalizer")) and self.kind == "byte_bpe"  # NFC: no other is read
        flags = ("single_word", "lstrip", "rstrip", *(["normalized"] if self.kind == "byte_bpe" else []))
        added = [
            AddedToken(token["content"], token["id"], *(bool(token.get(flag)) for flag in flags))
            for token in self.settings["added_tokens"]
        ]
        for token in added:
            if (index := self._library.token_to_id(token.content)) != token.id:
                raise ValueError(
                    f"{vocab_file}: added token {token.content!r}: expected id {index}, the next of the vocabulary, "
                    f"got {token.id}"
                )
        self._added_contents = {token.content for token in added}
        super().__init__(vocab_file, definition, self._library.get_vocab(with_added_tokens=True), added)

    def tokenize_with_offsets(self, text: str) -> list[Span]:
        """Returns (token, start, end) for each token, see `Tokenizer`. In a piece of byte-level BPE, only the space
        itself is a space.
        """
        text = _readable(text)
        if self.composes and not text.isascii() and composed(text)[0] != text:
            return self._tokenize_composed(text)
        encoded = self._library.encode(text, add_special_tokens=False)
        tokens, next_starts = [], [*(start for start, _ in encoded.offsets[1:]), len(text)]
        for index, (start, end), next_start in zip(encoded.ids, encoded.offsets, next_starts):
            token = self.inv_vocab[index]
            spaces, is_added = SPACES, token in self._added_contents
            if self.kind == "byte_bpe":
                spaces = WHITE_SPACE if is_added else " "
            elif not is_added:  # the library's places end before accents that are composed
                end = max(end, next_start)
            start, end = _trimmed(text, start, end, spaces)
            # A space put before the text has no place in it.
            tokens.append((token, start, start if self.is_blank(token) else end))
        return tokens

    @functools.cached_property
    def _before_normalizer(self) -> AddedTokens:
        return AddedTokens([token for token in self.added if not token.normalized])

    def _tokenize_composed(self, text: str) -> list[Span]:
        """Tokens of NFC's texts between the tokens that are found before it, at their places in `text`; the library's
        own places end before accents.
        """
        tokens: list[Span] = []
        for first, behind, added in self._before_normalizer.split(text):
            if added:
                tokens.append((added.content, *_trimmed(text, first, behind, WHITE_SPACE)))
                continue
            composed_text, places = composed(text[first:behind])
            for token, start, end in self.tokenize_with_offsets(composed_text):
                start, end = first + places[start], first + places[end]
                tokens.append((token, start, end + (start == end < behind and not self.is_blank(token))))
        return tokens

    def word_numbers(self, text: str, ids: Sequence[int]) -> list[int]:
        """Returns the number of the word of each token; byte-level BPE has a pattern for words."""
        if self.kind != "byte_bpe":
            return super().word_numbers(text, ids)
        words = self._library.encode(_readable(text), add_special_tokens=False).word_ids
        return [-1 - place if word is None else word for place, word in enumerate(words)]

    def tokenize_word(self, word: str) -> list[str]:
        """Returns the tokens of a word that stands behind a space."""
        return self.tokenize(f" {word}" if self.kind == "byte_bpe" else word)

    def encode_all(self, texts: Sequence[str]) -> list[list[int]]:
        """Returns the ids of each text."""
        return [
            encoded.ids for encoded in self._library.encode_batch(list(map(_readable, texts)), add_special_tokens=False)
        ]


def _readable(text: str) -> str:
    """Replaces halves of surrogate pairs, which no UTF-8 has."""
    return text if text.isascii() else SURROGATES.sub("\ufffd", text)


def _places(text: str) -> Sequence[int]:
    """Returns the character of each byte of a text in UTF-8, and the number of characters."""
    if text.isascii():
        return range(len(text) + 1)
    return [*np.repeat(np.arange(len(text)), [len(char.encode()) for char in text]).tolist(), len(text)]


def _trimmed(text: str, start: int, end: int, spaces: str = SPACES) -> tuple[int, int]:
    """Returns the part of a span without `spaces` at its ends; a span of spaces alone is empty, at its end."""
    part = text[start:end]
    start = end - len(part.lstrip(spaces))
    return start, max(start, end - len(part) + len(part.rstrip(spaces)))


def _ids(pieces: Sequence[str], unknown: int, definition: Definition) -> tuple[dict[str, int], np.ndarray]:
    """Returns {token: id}, and the id of each piece of a SentencePiece model."""
    ids, scheme = np.arange(len(pieces)), definition.family.ids
    before: dict[str, int] = {}
    if scheme == "xlm_roberta":  # fairseq's: <s> <pad> </s> <unk>, then the model's from <unk> <s> </s> on
        ids, before = ids + 1, {"<s>": 0, "<pad>": 1, "</s>": 2, "<unk>": 3}
        ids[:3] = 3, 0, 2
    elif scheme == "camembert":
        ids, before = ids + 4, {"<s>NOTUSED": 0, "<pad>": 1, "</s>NOTUSED": 2, "<unk>": 3, "<unk>NOTUSED": 4}
    if scheme != "own":
        if pieces[:3] != ["<unk>", "<s>", "</s>"]:
            raise ValueError(
                f"{definition.where}: expected a SentencePiece model that begins with <unk> <s> </s>, "
                f"got {' '.join(pieces[:3])}"
            )
        ids[unknown] = 3
    vocab = before | {
        piece: int(ids[index]) for index, piece in enumerate(pieces) if index != unknown or scheme == "own"
    }
    if scheme != "own":
        vocab.setdefault(definition.special["[MASK]"], len(pieces) + (1 if scheme == "xlm_roberta" else 4))
    return vocab, ids


def added_tokens(definition: Definition, vocab: Mapping[str, int]) -> list[AddedToken]:
    """Returns the special and the added tokens; [MASK] strips the space before it."""
    listed = {token.content: token for token in definition.added}
    special = [token for token in definition.special.values() if token in vocab and token not in listed]
    return [AddedToken(token, vocab[token], lstrip=token == definition.special["[MASK]"]) for token in special] + list(
        listed.values()
    )


def library_settings(definition: Definition) -> dict[str, Any]:
    """Returns the content of `tokenizer.json`, or its equivalent made from `vocab.json` and `merges.txt`.

    Raises ValueError for steps that are not supported here.
    """
    files, where = definition.files, definition.where
    if tokenizer_files.JSON_FILE in files:
        settings = mapping_in(files, tokenizer_files.JSON_FILE, where)
        try:
            _check_settings(settings, definition)
        except (TypeError, AttributeError, LookupError) as error:  # a number for a section, and the like
            raise ValueError(
                f"{where}: {tokenizer_files.JSON_FILE}: expected the settings of a tokenizer: {error}"
            ) from None
        return settings | {"added_tokens": settings.get("added_tokens") or []}
    if not {tokenizer_files.VOCAB_JSON, tokenizer_files.MERGES_FILE} <= set(files):
        raise ValueError(
            f"{where}: expected {tokenizer_files.JSON_FILE}, or {tokenizer_files.VOCAB_JSON} with "
            f"{tokenizer_files.MERGES_FILE}; got {', '.join(sorted(files))}"
        )
    vocab = mapping_in(files, tokenizer_files.VOCAB_JSON, where)
    added = [
        {
            "id": token.id,
            "content": token.content,
            "single_word": token.single_word,
            "lstrip": token.lstrip,
            "rstrip": token.rstrip,
            "normalized": False,
            "special": True,
        }
        for token in added_tokens(definition, vocab)
    ]
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": sorted(added, key=lambda token: token["id"]),
        "normalizer": None,
        "post_processor": None,
        "decoder": None,
        "pre_tokenizer": {
            "type": "ByteLevel",
            "add_prefix_space": bool(definition.config.get("add_prefix_space", False)),
            "trim_offsets": True,
            "use_regex": True,
        },
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": vocab,
            "merges": read_merges(files),
        },
    }


def read_merges(files: Mapping[str, bytes]) -> list[str]:
    """Reads the merges of byte-level BPE, in the order of their ranks."""
    lines = files[tokenizer_files.MERGES_FILE].decode().split("\n")
    return [line.removesuffix("\r") for line in lines if line.strip() and not line.startswith("#version")]


def _check_settings(settings: Mapping[str, Any], definition: Definition) -> None:
    """Raises ValueError for a `tokenizer.json` of a kind that operations of TensorFlow do not compute here."""
    model, before = settings.get("model") or {}, settings.get("pre_tokenizer") or {}
    where = f"{definition.where}: {tokenizer_files.JSON_FILE}"
    steps_allowed: dict[str, Any]
    if definition.family.kind == "byte_bpe":
        steps_allowed = {"type": ("ByteLevel",), "use_regex": (True, None)}
        usual = {
            "dropout": (None, 0, 0.0),
            "continuing_subword_prefix": (None, ""),
            "end_of_word_suffix": (None, ""),
            "ignore_merges": (False, None),
        }
        if (settings.get("normalizer") or {"type": "NFC"}).get("type") != "NFC":
            raise ValueError(
                f"{where}: normalizer: expected none or NFC, got {settings['normalizer'].get('type')}; or {IDS}"
            )
    else:
        steps = before.get("pretokenizers") or [before]
        before = steps[-1]
        if [step.get("type") for step in steps[:-1]] not in ([], ["WhitespaceSplit"]):
            raise ValueError(
                f"{where}: pre_tokenizer: expected WhitespaceSplit and Metaspace, got "
                f"{[step.get('type') for step in steps]}"
            )
        steps_allowed = {
            "type": ("Metaspace",),
            "replacement": (WORD_START,),
            "prepend_scheme": ("always", None),
            "add_prefix_space": (True, None),
        }
        usual = {"byte_fallback": (False, None)}
        if type(unknown := model.get("unk_id")) is not int or not 0 <= unknown < len(model["vocab"]):
            raise ValueError(f"{where}: model.unk_id: expected the id of an unknown piece, got {str(unknown)[:40]}")
    check_values(before, steps_allowed, f"{where}: pre_tokenizer.", f"; or {IDS}")
    check_values(model, usual, f"{where}: model.")
