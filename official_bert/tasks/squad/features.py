"""Rows for the span predictor: `[CLS] question [SEP] window of the passage [SEP]` (2018 `convert_examples_to_features`)."""

import dataclasses
from collections.abc import Sequence

import numpy as np

from official_bert.tasks.squad.alignment import LabelCounts, Pieces, answer_label
from official_bert.tasks.squad.reading import Alignment, Passage, SquadExample
from official_bert.text.packing import is_max_context, pack_pair, sliding_windows
from official_bert.text.tokenization import FullTokenizer


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

    @property
    def first_position(self) -> int:
        """The window's first position in the row."""
        return len(self.question) + 2

    @property
    def tokens(self) -> list[str]:
        """The row's tokens."""
        window = self.pieces.tokens[self.window_start:self.window_start + self.window_length]
        return ["[CLS]", *self.question, "[SEP]", *window, "[SEP]"]

    def piece_at(self, position: int) -> int:
        """The passage's piece at a position inside the window."""
        return self.window_start + position - self.first_position

    def word_at(self, position: int) -> int:
        """The passage's word at a position inside the window."""
        return int(self.pieces.word[self.piece_at(position)])


def as_arrays(features: Sequence[SquadFeature]) -> dict[str, np.ndarray]:
    """Makes the arrays of `TextFeatures`, and the answers: `start_positions`, `end_positions` int32 [features]."""
    lengths = [len(feature.input_ids) for feature in features]
    arrays = {"ids": np.concatenate([feature.input_ids for feature in features]), "starts": np.cumsum([0, *lengths]),
              "longer": np.array(0)}
    for name, field in (("first_lengths", "first_position"), ("start_positions", "start_position"),
                        ("end_positions", "end_position")):
        arrays[name] = np.array([getattr(feature, field) for feature in features], np.int32)
    return arrays


class FeatureMaker:
    """Makes features of examples; the lengths are flags of 2018's `run_squad.py`.

    Raises ValueError if a question of the greatest length leaves no room for its passage.
    """

    def __init__(self, tokenizer: FullTokenizer, max_seq_length: int = 384, doc_stride: int = 128, max_query_length: int = 64,
                 answer_alignment: Alignment = 2018):
        if max_query_length < 1 or doc_stride < 1:
            raise ValueError(f"max_query_length, doc_stride: expected at least 1, got {max_query_length}, {doc_stride}")
        if max_seq_length <= max_query_length + 3:
            raise ValueError(f"max_seq_length: expected more than max_query_length + 3 = {max_query_length + 3}, "
                             f"got {max_seq_length}")
        self.tokenizer, self.max_query_length = tokenizer, max_query_length
        self.max_seq_length, self.doc_stride, self.answer_alignment = max_seq_length, doc_stride, answer_alignment
        self.cls_id, self.sep_id = tokenizer.special_id("[CLS]"), tokenizer.special_id("[SEP]")
        self.cut_questions = 0  # longer than max_query_length
        self.labels = LabelCounts()
        self._words: dict[str, list[tuple[str, int, int]]] = {}
        self._passage: tuple[Passage | None, Pieces | None] = (None, None)

    def make(self, examples: Sequence[SquadExample], training: bool = False) -> list[SquadFeature]:
        """Makes the features of every example, in order; with `training`, with the answers' positions.

        A passage without words has one empty window.
        """
        return [feature for index, example in enumerate(examples) for feature in self._of_example(index, example, training)]

    def pieces(self, passage: Passage) -> Pieces:
        """Splits a passage into WordPieces; keeps the last one, because questions about a passage follow each other."""
        if self._passage[0] is not passage or self._passage[1] is None:
            self._passage = (passage, self._split(passage))
        assert self._passage[1] is not None
        return self._passage[1]

    def _split(self, passage: Passage) -> Pieces:
        of_words = []
        for word in passage.words:
            if word not in self._words:
                self._words[word] = self.tokenizer.tokenize_with_offsets(word)
            of_words.append(self._words[word])
        tokens = tuple(token for word in of_words for token, _, _ in word)
        counts = np.array([len(word) for word in of_words], np.int32)
        owners = np.repeat(np.arange(len(counts), dtype=np.int32), counts)
        begins = np.array(passage.word_starts, np.int32)[owners]
        starts, ends = (np.array([piece[side] for word in of_words for piece in word], np.int32) + begins for side in (1, 2))
        return Pieces(tokens, np.array(self.tokenizer.convert_tokens_to_ids(tokens), np.int32), owners,
                      np.concatenate([[0], np.cumsum(counts)]).astype(np.int32), starts, ends)

    def _of_example(self, index: int, example: SquadExample, training: bool) -> list[SquadFeature]:
        pieces, question = self.pieces(example.passage), self.tokenizer.tokenize(example.question)
        if not training or example.is_impossible:
            return self.windows(index, question, pieces, training=training)
        label = answer_label(pieces, example, self.tokenizer, self.answer_alignment)
        features = self.windows(index, question, pieces, (label.first, label.last), training)
        self.labels.add(label, outside=not any(feature.start_position for feature in features))
        return features

    def windows(self, index: int, question: list[str], pieces: Pieces, answer: tuple[int, int] = (0, -1),
                training: bool = False) -> list[SquadFeature]:
        """Makes the features of question `index`, a list of tokens, with every window of a passage; `answer` counts pieces."""
        self.cut_questions += len(question) > self.max_query_length
        question = question[:self.max_query_length]
        question_ids = self.tokenizer.convert_tokens_to_ids(question)
        windows = sliding_windows(len(pieces.tokens), self.max_seq_length - len(question) - 3, self.doc_stride) or [(0, 0)]
        features = []
        for number, (start, length) in enumerate(windows):
            input_ids, _ = pack_pair(question_ids, pieces.ids[start:start + length], self.cls_id, self.sep_id)  # type: ignore[arg-type]
            shift = len(question) + 2 - start
            inside = start <= answer[0] <= answer[1] < start + length
            positions = (answer[0] + shift, answer[1] + shift) if inside else (0, 0)
            features.append(SquadFeature(
                index, number, pieces, tuple(question), np.array(input_ids, np.int32), start, length,
                np.array([], bool) if training else max_context(windows, number), *positions))
        return features


def max_context(windows: Sequence[tuple[int, int]], number: int) -> np.ndarray:
    """bool [length]: the positions that window `number` shows with the most context."""
    start, length = windows[number]
    if len(windows) == 1:
        return np.ones(length, bool)
    return np.array([is_max_context(windows, number, position) for position in range(start, start + length)])
