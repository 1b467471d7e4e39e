"""Text from tokens, in TensorFlow ops: pieces are joined as the tokenizer has cut them.

A WordPiece with ## joins the word before it; a piece of byte-level BPE is its bytes; `▁` of a unigram model is a space.
"""

import functools

import numpy as np
import tensorflow as tf

from official_bert.text.tokenizer import CLEAN_UPS, Tokenizer

SPACE = r"\s+$"


@functools.lru_cache(maxsize=4)  # of a whole vocabulary: each answer asks for it
def piece_texts(tokenizer: Tokenizer) -> list[bytes]:
    """Returns `Tokenizer.piece_text` of each id."""
    return [tokenizer.piece_text(index) for index in range(tokenizer.size)]


class Pieces(tf.Module):
    """The texts of a vocabulary in a graph."""

    def __init__(self, tokenizer: Tokenizer):
        super().__init__()
        self.is_wordpiece = tokenizer.kind not in ("byte_bpe", "unigram")
        self.takes_space = self.is_wordpiece or any(
            token.content == tokenizer.special["[MASK]"] and token.lstrip for token in getattr(tokenizer, "added", ())
        )
        with tf.init_scope():
            self.texts = tf.constant(np.array(piece_texts(tokenizer), object))

    def join(self, ids: tf.RaggedTensor) -> tf.Tensor:
        """Returns the text [B] of ragged ids [B,(T)]."""
        joined = tf.strings.reduce_join(tf.ragged.map_flat_values(tf.gather, self.texts, ids), axis=1)
        text = tf.strings.regex_replace(valid(joined), "^ ", "")
        for spaced, closed in CLEAN_UPS if self.is_wordpiece else ():
            text = tf.strings.regex_replace(text, spaced.replace(".", r"\.").replace("?", r"\?"), closed)
        return text

    def insert(self, text: tf.Tensor, blank: str, words: tf.Tensor, counts: tf.Tensor) -> tf.Tensor:
        """Returns texts [B] with their first `counts` [B] blanks replaced by words [B,M]; the text's own spaces stay.

        A piece that begins no word joins the word before it: then the space between them goes.
        """
        parts = tf.strings.split(text, blank)  # [B,(M+1)]
        row, splits = (tf.cast(numbers, tf.int32) for numbers in (parts.value_rowids(), parts.row_splits))
        number = tf.range(tf.size(parts.values)) - tf.gather(splits, row) - 1  # of the blank before a part
        count, most = tf.gather(counts, row), tf.shape(words)[1]
        is_filled = (number >= 0) & (number < count)
        where = tf.stack([row, tf.clip_by_value(number, 0, tf.maximum(most - 1, 0))], axis=1)
        padded = tf.pad(words, [[0, 0], [0, tf.cast(tf.equal(most, 0), tf.int32)]])
        piece = tf.where(is_filled, tf.gather(self.texts, tf.gather_nd(padded, where)), tf.where(number < 0, "", blank))
        before = tf.concat([[""], parts.values[:-1]], axis=0)  # the part before each blank
        begins = tf.strings.regex_full_match(piece, "(?s) .*") | ~is_filled
        spaced = tf.strings.regex_full_match(before, r"(?s).*\s")
        # A space of the text stands for the piece's own. WordPiece does not know whether there was one.
        alone = tf.equal(before, "")
        keeps_own = tf.where(alone, number > 0, ~spaced & (not self.is_wordpiece))
        piece = tf.where(begins & is_filled & ~keeps_own, tf.strings.regex_replace(piece, "^ ", ""), piece)
        joins = tf.concat([(is_filled & ~begins & self.takes_space)[1:], [False]], axis=0)
        kept = tf.where(joins, tf.strings.regex_replace(parts.values, SPACE, ""), parts.values)
        joined = tf.strings.reduce_join(
            tf.RaggedTensor.from_row_splits(tf.strings.join([piece, kept]), splits, validate=False), axis=1
        )
        return valid(joined)


def valid(text: tf.Tensor) -> tf.Tensor:
    """Returns strings with invalid UTF-8 replaced by U+FFFD, because byte-level BPE pieces may end within a
    character.
    """
    return tf.strings.unicode_transcode(text, "UTF-8", "UTF-8", errors="replace")
