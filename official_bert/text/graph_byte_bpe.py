"""Byte-level BPE in TensorFlow's own ops (NFC in tensorflow-text's): splits words by character class, then merges
symbols.

`text/subwords/byte_bpe` explains why pairs may be merged out of turn. N characters, M bytes or symbols.
"""

import copy
import dataclasses
import itertools
import unicodedata
from typing import NamedTuple

import numpy as np
import tensorflow as tf
import tensorflow_text
from tensorflow import Tensor

from official_bert.text.graph_base import CODES, CharacterTable, begins_row
from official_bert.text.graph_subwords import GraphSubwords, Tokens
from official_bert.text.subwords import byte_bpe
from official_bert.text.subwords.byte_bpe import NEVER, SPACE
from official_bert.text.subwords.host import LibraryTokenizer

CONTRACTIONS = ("s", "t", "re", "ve", "m", "ll", "d")  # behind an apostrophe: words of their own
WALL = -1  # its three ranks are NEVER


class _Symbols(NamedTuple):
    """Symbols of words, in order; each [M] int32."""

    ids: Tensor
    words: Tensor
    places: Tensor  # the first byte


class GraphByteBpe(GraphSubwords):
    """`LibraryTokenizer` of byte-level BPE as a graph; its cost is linear in a word's length except for contrived
    words.
    """

    def __init__(self, host: LibraryTokenizer):
        super().__init__(host)
        model = host.settings["model"]
        tables = byte_bpe.merges(model["vocab"], model["merges"], host.vocab_file)
        self.prefix = bool(host.settings["pre_tokenizer"].get("add_prefix_space", True))
        self._kinds_of = CharacterTable(byte_bpe.character_classes())
        with tf.init_scope():
            self._bytes, self._products = tf.constant(tables.bytes), tf.constant(tables.products)
            self._pairs = tf.lookup.StaticHashTable(
                tf.lookup.KeyValueTensorInitializer(tables.keys, tables.values), WALL
            )
        self.resources = [self._pairs]
        self._inner: GraphByteBpe | None = None  # for texts in NFC between added tokens; it looks for the other ones
        self._composes = host.composes
        later = [token for token in self.added if token.normalized]
        if host.composes:
            later = [dataclasses.replace(token, content=unicodedata.normalize("NFC", token.content)) for token in later]
            joins = np.zeros(CODES, np.bool_)
            joins[[code for code in itertools.chain(*byte_bpe.CHARACTERS) if byte_bpe.may_compose(chr(code))]] = True
            self._joins = CharacterTable(joins)
        if host.composes or later:
            self._inner = copy.copy(self)
            self._inner._look_for(later)
            self._look_for([token for token in self.added if not token.normalized])

    def _pieces(self, text: Tensor) -> Tokens:
        if self._inner is None:
            return self._words(text)
        return self._composed(text, self._inner) if self._composes else self._inner._tokens(text)

    def _composed(self, text: Tensor, inner: "GraphByteBpe") -> Tokens:
        """Cuts texts in NFC, see `byte_bpe.composed`."""
        composed = tensorflow_text.normalize_utf8(text, "NFC")
        tokens = inner._tokens(composed)
        (parts, rows, count), (old_parts, old_rows, old_count) = self._parts_of(composed), self._parts_of(text)
        place = tf.range(count)
        part = tf.searchsorted(parts, place, side="right") - 1
        old = tf.minimum(
            tf.gather(old_parts, part) + place - tf.gather(parts, part),
            tf.gather(tf.concat([old_parts[1:], [old_count]], 0), part),
        )  # [N]
        old = tf.concat([old, [old_count]], 0)
        row = tf.repeat(tf.range(tf.size(text)), tokens.row_splits[1:] - tokens.row_splits[:-1])
        starts, ends = (
            tf.gather(old, places + tf.gather(rows, row)) - tf.gather(old_rows, row)
            for places in (tokens.starts, tokens.ends)
        )
        return tokens._replace(starts=starts, ends=ends)

    def _parts_of(self, text: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Returns the first characters of the parts of texts, and of the texts, among all N; and N."""
        decoded = tf.strings.unicode_decode(text, "UTF-8")
        rows, count = tf.cast(decoded.row_splits, tf.int32), tf.size(decoded.values)
        begins_part = begins_row(rows, count)[:count] | ~self._joins(decoded.values)
        return tf.cast(tf.where(begins_part)[:, 0], tf.int32), rows, count

    def _words(self, text: Tensor) -> Tokens:
        """Cuts texts into words, and these into pieces."""
        if self.prefix:
            added = ~(tf.strings.regex_full_match(text, "(?s) .*") | tf.equal(text, ""))
            text = tf.where(added, tf.strings.join([" ", text]), text)
        decoded = tf.strings.unicode_decode(text, "UTF-8")
        codes, row_starts = decoded.values, tf.cast(decoded.row_splits, tf.int32)
        sizes = (
            1
            + tf.cast(codes >= 0x80, tf.int32)
            + tf.cast(codes >= 0x800, tf.int32)
            + tf.cast(codes >= 0x10000, tf.int32)
        )
        begins = self._begins_word(codes, row_starts)
        letters = tf.io.decode_raw(tf.strings.reduce_join(text), tf.uint8)
        byte_starts = tf.concat([[0], tf.cumsum(sizes)], 0)
        symbols = self._join(
            _Symbols(
                tf.gather(self._bytes, tf.cast(letters, tf.int32)),
                tf.repeat(tf.cumsum(tf.cast(begins, tf.int32)), sizes),
                tf.range(tf.size(letters)),
            )
        )
        char = tf.repeat(tf.range(tf.size(codes)), sizes)  # of each byte
        row_splits = tf.searchsorted(symbols.places, tf.gather(byte_starts, row_starts), out_type=tf.int64)
        lengths = row_splits[1:] - row_splits[:-1]
        next_place = tf.concat([symbols.places[1:], [tf.size(letters)]], 0)[: tf.size(symbols.places)]
        shift = tf.repeat(row_starts[:-1] + (tf.cast(added, tf.int32) if self.prefix else 0), lengths)
        starts = tf.maximum(tf.gather(char, symbols.places) - shift, 0)
        ends = tf.maximum(tf.gather(char, next_place - 1) + 1 - shift, 0)
        return Tokens(symbols.ids, starts, ends, row_splits)

    def _begins_word(self, codes: Tensor, row_starts: Tensor) -> Tensor:
        """Returns which characters [N] begin a word of GPT-2's pattern:
        `'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+`.
        """
        count = tf.size(codes)
        kinds = self._kinds_of(codes)
        first = begins_row(row_starts, count)
        last, first = first[1:], first[:-1]
        before = tf.concat([[SPACE], kinds[:-1]], 0)[:count]
        plain = tf.equal(codes, ord(" "))
        after_plain = tf.concat([[False], plain[:-1]], 0)[:count] & ~first
        space = tf.equal(kinds, SPACE)
        changes = first | tf.not_equal(kinds, before)
        # A space joins the word behind it; of several, the others are a word. Other white space before a word stands
        # alone.
        to_word = ~last & tf.not_equal(tf.concat([kinds[1:], [SPACE]], 0)[:count], SPACE)
        begins = tf.where(space, changes | to_word, changes & ~after_plain)
        apostrophe = tf.equal(codes, ord("'")) & (first | (tf.not_equal(before, byte_bpe.OTHER) & ~after_plain))
        return tf.cond(
            tf.reduce_any(apostrophe), lambda: _with_contractions(begins, codes, apostrophe, last), lambda: begins
        )

    def _join(self, symbols: _Symbols) -> _Symbols:
        """Joins pairs of symbols until none remains. Words in which a round joins nothing are done, and set aside."""
        unknown = tf.TensorShape([None])
        # [M] the symbol that begins at each byte
        finished = tf.fill([tf.size(symbols.places)], -1)
        *_, finished = tf.while_loop(
            lambda ids, *_: tf.size(ids) > 0,
            self._round,
            (*symbols, finished),
            shape_invariants=(unknown, unknown, unknown, unknown),
        )
        places = tf.cast(tf.where(finished >= 0)[:, 0], tf.int32)
        return _Symbols(tf.gather(finished, places), tf.zeros_like(places), places)

    def _round(self, ids: Tensor, words: Tensor, places: Tensor, finished: Tensor) -> tuple[Tensor, ...]:
        """Joins every pair that is certain, and the lowest pair of each word; moves words without one to `finished`."""
        within = tf.equal(words[1:], words[:-1])
        pairs = tf.cast(ids, tf.int64)
        packed = self._pairs.lookup(tf.where(within, pairs[:-1] * 2**32 + pairs[1:], -1))
        rank, left, right = (
            tf.cast(
                tf.bitwise.bitwise_and(tf.bitwise.right_shift(packed, tf.constant(shift, tf.int64)), NEVER), tf.int32
            )
            for shift in (40, 20, 0)
        )
        # A wall ends a word, as the end of the word in the text does.
        words = tf.concat([[0], tf.cumsum(tf.cast(packed < 0, tf.int32))], 0)
        lowest = tf.math.unsorted_segment_min(rank, words[:-1], words[-1] + 1)
        is_lowest = tf.equal(rank, tf.gather(lowest, words[:-1]))
        none = tf.constant([NEVER])
        free_left = is_lowest | (rank < tf.concat([none, left[:-1]], 0)[: tf.size(rank)])
        free_right = is_lowest | (rank <= tf.concat([right[1:], none], 0)[: tf.size(rank)])
        # Of equal pairs in a row (aaaa), BPE joins the first, the third, ...
        place = tf.range(tf.size(rank))
        begins = tf.not_equal(rank, tf.concat([[-1], rank[:-1]], 0)[: tf.size(rank)])
        run = tf.gather(tf.boolean_mask(place, begins), tf.cumsum(tf.cast(begins, tf.int32)) - 1)
        join = (rank < NEVER) & free_right & tf.gather(free_left, run) & tf.equal((place - run) % 2, 0)
        padded = tf.concat([join, [False]], 0)[: tf.size(ids)]
        ids = tf.where(
            padded, tf.gather(self._products, tf.where(padded, tf.concat([rank, [0]], 0)[: tf.size(ids)], 0)), ids
        )
        remains = tf.concat([[True], ~join], 0)[: tf.size(ids)]
        open_ = tf.gather(lowest < NEVER, words)
        done_places, open_places = (tf.where(remains & part)[:, 0] for part in (~open_, open_))
        finished = tf.tensor_scatter_nd_update(
            finished, tf.gather(places, done_places)[:, None], tf.gather(ids, done_places)
        )
        return tf.gather(ids, open_places), tf.gather(words, open_places), tf.gather(places, open_places), finished


def _with_contractions(begins: Tensor, codes: Tensor, apostrophe: Tensor, last: Tensor) -> Tensor:
    """Makes contractions words of their own; `apostrophe` [N] are the places where one may begin."""
    place = tf.cast(tf.where(apostrophe)[:, 0], tf.int32)
    count = tf.size(codes)

    def at(values: Tensor, shift: int, filler: bool | int) -> Tensor:
        return tf.gather(tf.concat([values, tf.fill([3], filler)], 0), place + shift)

    size = tf.zeros_like(place)
    for letters in CONTRACTIONS:
        fits = ~at(last, 0, True)
        for number, letter in enumerate(letters):
            fits &= tf.equal(at(codes, number + 1, -1), ord(letter))
            if number:
                fits &= ~at(last, number, True)
        size = tf.where(fits, len(letters) + 1, size)
    place, size = tf.boolean_mask(place, size > 0), tf.boolean_mask(size, size > 0)
    inside = tf.concat([place + 1, tf.boolean_mask(place + 2, size > 2)], 0)
    begins = tf.tensor_scatter_nd_update(
        tf.concat([begins, [False]], 0), inside[:, None], tf.zeros_like(inside, tf.bool)
    )
    edges = tf.concat([place, place + size], 0)
    return tf.tensor_scatter_nd_update(begins, edges[:, None], tf.ones_like(edges, tf.bool))[:count]
