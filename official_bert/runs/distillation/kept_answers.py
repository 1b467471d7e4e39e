"""Offline distillation: a teacher's answers to the rows of a task, computed once, before the first step, and kept."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from official_bert.data.batches.sources import ExampleSource
from official_bert.data.cache import cached
from official_bert.long_work.progress import Reporter
from official_bert.objectives.teacher_targets import SoftAnswers
from official_bert.runs.distillation.teachers import TaskTeacher
from official_bert.tasks import answering

LAYOUT = 1  # of the cached arrays
STAGE = "answers of the teacher"
NamedArrays = Sequence[Mapping[str, np.ndarray]]  # of rows


class KeptAnswers(Sequence):
    """`answers[i]` are the columns of row i, computed with those of all rows at the first access.

    `lengths` are the tokens of each row if columns have a value for each token, else None: their arrays hold all rows
    one after another.
    """

    def __init__(self, compute: Callable[[], Mapping[str, np.ndarray]], rows: int, lengths: np.ndarray | None):
        self.compute, self.rows = compute, rows
        self.starts = None if lengths is None else np.concatenate([[0], np.cumsum(lengths)])
        self._columns: Mapping[str, np.ndarray] = {}

    def __len__(self) -> int:
        return self.rows

    def __getitem__(self, index: int) -> dict[str, np.ndarray]:  # type: ignore[override]
        if not 0 <= index < self.rows:
            raise IndexError(index)
        self._columns = self._columns or self.compute()
        place = index if self.starts is None else (..., slice(self.starts[index], self.starts[index + 1]))
        return {name: values[place] for name, values in self._columns.items()}


def keep_answers(teacher: TaskTeacher, targets: SoftAnswers, source: ExampleSource, cache_dir: str) -> KeptAnswers:
    """Returns the teacher's answers to the rows of a source; `cache_dir` keeps them between runs."""

    def compute() -> Mapping[str, np.ndarray]:
        depends_on = {
            "layout": LAYOUT,
            "teacher": teacher.digest,
            "rows": source.content,
            "outputs": list(targets.outputs),
            "head": teacher.task.head,
            "policy": teacher.model.dtype_policy.name,
        }
        return cached(cache_dir, depends_on if cache_dir else {}, lambda: answer_all(teacher, targets, source))

    return KeptAnswers(compute, len(source.examples), source.lengths if targets.by_token else None)


def answer_all(teacher: TaskTeacher, targets: SoftAnswers, source: ExampleSource) -> dict[str, np.ndarray]:
    """Returns the columns of all rows, in order: [N,...], or [...,tokens of all rows] for columns with a value per
    token.
    """
    once = source.in_turn(teacher.task.config.training.eval_batch_size)
    answers: list[Mapping[str, Any]] = []
    with Reporter() as reporter:
        for row in answering.outputs_of(lambda outputs, _: targets.columns(outputs), teacher.model, once):
            answers.append(row)
            reporter.show(STAGE, len(answers) / len(source.examples))
    rows = once.in_order(answers)
    if not targets.by_token:
        return {name: np.stack([row[name] for row in rows]) for name in answers[0]}  # type: ignore[index]
    return {
        name: np.concatenate(
            [
                row[name][..., :length]  # type: ignore[index]
                for row, length in zip(rows, source.lengths)
            ],
            axis=-1,
        )
        for name in answers[0]
    }


def size_of_answers(teacher: TaskTeacher, targets: SoftAnswers, source: ExampleSource) -> int:
    """Returns the bytes that the answers to all rows take, estimated from the shapes of the first row's answers."""
    first = source.examples[0]
    outputs = teacher.model(
        {name: tf.constant(np.asarray(value)[None]) for name, value in first.items()}, training=False
    )
    numbers = sum(int(tf.size(value)) for value in targets.columns(outputs).values())
    per_token = numbers / source.lengths[0]
    return 4 * int(per_token * source.lengths.sum() if targets.by_token else numbers * len(source.examples))


class AtWords(Sequence):
    """The columns of a teacher with another vocabulary, aligned to the first pieces of the student's same words; 0
    elsewhere.
    """

    def __init__(self, answers: NamedArrays, rows: NamedArrays, own_rows: NamedArrays):
        self.answers, self.rows, self.own_rows = answers, rows, own_rows
        # Rows are windows over texts, in order, and each word is labelled in one of them.
        self.words = [(number, place) for number, row in enumerate(rows) for place in np.flatnonzero(row["tag_mask"])]
        self.starts = np.concatenate([[0], np.cumsum([np.count_nonzero(row["tag_mask"]) for row in own_rows])])

    def __len__(self) -> int:
        return len(self.own_rows)

    def __getitem__(self, index: int) -> dict[str, np.ndarray]:  # type: ignore[override]
        words = self.words[self.starts[index] : self.starts[index + 1]]
        mask = self.own_rows[index]["tag_mask"]
        columns = {
            name: np.zeros((*column.shape[:-1], len(mask)), np.float32) for name, column in self.answers[0].items()
        }
        for own_place, (number, place) in zip(np.flatnonzero(mask), words):
            for name, column in self.answers[number].items():
                columns[name][..., own_place] = column[..., place]
        return columns


def at_words(answers: NamedArrays, rows: ExampleSource, own_rows: ExampleSource) -> AtWords:
    """Returns a tagger's columns aligned to the rows of a student with another vocabulary.

    Raises ValueError if one of the vocabularies has no piece for a word that the other has.
    """
    moved = AtWords(answers, rows.made_of, own_rows.made_of)
    if len(moved.words) != moved.starts[-1]:
        raise ValueError(
            f"config.training.teacher: its vocabulary has pieces of {len(moved.words)} words of the training file, and "
            f"that of the student of {moved.starts[-1]}; expected the same words"
        )
    return moved
