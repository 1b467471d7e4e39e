"""The tokenizer of 2018 in TensorFlow's own ops, for SavedModels: equal to `text/tokenization`, against which it is
tested.

Texts of printable ASCII are split by TensorFlow's string ops. Other texts become flat vectors of code points: each
character is looked up in the tables of `text/graph_characters`, and the words become strings again. The rare cases
(capital sigmas, characters that become several) run under a `tf.cond`. `text/graph_wordpiece` cuts the words.

N characters of the whole batch, I items: the characters after normalisation.
"""

from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np
import tensorflow as tf
from tensorflow import Tensor

from official_bert.text import graph_characters as characters
from official_bert.text.graph_base import CharacterTable, HostFacts, begins_row, traced_once
from official_bert.text.graph_wordpiece import WordPieces
from official_bert.text.tokenization import UNKNOWN, FullTokenizer

ASCII_TEXT = r"[ -~\t\n\r]*"  # without controls
ASCII_PUNCTUATION = r"[!-/:-@\[-`{-~]"


class _Items(NamedTuple):
    """Normalised characters, flat over the batch, each [I] but the last."""

    codes: Tensor
    kinds: Tensor
    sources: Tensor  # the character that the item comes from
    ends: Tensor  # the first character after the item's own
    row_splits: Tensor  # [B+1] first item of each text


class _Words(NamedTuple):
    """The words of a batch, flat, and their items."""

    strings: Tensor  # [W]
    item_splits: Tensor  # [W+1] first item of each word
    sources: Tensor  # [I], as are the ends; see _Items
    ends: Tensor
    row_splits: Tensor  # [B+1] first word of each text
    text_starts: Tensor  # [B+1] first character of each text


class GraphTokenizer(HostFacts):
    """`FullTokenizer` as a graph: strings `[B]` to ragged ids `[B, (T)]`, with or without offsets.

    Text is UTF-8; invalid bytes count as U+FFFD, which cleaning deletes. Raises ValueError as `load_vocab` does.
    """

    def __init__(self, vocab_file: str, do_lower_case: bool = True, vocab: Mapping[str, int] | None = None):
        super().__init__(FullTokenizer(vocab_file, do_lower_case, vocab))
        tables = characters.character_tables(do_lower_case)
        self._entries_of = CharacterTable(tables.entries)
        with tf.init_scope():
            self._expansions = tf.constant(tables.expansions)
            self._expansion_splits = tf.constant(tables.expansion_splits)
            # One more entry, so that a code above them all finds an entry that is not its own.
            self._combining = tf.constant(np.append(tables.combining, 0x110000).astype(np.int32))
            self._combining_class = tf.constant(np.append(tables.combining_class, 0).astype(np.int32))
            self._piece_lengths = tf.constant([len(token.removeprefix("##")) for token in self.vocab])
        self._pieces = WordPieces(self.vocab)
        self.resources = self._pieces.tables

    def stands_alone(self, codes: Tensor) -> Tensor:
        """Returns whether each character [N] is always a word of its own: punctuation or an ideograph."""
        return tf.equal(_kind(self._entries_of(codes)), characters.ISOLATED)

    def words(self, text: Tensor) -> tf.RaggedTensor:
        """text [B] string -> the words of `BasicTokenizer` [B, (W)]."""
        words = self._split(text)
        return tf.RaggedTensor.from_row_splits(words.strings, words.row_splits, validate=False)

    @traced_once
    def tokenize(self, text: Tensor) -> tf.RaggedTensor:
        """text [B] string -> ids [B, (T)] int32."""
        return self._row_by_row(text, self._ids)

    @traced_once
    def tokenize_with_offsets(self, text: Tensor) -> tuple[tf.RaggedTensor, tf.RaggedTensor, tf.RaggedTensor]:
        """text [B] string -> ids, starts, ends, each [B, (T)] int32; see `FullTokenizer.tokenize_with_offsets`."""
        rows = self._row_by_row(text, self._ids_and_spans)
        ids, starts, ends = (rows.with_values(column) for column in tf.unstack(rows.values, num=3, axis=1))
        return ids, starts, ends

    def _row_by_row(self, text: Tensor, of_words: Callable[[_Words], tf.RaggedTensor]) -> tf.RaggedTensor:
        """Ragged rows of text [B] from words: those of plain ASCII are split in one way, other texts in the other."""
        plain = tf.strings.regex_full_match(text, ASCII_TEXT)

        def parts_of(rows: tf.RaggedTensor) -> tuple[Tensor, Tensor]:
            return rows.values, rows.row_splits

        # The branch that is not taken costs each of its ops, if it is not a function of its own.
        @tf.function(autograph=False, experimental_attributes={"_noinline": True})
        def mixed() -> tuple[Tensor, Tensor]:
            rows = tf.concat(
                [
                    of_words(self._split_ascii(tf.boolean_mask(text, plain))),
                    of_words(self._split(tf.boolean_mask(text, ~plain))),
                ],
                0,
            )
            earlier = tf.cumsum(tf.cast(plain, tf.int32), exclusive=True)
            count = tf.math.count_nonzero(plain, dtype=tf.int32)
            return parts_of(tf.gather(rows, tf.where(plain, earlier, count + tf.range(tf.size(text)) - earlier)))

        values, row_splits = tf.cond(tf.reduce_all(plain), lambda: parts_of(of_words(self._split_ascii(text))), mixed)
        return tf.RaggedTensor.from_row_splits(values, row_splits, validate=False)

    def _ids(self, words: _Words) -> tf.RaggedTensor:
        """The ids of A texts [A, (T)]."""
        ids, splits = self._pieces(words.strings)
        return _rows_of(ids, splits, words.row_splits)

    def _ids_and_spans(self, words: _Words) -> tf.RaggedTensor:
        """The ids, starts and ends of A texts [A, (T), 3]."""
        pieces, splits = self._pieces(words.strings)
        # The pieces tile the items, so their lengths give their places. An unknown word is a single piece.
        lengths = tf.gather(self._piece_lengths, pieces)
        unknown = tf.where(tf.equal(pieces, self.vocab[UNKNOWN]))
        word = tf.searchsorted(splits, tf.cast(unknown[:, 0], tf.int32), side="right") - 1
        word_lengths = tf.gather(words.item_splits[1:] - words.item_splits[:-1], word)
        end = tf.cumsum(tf.tensor_scatter_nd_update(lengths, unknown, word_lengths))
        starts, ends = _spans(words, tf.concat([[0], end[:-1]], 0)[: tf.size(end)], end)
        ids = _rows_of(pieces, splits, words.row_splits)
        text_start = tf.gather(words.text_starts, ids.value_rowids())
        return ids.with_values(tf.stack([ids.values, starts - text_start, ends - text_start], 1))

    def _split_ascii(self, text: Tensor) -> _Words:
        """Splits texts [A] of printable ASCII, whose bytes are characters, into lower-cased words."""
        text = tf.strings.lower(text) if self.do_lower_case else text
        # As `tf.strings.split`, in fewer ops: a short text takes as long as the ops are many.
        spaced = tf.strings.regex_replace(text, ASCII_PUNCTUATION, r" \0 ")
        rows, words, _ = tf.raw_ops.StringSplitV2(input=spaced, sep="")
        row_splits = tf.searchsorted(rows[:, 0], tf.range(tf.size(text, tf.int64) + 1))
        codes = tf.cast(tf.io.decode_raw(tf.strings.reduce_join(text), tf.uint8), tf.int32)
        sources = tf.cast(tf.where(codes > ord(" "))[:, 0], tf.int32)
        return _Words(
            words, _splits(tf.strings.length(words)), sources, sources + 1, row_splits, _splits(tf.strings.length(text))
        )

    def _split(self, text: Tensor) -> _Words:
        """Splits text [B] into normalised words."""
        decoded = tf.strings.unicode_decode(text, "UTF-8")
        text_starts = tf.cast(decoded.row_splits, tf.int32)
        items = self._normalise(decoded.flat_values, text_starts)
        # A word begins at an isolated character, after one, after a space, and at the start of a text.
        isolated = tf.equal(items.kinds, characters.ISOLATED)
        behind = tf.concat([[True], tf.not_equal(items.kinds, characters.LETTER)], 0)
        behind |= begins_row(items.row_splits, tf.size(items.codes))
        places = tf.cast(tf.where(tf.not_equal(items.kinds, characters.SPACE))[:, 0], tf.int32)
        begins = tf.cast(tf.where(tf.gather(isolated | behind[:-1], places))[:, 0], tf.int32)
        codes, splits = tf.gather(items.codes, places), tf.concat([begins, [tf.size(places)]], 0)
        strings = tf.strings.unicode_encode(tf.RaggedTensor.from_row_splits(codes, splits, validate=False), "UTF-8")
        return _Words(
            strings,
            splits,
            tf.gather(items.sources, places),
            tf.gather(items.ends, places),
            tf.searchsorted(tf.gather(places, begins), items.row_splits),
            text_starts,
        )

    def _normalise(self, codes: Tensor, row_splits: Tensor) -> _Items:
        """codes [N] -> their items."""
        entries = self._entries_of(codes)
        kinds = _kind(entries)
        sources = tf.range(tf.size(codes))
        items = _Items(
            tf.bitwise.bitwise_and(codes + entries, characters.CODE_MASK), kinds, sources, sources + 1, row_splits
        )
        return _when(kinds > characters.SPACE, lambda items: self._treat_rare(entries, items), items)

    def _treat_rare(self, entries: Tensor, items: _Items) -> _Items:
        """Treats characters of the rarer kinds, in the order of 2018's steps; leaves only letters and breaks."""
        if self.do_lower_case:
            items = _when(
                tf.equal(items.kinds, characters.SIGMA), lambda items: _with_final_sigmas(entries, items), items
            )
            items = _when(tf.equal(items.kinds, characters.SEVERAL), lambda items: self._expand(entries, items), items)
            items = _when(tf.equal(items.kinds, characters.MARK), self._in_canonical_order, items)
        return _without_deleted(items)

    def _expand(self, entries: Tensor, items: _Items) -> _Items:
        """Replaces characters that become several by their items; `entries` [N] are the table's."""
        several = tf.equal(items.kinds, characters.SEVERAL)
        rows = tf.where(several, tf.bitwise.bitwise_and(entries, characters.CODE_MASK), 0)
        firsts = tf.gather(self._expansion_splits, rows)
        counts = tf.where(several, tf.gather(self._expansion_splits, rows + 1) - firsts, 1)
        before = tf.concat([[0], tf.cumsum(counts)], 0)
        sources = tf.repeat(items.sources, counts)
        within = tf.range(tf.size(sources)) - tf.gather(before, sources)
        several = tf.gather(several, sources)
        parts = tf.gather(self._expansions, tf.where(several, tf.gather(firsts, sources) + within, 0))
        part_codes = tf.bitwise.bitwise_and(parts, characters.CODE_MASK)
        return _Items(
            tf.where(several, part_codes, tf.gather(items.codes, sources)),
            tf.where(several, _kind(parts), tf.gather(items.kinds, sources)),
            sources,
            sources + 1,
            tf.gather(before, items.row_splits),
        )

    def _in_canonical_order(self, items: _Items) -> _Items:
        """Sorts each run of combining characters by class, as NFD does (Unicode 3.11, D109)."""
        place = tf.searchsorted(self._combining, items.codes)
        is_combining = tf.equal(tf.gather(self._combining, place), items.codes)
        classes = tf.where(is_combining, tf.gather(self._combining_class, place), 0)
        # Controls are deleted before decomposition, so they do not end a run.
        first = begins_row(items.row_splits, tf.size(items.codes))[:-1]
        starts = tf.equal(classes, 0) & tf.not_equal(items.kinds, characters.CONTROL) | first
        run = tf.cumsum(tf.cast(starts, tf.int64))
        order = tf.argsort(run * 256 + tf.cast(classes, tf.int64), stable=True)
        items = items._replace(
            **{name: tf.gather(getattr(items, name), order) for name in ("codes", "kinds", "sources", "ends")}
        )
        return items._replace(kinds=tf.where(tf.equal(items.kinds, characters.MARK), characters.LETTER, items.kinds))


def _when(marked: Tensor, change: Callable[[_Items], _Items], items: _Items) -> _Items:
    """Returns `change(items)` if anything in the batch is `marked`, else `items`."""
    return tf.cond(tf.reduce_any(marked), lambda: change(items), lambda: items)


def _kind(entries: Tensor) -> Tensor:
    return tf.bitwise.right_shift(entries, characters.KIND_BITS)


def _rows_of(values: Tensor, word_splits: Tensor, row_splits: Tensor) -> tf.RaggedTensor:
    """Groups the values of pieces, which are split by word, into rows of text."""
    return tf.RaggedTensor.from_row_splits(
        values, tf.cast(tf.gather(word_splits, row_splits), tf.int64), validate=False
    )


def _splits(lengths: Tensor) -> Tensor:
    """Returns where each of some parts begins, and where the last one ends."""
    return tf.concat([[0], tf.cumsum(lengths)], 0)


def _with_final_sigmas(entries: Tensor, items: _Items) -> _Items:
    """Makes each capital sigma final if a cased letter stands before it and none after it (`str.lower`)."""
    skipped = tf.not_equal(tf.bitwise.bitwise_and(entries, characters.IGNORABLE), 0) | tf.equal(
        items.kinds, characters.CONTROL
    )
    seen = tf.cast(tf.where(~skipped)[:, 0], tf.int32)
    cased = tf.not_equal(tf.bitwise.bitwise_and(tf.gather(entries, seen), characters.CASED), 0)
    row = tf.searchsorted(items.row_splits, seen, side="right")
    same_row = tf.equal(row[1:], row[:-1])
    before = tf.concat([[False], cased[:-1] & same_row], 0)
    after = tf.concat([cased[1:] & same_row, [False]], 0)
    sigma = tf.equal(items.kinds, characters.SIGMA)
    places = tf.boolean_mask(seen, tf.gather(sigma, seen) & before & ~after)
    finals = tf.fill(tf.shape(places), ord(characters.FINAL_SIGMA))
    return items._replace(
        codes=tf.tensor_scatter_nd_update(items.codes, places[:, None], finals),
        kinds=tf.where(sigma, characters.LETTER, items.kinds),
    )


def _without_deleted(items: _Items) -> _Items:
    """Drops controls and accents; a letter with an accent then ends after the accent."""
    remaining = tf.cast(tf.where(items.kinds <= characters.SPACE)[:, 0], tf.int32)
    kinds, ends = tf.gather(items.kinds, remaining), tf.gather(items.ends, remaining)
    accents = tf.cast(tf.where(tf.equal(items.kinds, characters.ACCENT))[:, 0], tf.int32)
    row = tf.searchsorted(items.row_splits, accents, side="right") - 1
    owner = tf.searchsorted(remaining, accents) - 1
    accents, row, owner = (tf.boolean_mask(each, owner >= 0) for each in (accents, row, owner))
    carried = (tf.gather(remaining, owner) >= tf.gather(items.row_splits, row)) & tf.equal(
        tf.gather(kinds, owner), characters.LETTER
    )
    carrier, accent = tf.boolean_mask(owner, carried), tf.boolean_mask(accents, carried)
    ends = tf.tensor_scatter_nd_max(ends, carrier[:, None], tf.gather(items.ends, accent))
    return _Items(
        tf.gather(items.codes, remaining),
        kinds,
        tf.gather(items.sources, remaining),
        ends,
        tf.searchsorted(remaining, items.row_splits),
    )


def _spans(words: _Words, first: Tensor, end: Tensor) -> tuple[Tensor, Tensor]:
    """Returns (starts, ends) [T] in the text of the items `first` up to `end` [T] of each piece."""

    def over_all_items() -> tuple[Tensor, Tensor]:
        # Canonical ordering has moved items: the first and the last one are not enough.
        piece = tf.repeat(tf.range(tf.size(first)), end - first)
        within = tf.range(tf.size(piece)) - tf.gather(tf.cumsum(end - first, exclusive=True), piece)
        item = tf.gather(first, piece) + within
        return (
            tf.math.segment_min(tf.gather(words.sources, item), piece),
            tf.math.segment_max(tf.gather(words.ends, item), piece),
        )

    # An accent that is deleted lengthens its letter, past a mark that canonical ordering has put behind it.
    in_order = tf.reduce_all((words.sources[1:] >= words.sources[:-1]) & (words.ends[1:] >= words.ends[:-1]))
    return tf.cond(in_order, lambda: (tf.gather(words.sources, first), tf.gather(words.ends, end - 1)), over_all_items)
