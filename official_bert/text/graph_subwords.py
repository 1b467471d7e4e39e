"""The base of tokenizers of pieces in TensorFlow: added tokens are found first, then each part between them is cut into
pieces.

B texts, P parts (added tokens, and the text between them), N characters, T tokens.
"""

import abc
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import tensorflow as tf
from tensorflow import Tensor

from official_bert.limits import MOST_ADDED, require_at_most
from official_bert.text import graph_characters
from official_bert.text.graph_base import CODES, CharacterTable, HostFacts, traced_once
from official_bert.text.subwords.definition import WHITE_SPACE, AddedToken, is_letter
from official_bert.text.subwords.host import SPACES, SubwordTokenizer


class Tokens(NamedTuple):
    """The tokens of texts, flat; `starts` and `ends` are characters of their text, spaces at ends still included."""

    ids: Tensor  # [T] int32
    starts: Tensor  # [T] int32
    ends: Tensor  # [T] int32
    row_splits: Tensor  # [B+1] int64


class Parts(NamedTuple):
    """Parts of texts."""

    strings: Tensor  # of those that are text
    tokens: Tensor  # [P] int32, the id of an added token, -1 for text
    starts: Tensor  # [P] int32, first character in the text
    ends: Tensor  # [P] int32
    row_splits: Tensor  # [B+1] int64


class GraphSubwords(HostFacts, abc.ABC):
    """A `SubwordTokenizer` as a graph: strings `[B]` to ragged ids `[B, (T)]`, with or without offsets.

    Text is UTF-8; invalid bytes count as one U+FFFD each.
    """

    def __init__(self, host: SubwordTokenizer):
        super().__init__(host)
        letters_of_added = sum(len(token.content) for token in host.added)  # each is an operation of the graph
        require_at_most(MOST_ADDED, letters_of_added, "characters of added tokens", host.vocab_file)
        self._look_for([token for token in host.added if token.content])
        trims = {"byte_bpe": " ", "wordpiece": ""}.get(host.kind, SPACES)
        self._is_space, self._is_trimmed = (
            CharacterTable(np.isin(np.arange(CODES), [ord(char) for char in few])) for few in (WHITE_SPACE, trims)
        )
        alone = any(token.single_word for token in self.added)
        letters = [is_letter(chr(code)) for code in range(CODES)] if alone else [False] * CODES
        self._is_letter = CharacterTable(np.array(letters))
        kinds = np.zeros((2, host.size), np.bool_)
        for row, chosen in zip(kinds, (host.is_blank, lambda token: token.startswith(host.space))):
            row[[index for token, index in host.vocab.items() if chosen(token)]] = True
        with tf.init_scope():
            self._blank, self._spaced = map(tf.constant, kinds)

    def _look_for(self, tokens: Sequence[AddedToken]) -> None:
        """Sets the added tokens that are searched for."""
        self.added = tokens
        with tf.init_scope():
            self._added_ids = tf.constant([token.id for token in tokens], tf.int32)
            self._is_word, self._takes_before, self._takes_behind = (
                tf.constant([getattr(token, name) for token in tokens], tf.bool)
                for name in ("single_word", "lstrip", "rstrip")
            )

    @traced_once
    def tokenize(self, text: Tensor) -> tf.RaggedTensor:
        """text [B] string -> ids [B, (T)] int32."""
        tokens = self._tokens(_valid(text))
        return tf.RaggedTensor.from_row_splits(tokens.ids, tokens.row_splits, validate=False)

    @traced_once
    def tokenize_with_offsets(self, text: Tensor) -> tuple[tf.RaggedTensor, tf.RaggedTensor, tf.RaggedTensor]:
        """text [B] string -> ids, starts, ends, each [B, (T)] int32; see `Tokenizer.tokenize_with_offsets`."""
        text = _valid(text)
        tokens = self._tokens(text)
        decoded = tf.strings.unicode_decode(text, "UTF-8")
        first = tf.repeat(tf.cast(decoded.row_starts(), tf.int32), tokens.row_splits[1:] - tokens.row_splits[:-1])
        length = tf.repeat(tf.cast(decoded.row_lengths(), tf.int32), tokens.row_splits[1:] - tokens.row_splits[:-1])
        starts, ends = _trimmed(self._is_trimmed(decoded.values), first + tokens.starts, first + tokens.ends)
        starts, ends = starts - first, ends - first
        # A character that becomes several belongs to the piece with its last, and to pieces of some of them alone.
        of_some = tf.equal(tokens.starts, tokens.ends) | tf.gather(self._spaced, tokens.ids)
        of_some &= ~tf.gather(self._blank, tokens.ids)
        ends += tf.cast(tf.equal(starts, ends) & of_some & (starts < length), tf.int32)
        return tuple(
            tf.RaggedTensor.from_row_splits(values, tokens.row_splits, validate=False)
            for values in (tokens.ids, starts, ends)
        )

    def stands_alone(self, codes: Tensor) -> Tensor:
        """Returns whether each character [N] is always a word of its own: punctuation or an ideograph."""
        entries = graph_characters.character_tables(False).entries
        return CharacterTable(entries >> graph_characters.KIND_BITS == graph_characters.ISOLATED)(codes)

    @abc.abstractmethod
    def _pieces(self, text: Tensor) -> Tokens:
        """Cuts texts without added tokens into pieces."""

    def _tokens(self, text: Tensor) -> Tokens:
        """Returns the tokens of texts."""
        if not self.added:
            return self._pieces(text)
        # A regular expression of very many tokens would be slow: then their first letters are searched for.
        first = list[str]()
        for content in sorted(token.content for token in self.added):
            if not first or not content.startswith(first[-1]):  # longer ones hold these
                first.append(content)
        contents = {content if len(first) <= 16 else content[0] for content in first}
        pattern = f"(?s).*(?:{'|'.join(map(_quoted, sorted(contents)))}).*"
        return tf.cond(
            tf.reduce_any(tf.strings.regex_full_match(text, pattern)),
            lambda: self._with_added(text),
            lambda: self._pieces(text),
        )

    def _with_added(self, text: Tensor) -> Tokens:
        parts = self._split(text)
        is_text = parts.tokens < 0
        pieces = self._pieces(parts.strings)
        # Added tokens are rows of one piece among the rows of the other parts.
        lengths = tf.scatter_nd(
            tf.where(is_text), pieces.row_splits[1:] - pieces.row_splits[:-1], tf.shape(parts.tokens, tf.int64)
        ) + tf.cast(~is_text, tf.int64)
        owner = tf.repeat(tf.range(tf.size(lengths)), lengths)
        token_ids = tf.gather(parts.tokens, owner)
        within = tf.gather(parts.starts, owner)
        behind = tf.gather(parts.ends, owner)
        places = tf.where(token_ids < 0)
        ids = tf.tensor_scatter_nd_update(token_ids, places, pieces.ids)
        starts = tf.tensor_scatter_nd_update(within, places, tf.gather_nd(within, places) + pieces.starts)
        ends = tf.tensor_scatter_nd_update(behind, places, tf.gather_nd(within, places) + pieces.ends)
        return Tokens(ids, starts, ends, tf.gather(tf.concat([[0], tf.cumsum(lengths)], 0), parts.row_splits))

    def _split(self, text: Tensor) -> Parts:
        """Splits texts at added tokens, see `AddedTokens`."""
        decoded = tf.strings.unicode_decode(text, "UTF-8")
        codes, row_starts = decoded.values, tf.cast(decoded.row_splits, tf.int32)
        space = self._is_space(codes)
        token, row, first, end = self._found(codes, row_starts, space)  # each [K]
        same_row = tf.concat([[False], tf.equal(row[1:], row[:-1])], 0)[: tf.size(row)]
        last_end = tf.where(same_row, tf.concat([[0], end[:-1]], 0)[: tf.size(row)], tf.gather(row_starts, row))
        first = tf.where(tf.gather(self._takes_before, token), tf.maximum(first, last_end), first)
        is_last = ~tf.concat([same_row[1:], [False]], 0)[: tf.size(row)]
        rest = tf.tensor_scatter_nd_update(
            row_starts[:-1], tf.boolean_mask(row, is_last)[:, None], tf.boolean_mask(end, is_last)
        )
        # Before each token and behind the last stands text, which may be empty.
        trimmed_first, trimmed_end = _trimmed(space, first, end)
        before = tf.stack([row, tf.fill(tf.shape(row), -1), last_end, first], 1)
        ids = tf.where(first < end, tf.gather(self._added_ids, token), -1)  # none if the token before took all of it
        tokens = tf.stack([row, ids, trimmed_first, trimmed_end], 1)
        behind = tf.stack([tf.range(tf.size(rest)), tf.fill(tf.shape(rest), -1), rest, row_starts[1:]], 1)
        parts = tf.concat([tf.reshape(tf.stack([before, tokens], 1), [-1, 4]), behind], 0)  # row, id, first, end
        parts = tf.gather(parts, tf.argsort(parts[:, 0], stable=True))
        parts = tf.boolean_mask(parts, (parts[:, 1] >= 0) | (parts[:, 2] < parts[:, 3]))
        row, tokens, first, end = tf.unstack(parts, num=4, axis=1)
        is_text = tokens < 0
        places = tf.ragged.range(tf.boolean_mask(first, is_text), tf.boolean_mask(end, is_text))
        strings = tf.strings.unicode_encode(places.with_values(tf.gather(codes, places.values)), "UTF-8")
        row_start = tf.gather(row_starts, row)
        return Parts(
            strings,
            tokens,
            first - row_start,
            end - row_start,
            tf.searchsorted(row, tf.range(tf.size(row_starts)), out_type=tf.int64),
        )

    def _found(self, codes: Tensor, row_starts: Tensor, space: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Returns the added tokens in the characters [N] of texts: numbers, texts, starts and ends, [K] int32.

        White space that they take is theirs, even if several take it.
        """
        longest = max(len(token.content) for token in self.added)
        row_end = tf.repeat(row_starts[1:], row_starts[1:] - row_starts[:-1])
        padded = tf.concat([codes, tf.fill([longest], 0)], 0)
        count = tf.size(codes)
        lengths, numbers = (tf.zeros([count], tf.int32) for _ in range(2))
        # Of several that fit, the longest.
        for number, token in sorted(enumerate(self.added), key=lambda pair: len(pair[1].content)):
            size = len(token.content)
            fits = tf.range(count) + size <= row_end
            for place, char in enumerate(token.content):
                fits &= tf.equal(padded[place : place + count], ord(char))
            lengths, numbers = tf.where(fits, size, lengths), tf.where(fits, number, numbers)
        first = tf.cast(tf.where(lengths > 0)[:, 0], tf.int32)
        kept = _from_the_left(first, first + tf.gather(lengths, first))
        first = tf.boolean_mask(first, kept)
        end, number = first + tf.gather(lengths, first), tf.gather(numbers, first)
        row = tf.searchsorted(row_starts, first, side="right") - 1
        row_start, row_end = tf.gather(row_starts, row), tf.gather(row_starts, row + 1)
        # What must be a word and is none is passed over, with the shorter tokens in it.
        letter = tf.concat([self._is_letter(codes), [False]], 0)
        in_word = (first > row_start) & tf.gather(letter, tf.maximum(first - 1, 0))
        in_word |= (end < row_end) & tf.gather(letter, end)
        kept = ~(in_word & tf.gather(self._is_word, number))
        number, row, first, end, row_start, row_end = (
            tf.boolean_mask(part, kept) for part in (number, row, first, end, row_start, row_end)
        )
        # White space runs from the last other character before, to the next behind.
        before, behind = _others_around(space)
        first = tf.where(tf.gather(self._takes_before, number), tf.maximum(tf.gather(before, first), row_start), first)
        end = tf.where(tf.gather(self._takes_behind, number), tf.minimum(tf.gather(behind, end), row_end), end)
        return number, row, first, end


def _valid(text: Tensor) -> Tensor:
    return tf.strings.unicode_transcode(text, "UTF-8", "UTF-8", replace_control_characters=False)


def _quoted(text: str) -> str:
    """Returns a text as a regular expression."""
    return "".join(f"\\x{{{ord(char):x}}}" for char in text)


def running_maximum(values: Tensor) -> Tensor:
    """Returns the running maximum of values [N], each of which is 0 or its index + 1."""
    new = values > 0
    kept = tf.concat([[0], tf.boolean_mask(values, new)], 0)
    return tf.gather(kept, tf.cumsum(tf.cast(new, tf.int32)))


def _others_around(space: Tensor) -> tuple[Tensor, Tensor]:
    """Returns, for each place [N+1] among characters of which some are `space` [N], where the last other one before it
    ends, and where the next one begins.
    """
    count, place = tf.size(space), tf.range(tf.size(space))
    ends = running_maximum(tf.where(space, 0, place + 1))
    starts = count - tf.reverse(running_maximum(tf.reverse(tf.where(space, 0, count - place), [0])), [0])
    return tf.concat([[0], ends], 0), tf.concat([starts, [count]], 0)


def _trimmed(space: Tensor, starts: Tensor, ends: Tensor) -> tuple[Tensor, Tensor]:
    """Returns spans without the spaces at their ends; a span of spaces alone is empty, at its end."""
    before, behind = _others_around(space)
    first = tf.minimum(tf.gather(behind, starts), ends)
    return first, tf.maximum(tf.gather(before, ends), first)


def _from_the_left(first: Tensor, end: Tensor) -> Tensor:
    """Returns which of the spans [K], in order of their starts, are kept if each drops those that begin inside it."""

    def scan() -> Tensor:
        def step(place: Tensor, last: Tensor, decisions: tf.TensorArray) -> tuple[Tensor, Tensor, tf.TensorArray]:
            keep = first[place] >= last
            return place + 1, tf.where(keep, end[place], last), decisions.write(place, keep)

        decisions = tf.TensorArray(tf.bool, tf.size(first))
        return tf.while_loop(lambda place, *_: place < tf.size(first), step, (0, 0, decisions))[2].stack()

    return tf.cond(tf.reduce_any(first[1:] < end[:-1]), scan, lambda: tf.ones_like(first, tf.bool))
