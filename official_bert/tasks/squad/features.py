"""Rows for the span predictor: `[CLS] question [SEP] window of the passage [SEP]` (2018
`convert_examples_to_features`).
"""

import dataclasses
from collections.abc import Sequence

import numpy as np

from official_bert.tasks.squad.alignment import LabelCounts, Pieces, answer_label
from official_bert.tasks.squad.reading import Alignment, Passage, SquadExample
from official_bert.text.packing import is_max_context, sliding_windows
from official_bert.text.tokenizer import Tokenizer


@dataclasses.dataclass(frozen=True)
class SquadFeature:
    """One row: a question with a window of its passage. Positions count tokens of the row, [CLS] is 0."""

    example_index: int
    window_index: int
    pieces: Pieces
    question: tuple[str, ...]
    input_ids: np.ndarray  # int32 [length], no padding
    window_start: int  # piece of the passage
    window_length: int
    max_context: np.ndarray  # bool [window_length]: this window shows the piece with the most context
    start_position: int = 0  # 0, [CLS]: no answer in this window
    end_position: int = 0
    separators: int = 1  # between question and passage
    segments: int = 2  # of the row

    @property
    def first_position(self) -> int:
        """The window's first position in the row."""
        return len(self.question) + 1 + self.separators

    @property
    def second_segment(self) -> int:
        """The start of segment 1; the row's end if rows have a single segment."""
        return self.first_position if self.segments > 1 else len(self.input_ids)

    @property
    def tokens(self) -> list[str]:
        """The row's tokens."""
        window = self.pieces.tokens[self.window_start : self.window_start + self.window_length]
        return ["[CLS]", *self.question, *["[SEP]"] * self.separators, *window, "[SEP]"]

    def piece_at(self, position: int) -> int:
        """Returns the passage's piece at a position inside the window."""
        return self.window_start + position - self.first_position

    def word_at(self, position: int) -> int:
        """Returns the passage's word at a position inside the window."""
        return int(self.pieces.word[self.piece_at(position)])


def as_arrays(features: Sequence[SquadFeature]) -> dict[str, np.ndarray]:
    """Returns the arrays of `TextFeatures`, and the answers: `start_positions`, `end_positions` int32 [features]."""
    lengths = [len(feature.input_ids) for feature in features]
    arrays = {
        "ids": np.concatenate([feature.input_ids for feature in features]),
        "starts": np.cumsum([0, *lengths]),
        "longer": np.array(0),
    }
    for name, field in (
        ("first_lengths", "second_segment"),
        ("start_positions", "start_position"),
        ("end_positions", "end_position"),
    ):
        arrays[name] = np.array([getattr(feature, field) for feature in features], np.int32)
    return arrays


class FeatureMaker:
    """Makes features of examples; the lengths are flags of 2018's `run_squad.py`.

    Raises ValueError if a question of the greatest length leaves no room for its passage.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        max_seq_length: int = 384,
        doc_stride: int = 128,
        max_query_length: int = 64,
        answer_alignment: Alignment = 2018,
    ):
        if max_query_length < 1 or doc_stride < 1:
            raise ValueError(f"max_query_length, doc_stride: expected at least 1, got {max_query_length}, {doc_stride}")
        if max_seq_length <= (least := max_query_length + tokenizer.template.extra(True)):
            raise ValueError(
                f"max_seq_length: expected more than max_query_length + {least - max_query_length} = {least}, "
                f"got {max_seq_length}"
            )
        if tokenizer.kind != "wordpiece" and answer_alignment != "characters":
            raise ValueError(
                f"options.answer_alignment: expected characters for the tokenizer {tokenizer.vocab_file}, "
                f"got {answer_alignment}, which is for WordPieces"
            )
        self.tokenizer, self.max_query_length = tokenizer, max_query_length
        self.max_seq_length, self.doc_stride, self.answer_alignment = max_seq_length, doc_stride, answer_alignment
        self.template = tokenizer.template
        self.cut_questions = 0  # longer than max_query_length
        self.labels = LabelCounts()
        self._words: dict[str, list[tuple[str, int, int]]] = {}
        self._passage: tuple[Passage | None, Pieces | None] = (None, None)

    def make(self, examples: Sequence[SquadExample], training: bool = False) -> list[SquadFeature]:
        """Makes the features of every example, in order; with `training`, with the answers' positions.

        A passage without words has one empty window.
        """
        return [
            feature for index, example in enumerate(examples) for feature in self._of_example(index, example, training)
        ]

    def pieces(self, passage: Passage) -> Pieces:
        """Splits a passage into WordPieces; keeps the last one, because questions about a passage follow each other."""
        if self._passage[0] is not passage or self._passage[1] is None:
            self._passage = (passage, self._split(passage))
        assert self._passage[1] is not None
        return self._passage[1]

    def _split(self, passage: Passage) -> Pieces:
        if self.tokenizer.kind != "wordpiece":
            return self._split_whole(passage)
        of_words = []
        for word in passage.words:
            if word not in self._words:
                self._words[word] = self.tokenizer.tokenize_with_offsets(word)
            of_words.append(self._words[word])
        tokens = tuple(token for word in of_words for token, _, _ in word)
        counts = np.array([len(word) for word in of_words], np.int32)
        owners = np.repeat(np.arange(len(counts), dtype=np.int32), counts)
        begins = np.array(passage.word_starts, np.int32)[owners]
        starts, ends = (
            np.array([piece[side] for word in of_words for piece in word], np.int32) + begins for side in (1, 2)
        )
        return Pieces(
            tokens,
            np.array(self.tokenizer.convert_tokens_to_ids(tokens), np.int32),
            owners,
            np.concatenate([[0], np.cumsum(counts)]).astype(np.int32),
            starts,
            ends,
        )

    def _split_whole(self, passage: Passage) -> Pieces:
        """Splits a passage by a tokenizer to which spaces matter; a piece of a space alone belongs to the word behind
        it.
        """
        spans = self.tokenizer.tokenize_with_offsets(passage.context)
        starts, ends = (np.array([span[side] for span in spans], np.int32) for side in (1, 2))
        owners = np.maximum(np.searchsorted(passage.word_starts, starts, side="right") - 1, 0).astype(np.int32)
        tokens = tuple(token for token, _, _ in spans)
        first = np.searchsorted(owners, np.arange(len(passage.words) + 1)).astype(np.int32)
        return Pieces(
            tokens, np.array(self.tokenizer.convert_tokens_to_ids(tokens), np.int32), owners, first, starts, ends
        )

    def _of_example(self, index: int, example: SquadExample, training: bool) -> list[SquadFeature]:
        pieces, question = self.pieces(example.passage), self.tokenizer.tokenize(example.question)
        if not training or example.is_impossible:
            return self.windows(index, question, pieces, training=training)
        label = answer_label(pieces, example, self.tokenizer, self.answer_alignment)
        features = self.windows(index, question, pieces, (label.first, label.last), training)
        self.labels.add(label, outside=not any(feature.start_position for feature in features))
        return features

    def windows(
        self, index: int, question: list[str], pieces: Pieces, answer: tuple[int, int] = (0, -1), training: bool = False
    ) -> list[SquadFeature]:
        """Makes the features of question `index`, a list of tokens, with every window of a passage; `answer` counts
        pieces.
        """
        self.cut_questions += len(question) > self.max_query_length
        question = question[: self.max_query_length]
        question_ids = self.tokenizer.convert_tokens_to_ids(question)
        room = self.max_seq_length - len(question) - self.template.extra(True)
        windows = sliding_windows(len(pieces.tokens), room, self.doc_stride) or [(0, 0)]
        features = []
        for number, (start, length) in enumerate(windows):
            input_ids, _ = self.template.pack(question_ids, pieces.ids[start : start + length].tolist())
            shift = len(question) + 1 + self.template.separators - start
            inside = start <= answer[0] <= answer[1] < start + length
            positions = (answer[0] + shift, answer[1] + shift) if inside else (0, 0)
            features.append(
                SquadFeature(
                    index,
                    number,
                    pieces,
                    tuple(question),
                    np.array(input_ids, np.int32),
                    start,
                    length,
                    np.array([], bool) if training else max_context(windows, number),
                    *positions,
                    self.template.separators,
                    1 + self.template.second_segment,
                )
            )
        return features


def max_context(windows: Sequence[tuple[int, int]], number: int) -> np.ndarray:
    """Returns whether window `number` shows each of its positions with the most context: bool [length]."""
    start, length = windows[number]
    if len(windows) == 1:
        return np.ones(length, bool)
    return np.array([is_max_context(windows, number, position) for position in range(start, start + length)])
