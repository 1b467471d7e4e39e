"""Text to text: a masked LM writes the answer to a source by filling all places of the answer in a few passes.

It is trained by masked diffusion (`objectives/masked_diffusion`); docs/generation.md.
"""

import dataclasses
import os
from collections.abc import Sequence
from typing import Any, Self

import keras
import numpy as np
import tensorflow as tf
from absl import logging

from official_bert.data.batches.text_features import tokenize_all
from official_bert.data.labelled import labelled_texts, splits
from official_bert.data.labelled.labelled_texts import LabelledTexts
from official_bert.data.labelled.splits import SplitOptions
from official_bert.data.rows import Source
from official_bert.data.tabular.tables import TableOptions
from official_bert.fields import Natural
from official_bert.generation.generate import generate
from official_bert.generation.passes import Passes
from official_bert.models.pretrainer import Pretrainer
from official_bert.objectives.masked_diffusion import MaskedDiffusion, bound_of
from official_bert.objectives.objective import Objective
from official_bert.reports.sections import Mistake, Section, mistakes_section
from official_bert.tasks.answers import Answers, write_answers
from official_bert.tasks.data import DataFiles, Steps
from official_bert.tasks.file_data import FileData, TaskRows, Use
from official_bert.tasks.task import TaskBase
from official_bert.tasks.writing import metrics
from official_bert.tasks.writing.rows import AnswerRows, Blanks, DiffusedSource
from official_bert.training.held_out import HeldOut, Predictions

AT_ONCE = 32  # rows that are written together


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options(SplitOptions, TableOptions):
    """The columns of the files, the places of an answer, and the passes that fill them."""

    max_seq_length: int = 128
    """Tokens of a source and its answer; a longer source is cut at its end."""
    buckets: tuple[int, ...] = ()
    """Lengths to which batches are padded; none: the longest row of each batch."""
    source_column: str = "source"
    """Column of the texts that are answered."""
    answer_column: str = "answer"
    """Column of the answers."""
    answer_length: Natural = 0
    """Places of an answer, at least 2; 0: one more than the longest answer of the training file has tokens."""
    passes: Natural = 0
    """Passes in which an answer is written; 0: as many as places."""
    block_size: Natural = 0
    """Places that are full before the next ones begin; 0: a quarter of the answer if there are as many passes as
    places, else all of it."""
    empty_text: labelled_texts.EmptyText = "keep"
    """Rows with an empty source or answer."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.source_column == self.answer_column:
            raise ValueError(
                f"config.options.answer_column: expected another column than source_column, got {self.answer_column!r}"
            )
        if self.answer_length == 1 or self.answer_length + 3 > self.max_seq_length:
            raise ValueError(
                "config.options.answer_length: expected 0, or 2 to max_seq_length - 3 "
                f"({self.max_seq_length - 3}), got {self.answer_length}"
            )


class WritingData(FileData):
    """Sources and answers, in rows `[CLS] source [SEP] answer`."""

    file_names = {
        use: tuple(f"{use}{suffix}" for suffix in (".tsv", ".csv", ".jsonl", ".parquet"))
        for use in ("train", "dev", "test")
    }

    def check(self, steps: Steps) -> None:
        """Also raises ValueError for a teacher, left-to-right models, and vocabularies without [MASK] or [SEP]."""
        super().check(steps)
        if self.config.training.teacher:
            raise ValueError("config.training.teacher: expected none: task text_to_text has no soft answers")
        if self.config.model.attention == "left_to_right":
            raise ValueError("config.model.attention: task text_to_text expects bidirectional, got left_to_right")
        for role in ("[MASK]", "[SEP]"):
            if self.tokenizer.special.get(role) not in self.tokenizer.vocab:
                raise ValueError(
                    f"{self.config.tokenizer.vocab_file}: task text_to_text expects {role} in the vocabulary"
                )

    def read_file(self, path: Source, use: Use) -> LabelledTexts:
        """Reads sources and answers; from a file to answer, answers only if it has them."""
        options = self.options
        columns = [options.source_column, options.answer_column][: 1 + (use != "test")]
        table = labelled_texts.read_table(options, path, columns, logging.warning, None)
        table = labelled_texts.without_empty(table, columns, options.empty_text, logging.warning)
        sources, *answers = (labelled_texts.texts(table, name) for name in columns)
        return LabelledTexts(str(path), sources, answers[0] if answers else None)

    def with_labels_of(self, train: LabelledTexts) -> Self:
        """Returns the data with the places of an answer, if not given: one more than the tokens of the longest."""
        if self.options.answer_length:
            return self
        longest = max(map(len, tokenize_all(self.tokenizer, train.text_pair or [])))
        return self.with_options(answer_length=max(longest + 1, 2))

    def check_rows(self, rows: TaskRows, files: DataFiles, steps: Steps) -> TaskRows:
        """Warns of held-out rows that are training rows, which are no error because question and answer may recur."""
        if rows.train and rows.held_out:
            labelled_texts.check_held_out(rows.train, rows.held_out, logging.warning)
        return rows

    def divide(self, train: LabelledTexts, hold_out: bool) -> splits.Parts:
        """Divides the rows of a training file; rows of one source stay together."""
        return splits.divide(self.options, train.text, [0] * len(train), hold_out, train.path)

    def rows_of(self, data: LabelledTexts) -> AnswerRows:
        """Makes the rows of texts."""
        options = self.options
        if not options.answer_length:
            raise ValueError("config.options.answer_length: expected the places of an answer; no training data has any")
        answers = data.text_pair or [""] * len(data)
        return AnswerRows(data.text, answers, self.tokenizer, options.answer_length, options.max_seq_length)

    def source_of(self, rows: AnswerRows, training: bool) -> DiffusedSource:
        """Makes batches of rows, masked."""
        settings = self.config.training
        return DiffusedSource(
            rows,
            settings.batch_size if training else settings.eval_batch_size,
            self.config.seed,
            training,
            self.buckets,
            by_length=not settings.eval_steps and not training,
            mask_id=self.task.mask_id,
        )

    def make_train(
        self, train: LabelledTexts, files: DataFiles, model: keras.Model
    ) -> tuple[DiffusedSource, Sequence[str]]:
        rows = self.rows_of(train)
        notes = [f"answers of {rows.width} places"]
        if rows.cut_answers or rows.cut_sources:
            notes.append(
                f"{rows.cut_sources} of {len(rows)} sources and {rows.cut_answers} answers are cut "
                "(options.max_seq_length, options.answer_length)"
            )
        return self.source_of(rows, training=True), notes

    def make_held_out(self, held_out: LabelledTexts, files: DataFiles, model: keras.Model) -> HeldOut:
        rows = self.rows_of(held_out)
        return WrittenAnswers(self.task, held_out, rows, self.source_of(rows, training=False), model)

    def batch_spec(self, batch_size: int) -> dict[str, tf.TensorSpec]:
        """Returns the shapes of a batch at full length."""
        length, width = self.options.max_seq_length, self.options.answer_length
        integers = {"input_ids": length, "input_mask": length, "segment_ids": length, "masked_lm_positions": width,
                    "masked_lm_ids": width}  # fmt: skip
        numbers = {"masked_lm_weights": (width,), "maskable": (width,), "masking_rates": (), "example_weights": ()}
        return {name: tf.TensorSpec((batch_size, size), tf.int32) for name, size in integers.items()} | {
            name: tf.TensorSpec((batch_size, *shape), tf.float32) for name, shape in numbers.items()
        }


class WritingAnswers(Answers):
    """Written answers."""

    def best_metric(self) -> str:
        """Returns `chrf`, because exact matches say little about long answers."""
        return "chrf"

    def input_columns(self) -> dict[str, tuple[str, ...]]:
        return {"text": (self.options.source_column,)}


class Task(TaskBase):
    """Rows `[CLS] source [SEP] answer`, of which the answer is masked at a rate drawn for each row."""

    Options = Options
    head = "fill_mask"
    serving = "official_bert.tasks.writing.served:ANSWERS"
    data = property(WritingData)
    answers = property(WritingAnswers)

    def build_model(self) -> keras.Model:
        """Builds encoder and masked-LM head."""
        return Pretrainer.make(self.config.model, {"next_sentence": False}, recompute=self.config.training.recompute)

    @property
    def objective(self) -> Objective:
        return MaskedDiffusion()

    @property
    def mask_id(self) -> int:
        """The id of [MASK]."""
        return self.tokenizer.special_id("[MASK]")

    def reads_pooler(self, model: keras.Model) -> bool:
        return self.config.model.pooler_norm


@dataclasses.dataclass(frozen=True)
class WrittenAnswers:
    """Rows to evaluate on or to answer: the model writes their answers."""

    task: Task
    data: LabelledTexts
    rows: AnswerRows
    source: DiffusedSource
    model: keras.Model
    last: list[Any] = dataclasses.field(default_factory=list)  # the last predictions, and the answers written with them

    def write_answers(self, numbers: Sequence[int], passes: int) -> list[str]:
        """Returns the answers to rows with these numbers, written in `passes` passes."""
        task, blanks, texts = self.task, Blanks(self.rows, self.task.mask_id), []
        how = Passes.of_answer(self.rows.width, passes, task.options.block_size)
        for start in range(0, len(numbers), AT_ONCE):
            batch = blanks.batch(numbers[start : start + AT_ONCE])
            written = generate(self.model, batch, task.tokenizer, how.passes, how.block_size)["sequences"]
            ends = batch["input_mask"].sum(axis=1)
            texts += [self.text_of(row[end - self.rows.width : end]) for row, end in zip(written, ends)]
        return texts

    def text_of(self, ids: np.ndarray) -> str:
        """Returns the text of an answer [W], up to its first [SEP]."""
        ends = np.flatnonzero(ids == self.rows.template.sep_id)
        return self.task.tokenizer.decode((ids[: ends[0]] if len(ends) else ids).tolist())

    def evaluate(self, predictions: Predictions) -> dict[str, float]:
        """Measures the written answers, and the bound of the held-out answers in nats a token."""
        numbers = self._numbers(predictions)
        measured = self.measure(numbers, self.answers(predictions))
        return measured | bound_of(np.stack([row["bound"] for row in predictions]))

    def answers(self, predictions: Predictions) -> list[str]:
        """Returns the answers of an evaluation, kept for a report of the same weights."""
        if not self.last or self.last[0] is not predictions:
            self.last[:] = predictions, self.write_answers(self._numbers(predictions), self.passes)
        return self.last[1]

    def _numbers(self, predictions: Predictions) -> list[int]:
        """The rows that were evaluated."""
        return [number for number, row in enumerate(self.source.in_order(predictions)) if row is not None]

    @property
    def passes(self) -> int:
        """The number of passes that write an answer."""
        return self.task.options.passes or self.rows.width

    def measure(self, numbers: Sequence[int], texts: Sequence[str]) -> dict[str, float]:
        """Computes the metrics of texts written for rows with these numbers."""
        answers = [(self.data.text_pair or [""] * len(self.data))[number] for number in numbers]
        writable = [self.text_of(self.rows.answer(number)) for number in numbers]
        return metrics.measure(texts, answers, writable)

    def examine(self, predictions: Predictions) -> list[Section]:
        """Returns report sections with the quality by passes, and the worst answers by chrF."""
        numbers, width = self._numbers(predictions), self.rows.width
        table: list[dict[str, float]] = []
        for passes in (*(passes for passes in (1, 2, 4) if passes < width), width):
            texts = self.answers(predictions) if passes == self.passes else self.write_answers(numbers, passes)
            table.append({"passes": passes, **self.measure(numbers, texts)})
        mistakes = [
            Mistake([self.data.text[number]], right, text, 1.0 - metrics.chrf([text], [right]))
            for number, text in zip(numbers, self.answers(predictions))
            if text != (right := (self.data.text_pair or [""] * len(self.data))[number])
        ]
        curve = Section(
            name="passes",
            title="Quality by passes",
            values=table,
            note="A pass asks the model once for all places that are still empty.",
            header=list(table[0]),
            rows=[list(row.values()) for row in table],
        )
        return [curve, mistakes_section(mistakes, "1 - chrF", title="The worst answers")]

    def write(self, predictions: Predictions, output_dir: str) -> list[str]:
        """Writes `predictions.tsv`."""
        numbers = list(range(len(self.rows)))
        rows = enumerate(self.write_answers(numbers, self.passes))
        return [write_answers(os.path.join(output_dir, "predictions.tsv"), rows)]
