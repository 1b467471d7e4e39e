"""Text to text: a model writes the answer to a source.

A masked LM fills all places of the answer in a few passes; it is trained by masked diffusion
(`objectives/masked_diffusion`). Or a decoder writes it word by word (`tasks/writing/decoding`); docs/generation.md.
"""

import dataclasses
import os
from collections.abc import Sequence
from typing import Any, ClassVar, Literal, Self

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
from official_bert.fields import Natural, Rate, ShareBelow1, only_with
from official_bert.generation.generate import generate
from official_bert.generation.passes import Passes
from official_bert.generation.word_search import Search
from official_bert.model_config import ModelConfig
from official_bert.models.pretrainer import Pretrainer
from official_bert.objectives.masked_diffusion import MaskedDiffusion, bound_of
from official_bert.objectives.objective import Objective
from official_bert.objectives.written_words import WrittenWords
from official_bert.reports.sections import Mistake, Section, mistakes_section, table_section
from official_bert.tasks.answers import Answers, write_answers
from official_bert.tasks.data import DataFiles, Steps
from official_bert.tasks.file_data import FileData, TaskRows, Use
from official_bert.tasks.task import TaskBase
from official_bert.tasks.writing import decoding, metrics
from official_bert.tasks.writing.corruptions import Corruption
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
    generator: Literal["passes", "decoder"] = "passes"
    """What writes answers: a masked LM in passes, or a decoder word by word."""
    passes: Natural = only_with(0, "generator", "passes")
    """Passes in which an answer is written; 0: as many as places."""
    block_size: Natural = only_with(0, "generator", "passes")
    """Places that are full before the next ones begin; 0: a quarter of the answer if there are as many passes as
    places, else all of it."""
    decoder: ModelConfig | None = only_with(None, "generator", "decoder")
    """Sizes of the decoder, which is like BERT or RoBERTa; none: those of the encoder."""
    decoder_checkpoint: str = only_with("", "generator", "decoder")
    """Checkpoint that gives the decoder's sizes and first weights; empty: --init_checkpoint gives them."""
    shared: bool = only_with(False, "generator", "decoder")
    """The decoder's embeddings and layers are the encoder's."""
    head_transform: bool = only_with(True, "generator", "decoder")
    """The decoder's head has BERT's dense layer and layer norm; false: it is a product with the word table alone, as in
    BertGeneration."""
    label_smoothing: ShareBelow1 = only_with(0.0, "generator", "decoder")
    """Share of each target that all words get alike."""
    corruption: Corruption = only_with("none", "generator", "decoder")
    """How sources are damaged anew in each epoch; source_column may be answer_column then. mass: the decoder writes a
    hidden span of the source, and no answer."""
    corruption_rate: Rate = 0.3
    """Share of the tokens of a source that are damaged; mass: of the hidden span (its authors take 0.5)."""
    search: Search = dataclasses.field(default_factory=Search)
    """How a decoder searches for an answer."""
    empty_text: labelled_texts.EmptyText = "keep"
    """Rows with an empty source or answer."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.source_column == self.answer_column and self.corruption == "none":
            raise ValueError(
                f"config.options.answer_column: expected another column than source_column, got {self.answer_column!r}"
            )
        room = self.max_seq_length if self.generator == "passes" else self.answer_length + 3
        if self.answer_length == 1 or self.answer_length + 3 > room:
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
        for role in ("[MASK]", "[SEP]", "[CLS]"):
            if self.tokenizer.special.get(role) not in self.tokenizer.vocab:
                raise ValueError(
                    f"{self.config.tokenizer.vocab_file}: task text_to_text expects {role} in the vocabulary"
                )

    def read_file(self, path: Source, use: Use) -> LabelledTexts:
        """Reads sources and answers; from a file to answer, answers only if it has them."""
        options = self.options
        columns = [*dict.fromkeys([options.source_column, options.answer_column][: 1 + (use != "test")])]
        table = labelled_texts.read_table(options, path, columns, logging.warning, None)
        table = labelled_texts.without_empty(table, columns, options.empty_text, logging.warning)
        sources = labelled_texts.texts(table, options.source_column)
        answers = None if use == "test" else labelled_texts.texts(table, options.answer_column)
        return LabelledTexts(str(path), sources, answers)

    def with_labels_of(self, train: LabelledTexts) -> Self:
        """Returns the data with the places of an answer, if not given: one more than the tokens of the longest; and
        with what a decoder's checkpoint says about it.
        """
        options, values = self.options, {}
        if not options.answer_length:
            longest = max(map(len, tokenize_all(self.tokenizer, train.text_pair or [])))
            values["answer_length"] = max(longest + 1, 2)
        if options.decoder_checkpoint and not options.decoder:
            values |= decoding.decoder_of(options.decoder_checkpoint)
        data = self.with_options(**values)
        return data.with_options(search=decoding.search_of(data.task)) if self.task.decodes else data

    def check_rows(self, rows: TaskRows, files: DataFiles, steps: Steps) -> TaskRows:
        """Warns of held-out rows that are training rows, which are no error because question and answer may recur."""
        if rows.train and rows.held_out:
            labelled_texts.check_held_out(rows.train, rows.held_out, logging.warning)
        return rows

    def divide(self, train: LabelledTexts, hold_out: bool) -> splits.Parts:
        """Divides the rows of a training file; rows of one source stay together."""
        return splits.divide(self.options, train.text, [0] * len(train), hold_out, train.path)

    def rows_of(self, data: LabelledTexts) -> Any:
        """Makes the rows of texts."""
        options = self.options
        if not options.answer_length:
            raise ValueError("config.options.answer_length: expected the places of an answer; no training data has any")
        answers = data.text_pair or [""] * len(data)
        if self.task.decodes:
            return decoding.DecodedRows.of(self.task, data.text, answers)
        return AnswerRows(data.text, answers, self.tokenizer, options.answer_length, options.max_seq_length)

    def source_of(self, rows: Any, training: bool) -> Any:
        """Makes batches of rows, masked unless a decoder writes."""
        if self.task.decodes:
            return self.make_batches(rows, training, decoding.DecodedSource)
        return self.make_batches(rows, training, DiffusedSource, mask_id=self.task.mask_id)

    def make_train(self, train: LabelledTexts, files: DataFiles, model: keras.Model) -> tuple[Any, Sequence[str]]:
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
        kind = DecodedAnswers if self.task.decodes else WrittenAnswers
        return kind(self.task, held_out, rows, self.source_of(rows, training=False), model)

    def batch_spec(self, batch_size: int) -> dict[str, tf.TensorSpec]:
        """Returns the shapes of a batch at full length."""
        if self.task.decodes:
            return decoding.batch_spec(self.options, batch_size)
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

    @property
    def decodes(self) -> bool:
        """Whether a decoder writes."""
        return self.options.generator == "decoder"

    def build_model(self) -> keras.Model:
        """Builds encoder and masked-LM head, or encoder and decoder."""
        if self.decodes:
            return decoding.make_model(self)
        return Pretrainer.make(self.config.model, {"next_sentence": False}, recompute=self.config.training.recompute)

    @property
    def objective(self) -> Objective:
        return WrittenWords(smoothing=self.options.label_smoothing) if self.decodes else MaskedDiffusion()

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
    rows: Any  # `AnswerRows`, or those of a decoder
    source: DiffusedSource
    model: keras.Model
    last: list[Any] = dataclasses.field(default_factory=list)  # the last predictions, and the answers written with them
    counted: ClassVar[str] = "passes"  # what a report compares numbers of
    note: ClassVar[str] = "A pass asks the model once for all places that are still empty."

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

    def counts(self) -> Sequence[int]:
        """The numbers of passes in a report."""
        return (*(passes for passes in (1, 2, 4) if passes < self.rows.width), self.rows.width)

    def measure(self, numbers: Sequence[int], texts: Sequence[str]) -> dict[str, float]:
        """Computes the metrics of texts written for rows with these numbers."""
        answers = [(self.data.text_pair or [""] * len(self.data))[number] for number in numbers]
        writable = [self.text_of(self.rows.answer(number)) for number in numbers]
        return metrics.measure(texts, answers, writable)

    def examine(self, predictions: Predictions) -> list[Section]:
        """Returns report sections with the quality by passes, or by beams, and the worst answers by chrF."""
        numbers, counted = self._numbers(predictions), self.counted
        table: list[dict[str, float]] = []
        for count in self.counts():
            texts = self.answers(predictions) if count == self.passes else self.write_answers(numbers, count)
            table.append({counted: count, **self.measure(numbers, texts)})
        mistakes = [
            Mistake([self.data.text[number]], right, text, 1.0 - metrics.chrf([text], [right]))
            for number, text in zip(numbers, self.answers(predictions))
            if text != (right := (self.data.text_pair or [""] * len(self.data))[number])
        ]
        curve = table_section(
            name=counted, title=f"Quality by {counted}", values=table, note=self.note, header=list(table[0])
        )
        return [curve, mistakes_section(mistakes, "1 - chrF", title="The worst answers")]

    def write(self, predictions: Predictions, output_dir: str) -> list[str]:
        """Writes `predictions.tsv`."""
        numbers = list(range(len(self.rows)))
        rows = enumerate(self.write_answers(numbers, self.passes))
        return [write_answers(os.path.join(output_dir, "predictions.tsv"), rows)]


class DecodedAnswers(WrittenAnswers):
    """Rows whose answers a decoder writes, word by word."""

    counted = "beams"
    note = "A search keeps so many beginnings of an answer; one is greedy."

    def write_answers(self, numbers: Sequence[int], passes: int) -> list[str]:
        """Returns the answers to rows with these numbers, found with so many beams."""
        search, texts = decoding.search_of(self.task, num_beams=passes), list[str]()
        for start in range(0, len(numbers), AT_ONCE):
            rows = [self.rows[number] for number in numbers[start : start + AT_ONCE]]
            texts += map(self.text_of, decoding.write(self.model, rows, self.rows.template.pad_id, search))
        return texts

    def text_of(self, ids: np.ndarray) -> str:
        """Returns the text of an answer, up to its first end."""
        ends = np.flatnonzero(np.isin(ids, self.rows.search.eos_token_id))
        return self.task.tokenizer.decode((ids[: ends[0]] if len(ends) else ids).tolist())

    def evaluate(self, predictions: Predictions) -> dict[str, float]:
        """Measures the written answers, and how probable the true ones are."""
        measured = self.measure(self._numbers(predictions), self.answers(predictions))
        return measured | decoding.likelihood(predictions)

    @property
    def passes(self) -> int:
        """The number of beams."""
        return self.task.options.search.num_beams

    def counts(self) -> Sequence[int]:
        """The numbers of beams in a report."""
        return sorted({1, decoding.SEVERAL_BEAMS, self.passes})
