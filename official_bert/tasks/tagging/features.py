"""Rows for taggers: words in WordPieces, in overlapping windows, and back from rows to words.

The first piece of a word stands for the word (paper 5.3). Texts longer than the model's input are cut into windows;
each word is read from the window that shows its first piece with the most context, so it is in exactly one row's
`words`.
"""

import dataclasses
from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from official_bert.text.packing import is_max_context, sliding_windows
from official_bert.text.tokenizer import Tokenizer


@dataclasses.dataclass(frozen=True)
class TaggingFeature:
    """One row: a window of a text."""

    text: int  # the number of the text
    input_ids: np.ndarray  # int32 [length], with [CLS] and [SEP]
    words: np.ndarray  # int32 [words], numbers of the text's words that are read from this row
    positions: np.ndarray  # int32 [words], positions of their first pieces in the row

    def row(self, tags: np.ndarray, starts: np.ndarray | None = None) -> dict[str, np.ndarray]:
        """Makes the model's features; first pieces get their word's entry of `tags` [words of the text] and `tag_mask`
        1.

        An entry -1 means that the word is not labelled: it gets `tag_mask` 0. `starts` [words of the text], 1 for the
        first word of each sentence, adds `sentence_starts`.
        """
        length = len(self.input_ids)
        mask, row_tags = np.zeros((2, length), np.int32)
        mask[self.positions] = tags[self.words] >= 0
        row_tags[self.positions] = np.maximum(tags[self.words], 0)
        row = {
            "input_ids": self.input_ids,
            "input_mask": np.ones(length, np.int32),
            "segment_ids": np.zeros(length, np.int32),
            "tag_mask": mask,
            "tags": row_tags,
        }
        if starts is not None:
            row["sentence_starts"] = np.zeros(length, np.int32)
            row["sentence_starts"][self.positions] = starts[self.words]
        return row


class TaggingFeatureMaker:
    """Makes rows of texts. Raises ValueError if a window would be empty."""

    def __init__(self, tokenizer: Tokenizer, max_seq_length: int = 128, doc_stride: int = 64):
        if max_seq_length < 3 or doc_stride < 1:
            raise ValueError(
                f"max_seq_length and doc_stride: expected at least 3 and 1, got {max_seq_length} and {doc_stride}"
            )
        self.tokenizer, self.max_seq_length, self.doc_stride = tokenizer, max_seq_length, doc_stride
        self.template = tokenizer.template
        self._ids: dict[str, list[int]] = {}

    def make(self, texts: Sequence[Sequence[str]]) -> list[TaggingFeature]:
        """Makes the rows of every text, a list of words, in order. A word that normalises to nothing is one [UNK]."""
        return [
            feature
            for number, words in enumerate(texts)
            for feature in self.windows(number, [self._word_ids(word) for word in words])
        ]

    def windows(self, number: int, words: Sequence[Sequence[int]]) -> list[TaggingFeature]:
        """Makes the rows of text `number`, given as the ids of each word's pieces."""
        ids = [piece for word in words for piece in word]
        firsts = np.cumsum([0, *(len(word) for word in words)])[:-1]
        windows = sliding_windows(len(ids), self.max_seq_length - 2, self.doc_stride)
        features = []
        for index, (start, length) in enumerate(windows):
            input_ids, _ = self.template.pack(ids[start : start + length])
            inside = np.flatnonzero((firsts >= start) & (firsts < start + length))
            if len(windows) > 1:
                inside = inside[[is_max_context(windows, index, int(firsts[word])) for word in inside]]
            features.append(
                TaggingFeature(
                    number,
                    np.array(input_ids, np.int32),
                    inside.astype(np.int32),
                    (firsts[inside] - start + 1).astype(np.int32),
                )
            )
        return features

    def _word_ids(self, word: str) -> list[int]:
        if word not in self._ids:
            self._ids[word] = self.tokenizer.convert_tokens_to_ids(self.tokenizer.tokenize_word(word)) or [
                self.tokenizer.special_id("[UNK]")
            ]
        return self._ids[word]


def whole_text(number: int, words: int) -> TaggingFeature:
    """Returns the row of text `number` if a model gives a value for each of its words, without pieces."""
    places = np.arange(words, dtype=np.int32)
    return TaggingFeature(number, np.zeros(0, np.int32), places, places)


def gather_words(
    features: Sequence[TaggingFeature], values: Sequence[np.ndarray], lengths: Sequence[int]
) -> list[np.ndarray]:
    """Gathers rows' values [S,...] to each text's values [words,...]; `lengths` are the texts' numbers of words."""
    shape, dtype = values[0].shape[1:], values[0].dtype
    words = [np.zeros((length, *shape), dtype) for length in lengths]
    for feature, row in zip(features, values, strict=True):
        words[feature.text][feature.words] = row[feature.positions]
    return words


def by_text(values: tf.Tensor, lengths: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Pads flat values [W,...], `lengths` [B] of them a text: returns values [B,L,...] and which are real [B,L]; L is
    at least 1.
    """
    rows = tf.RaggedTensor.from_row_lengths(values, lengths, validate=False)
    padded = tf.pad(
        rows.to_tensor(shape=[None, None, *values.shape[1:]]), [[0, 0], [0, 1]] + [[0, 0]] * (len(values.shape) - 1)
    )
    return padded, tf.sequence_mask(lengths, tf.shape(padded)[1])
