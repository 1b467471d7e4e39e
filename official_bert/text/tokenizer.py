"""The interface of all tokenizers: tokens with their places in a text, special ids, the form of rows, word beginnings.

Three kinds exist: WordPiece (`text/tokenization`), byte-level BPE and SentencePiece unigram (`text/subwords`). Special
    tokens go by the
names that BERT gives to their roles: `special_id("[CLS]")` is the id of `<s>` in XLM-R's vocabulary.
"""

import abc
import functools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar, Literal

import numpy as np

from official_bert.limits import MOST_TOKENS
from official_bert.text.packing import Template, truncate_pair

# Spaces that are not written in English, as transformers' `clean_up_tokenization` removes them.
CLEAN_UPS = ((" .", "."), (" ?", "?"), (" !", "!"), (" ,", ","), (" ' ", "'"), (" n't", "n't"), (" 'm", "'m"),
             (" 's", "'s"), (" 've", "'ve"), (" 're", "'re"))  # fmt: skip
ROLES = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
Span = tuple[str, int, int]  # a token, its start and end in code points of the text


class Tokenizer(abc.ABC):
    """Turns text into tokens and their ids.

    Attributes: `vocab` {token: id}, `inv_vocab` {id: token}, `vocab_file`, `do_lower_case`, `special` {role of BERT's
    token: token}, `exportable` ("", or why there is no form in TensorFlow).
    """

    kind: ClassVar[Literal["wordpiece", "byte_bpe", "unigram", "japanese"]]
    exportable: str = ""
    separators: int = 1  # between two texts of a row
    second_segment: int = 1  # segment of the second text

    def __init__(
        self, vocab_file: str, do_lower_case: bool, vocab: Mapping[str, int], special: Mapping[str, str] | None = None
    ):
        self.vocab_file, self.do_lower_case, self.vocab = vocab_file, do_lower_case, vocab
        self.inv_vocab = _by_id(vocab, vocab_file)
        self.special = dict(special or zip(ROLES, ROLES))

    @functools.cached_property
    def size(self) -> int:
        """Rows that the vocabulary needs: one more than the highest id."""
        return max(self.vocab.values()) + 1

    @functools.cached_property
    def template(self) -> Template:
        """The form of rows of one text or two."""
        return Template(
            self.special_id("[CLS]"),
            self.special_id("[SEP]"),
            self.special_id("[PAD]"),
            self.separators,
            self.second_segment,
        )

    @functools.cached_property
    def continues_word(self) -> np.ndarray:
        """Whether each id [size] is of a token that continues a word."""
        continues = np.zeros(self.size, np.bool_)
        continues[[index for token, index in self.vocab.items() if self._continues(token)]] = True
        return continues

    @abc.abstractmethod
    def _continues(self, token: str) -> bool:
        """Whether a token continues a word."""

    @abc.abstractmethod
    def tokenize_with_offsets(self, text: str) -> list[Span]:
        """Returns (token, start, end) for each token: from its first to its last character of `text` that is not a
        space.

        Offsets count code points of `text`, the end excluded. If one character becomes several tokens, each spans it.
        """

    def tokenize(self, text: str) -> list[str]:
        """Returns the tokens of `text`."""
        return [token for token, _, _ in self.tokenize_with_offsets(text)]

    def tokenize_word(self, word: str) -> list[str]:
        """Returns the tokens of a word that stands behind a space."""
        return self.tokenize(word)

    def tokenize_ids(self, text: str) -> list[int]:
        """Returns the ids of a text's tokens."""
        return self.convert_tokens_to_ids(self.tokenize(text))

    def __call__(
        self, texts: str | Sequence[str], text_pairs: Any = None, max_seq_length: int = 512
    ) -> dict[str, np.ndarray]:
        """Returns what `encode` gives for a list of texts; for a single text, or pair, rows of one."""
        if isinstance(texts, str):
            texts, text_pairs = [texts], None if text_pairs is None else [text_pairs]
        return self.encode(texts, text_pairs, max_seq_length)

    def encode(self, texts: str | Sequence[str], text_pairs: Any = None, max_seq_length: int = 512) -> Any:
        """Returns the encoder's inputs for B texts or pairs: `input_ids`, `input_mask`, `segment_ids`, each int32
        [B,S]; for a single text, the list of its ids.

        S is the length of the longest row, at most `max_seq_length`: longer ones are cut as in 2018. Raises ValueError
        for anything but texts, and if there are not as many `text_pairs`.
        """
        if isinstance(texts, str):
            return self(texts, text_pairs, max_seq_length)["input_ids"][0].tolist()
        sides = texts, [""] * len(texts) if text_pairs is None else text_pairs
        if len(texts) != len(sides[1]) or not all(isinstance(text, str) for side in sides for text in side):
            raise ValueError("expected a list of texts and, if there are pairs, as many second texts as text_pairs")
        ids = [[self.tokenize_ids(text) for text in side] for side in sides]
        rows = [
            self.template.pack(*truncate_pair(first, second, max_seq_length - self.template.extra(bool(second))))
            for first, second in zip(*ids)
        ]
        shape = len(rows), max((len(row) for row, _ in rows), default=0)
        encoded = {
            "input_ids": np.full(shape, self.template.pad_id, np.int32),
            "input_mask": np.zeros(shape, np.int32),
            "segment_ids": np.zeros(shape, np.int32),
        }
        for number, (row, segments) in enumerate(rows):
            for name, values in (("input_ids", row), ("input_mask", 1), ("segment_ids", segments)):
                encoded[name][number, : len(row)] = values
        return encoded

    def decode(self, ids: Iterable[int], skip_special_tokens: bool = False) -> str:
        """Returns the text of a row of ids; WordPieces keep no spaces, so they are joined with English spacing."""
        if any(map(np.ndim, row := list(ids))):
            raise ValueError("expected the ids of one text, got several rows: decode each of them")
        hidden = {self.vocab.get(token) for token in self.special.values()} if skip_special_tokens else ()
        pieces = (self.piece_text(index) for index in map(int, row) if index not in hidden)
        text = b"".join(pieces).decode("utf-8", "replace").removeprefix(" ")
        for spaced, closed in CLEAN_UPS if self.kind not in ("byte_bpe", "unigram") else ():
            text = text.replace(spaced, closed)
        return text

    def piece_text(self, index: int) -> bytes:
        """Returns the text of an id as it stands behind another token, in UTF-8; a piece that begins a word has a space
        before it.
        """
        token = self.inv_vocab.get(index, "")
        return (token.removeprefix("##") if self.continues_word[index] else f" {token}").encode()

    def word_numbers(self, text: str, ids: Sequence[int]) -> list[int]:
        """Returns the number of the word of each token of a text, whose `ids` these are."""
        return (np.cumsum(~self.continues_word[ids]) - 1).tolist() if len(ids) else []

    def convert_tokens_to_ids(self, tokens: Iterable[str]) -> list[int]:
        """Returns the ids of `tokens`. Raises ValueError for a token that is not in the vocabulary."""
        try:
            return [self.vocab[token] for token in tokens]
        except KeyError as error:
            raise ValueError(f"{self.vocab_file}: token {error.args[0]!r} is not in the vocabulary") from None

    def convert_ids_to_tokens(self, ids: Iterable[int]) -> list[str]:
        """Returns the tokens of `ids`. Raises ValueError for an id beyond the vocabulary."""
        try:
            return [self.inv_vocab[int(index)] for index in ids]
        except KeyError as error:
            raise ValueError(f"{self.vocab_file}: expected ids below {len(self.vocab)}, got {error.args[0]}") from None

    def special_id(self, role: str) -> int:
        """Returns the id of the special token in the role of BERT's [MASK], ..."""
        return self.convert_tokens_to_ids([self.special.get(role, role)])[0]


def _by_id(vocab: Mapping[str, int], where: str) -> dict[int, str]:
    """Returns {id: token}. Raises ValueError, naming `where`, for ids that are none, or that two tokens have."""
    for token, index in vocab.items():
        if type(index) is not int or not 0 <= index < MOST_TOKENS:
            raise ValueError(
                f"{where}: token {token!r:.80}: expected an id from 0 to below {MOST_TOKENS:,}, got {str(index)[:60]}"
            )
    tokens = {index: token for token, index in vocab.items()}
    if len(tokens) < len(vocab):
        token, other = next((token, tokens[index]) for token, index in vocab.items() if tokens[index] != token)
        raise ValueError(
            f"{where}: expected an id for each token, got {vocab[token]} for both {token!r:.80} and {other!r:.80}"
        )
    return tokens
