"""Multiple choice: the right one of four endings of a sentence (SWAG, paper 4.4), or of any number of answers to a
question (RACE).

The score of a choice is a vector's product with [CLS].
"""

import dataclasses
import operator
import os
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, Self

import keras
import numpy as np
import tensorflow as tf
from absl import logging

from official_bert.data.batches.feature_rows import ChoiceFeatures, TextFeatures
from official_bert.data.batches.text_features import make_choice_features
from official_bert.data.labelled import labelled_texts
from official_bert.data.labelled.choice_answers import AnswerAs, right_ones
from official_bert.data.labelled.labelled_texts import LabelledTexts
from official_bert.data.rows import Source
from official_bert.data.tabular.tables import Table, TableOptions, first_object, has_key
from official_bert.fields import Constraint
from official_bert.models.classifier import ChoiceClassifier
from official_bert.tasks.data import DataFiles, row_spec
from official_bert.tasks.file_data import Use
from official_bert.tasks.texts.base import TextAnswers, TextClassification, TextData, TextOptions

# Options that read published rows: those of AI2 (ARC, CommonsenseQA, OpenBookQA), and PIQA's.
FORMS: Sequence[Mapping[str, Any]] = (
    {
        "text_column": "question.stem",
        "begin_column": "",
        "choices_column": "question.choices.text",
        "keys_column": "question.choices.label",
        "label_column": "answerKey",
    },
    {"text_column": "goal", "begin_column": "", "choice_columns": ("sol1", "sol2")},
)
ENDINGS = tuple(f"ending{number}" for number in range(4))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options(TextOptions, TableOptions):
    """The columns of the files: by default SWAG's, a sentence, the beginning of the next one, and possible endings."""

    text_column: str = "sent1"
    """Column of the first text."""
    begin_column: str = "sent2"
    """Column of the beginning of every choice, as a question; empty with choices_column: choices stand alone."""
    choice_columns: Annotated[
        tuple[str, ...], Constraint("every column once", lambda columns: len({*columns}) == len(columns))
    ] = ENDINGS
    """Columns of the choices."""
    choices_column: str = ""
    """Column of lists of choices, of any lengths, in JSON or Parquet, instead of choice_columns."""
    label_column: str = "label"
    """Column of the right choice: its number, its letter, its text, or its key."""
    keys_column: str = ""
    """Column of lists of the choices' keys, one of which is the answer (ARC's choices.label)."""
    answer_as: AnswerAs = "auto"
    """What an answer is; auto: all answers of a file decide."""
    first_choice: Literal[0, 1] = 0
    """Number of the first choice, in answers that are numbers."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.truncate != "head":
            raise ValueError(f"config.options.truncate: a task of choices expects head, got {self.truncate}")
        if self.choices_column and self.choice_columns != ENDINGS:
            raise ValueError(
                "config.options.choice_columns: expected none beside choices_column, whose lists hold the choices"
            )
        if self.answer_as == "key" and not self.keys_column:
            raise ValueError(
                "config.options.keys_column: expected the column of the choices' keys beside answer_as: key"
            )
        if not (
            self.choices_column
            or (len(self.choice_columns) > 1 and (self.begin_column or self.choice_columns != ENDINGS))
        ):
            raise ValueError(
                "config.options.choices_column: expected a column of lists, or begin_column and two or more "
                "choice_columns"
            )

    @property
    def choice_parts(self) -> tuple[str, ...]:
        """The columns of the choices: that of their beginning first; without one, "" stands before columns of single
        choices.
        """
        if self.choices_column:
            return (self.begin_column, self.choices_column) if self.begin_column else (self.choices_column,)
        return (self.begin_column, *self.choice_columns)


class ChoiceData(TextData):
    """Texts with their choices."""

    file_names = {"train": ("train.csv",), "dev": ("val.csv",), "test": ("test.csv",)}

    def path(self, files: DataFiles, use: Use) -> Source:
        """Returns the file for a use, even if the data folder lacks it, so that reading it fails instead of using
        another file.
        """
        path = super().path(files, use)
        return path or (os.path.join(files.data_dir, *self.file_names[use]) if files.data_dir else "")

    def read_train(self, files: DataFiles) -> tuple[Self, LabelledTexts]:
        """Reads the training rows; also switches the options to a published form's columns if the file has those and
        not the options'.
        """
        path, options = self.training_path(files), self.options
        row = first_object(path, options)
        forms = [self]
        if options.text_column == Options.text_column and row and not has_key(row, options.text_column):
            forms = [self.with_options(**form) for form in FORMS]
        data = next((data for data in forms if all(has_key(row, name) for name in data.own_columns)), self)
        return data, data.read_file(path, "train")

    @property
    def own_columns(self) -> list[str]:
        """The columns of texts and choices."""
        return [self.options.text_column, *filter(None, self.options.choice_parts)]

    def read_file(self, path: Source, use: Use) -> LabelledTexts:
        options, labelled = self.options, use != "test"
        if labelled and options.label_column in (options.text_column, *options.choice_parts):
            raise ValueError(
                "config.options.label_column: expected another column than those of the texts and choices, got "
                f"{options.label_column!r}"
            )
        labels = [name for name in (options.label_column, options.keys_column) if name] if labelled else []
        table = labelled_texts.read_table(
            options, path, [*self.own_columns, *labels], logging.warning, options.label_column if labelled else None
        )
        columns = (options.text_column, *(() if options.choices_column else options.choice_columns))
        table = labelled_texts.without_empty(table, columns, "keep", logging.warning)
        begins = labelled_texts.texts(table, options.begin_column) if options.begin_column else [""] * len(table)
        endings = self._endings(table)
        choices = [tuple(f"{begin} {ending}".strip() for ending in of_row) for begin, of_row in zip(begins, endings)]
        targets = None
        if labelled:
            targets = right_ones(
                table, options.label_column, endings, options.keys_column, options.answer_as, options.first_choice
            )
        return LabelledTexts(
            str(path), labelled_texts.texts(table, options.text_column), None, targets, choices, table.unaccepted
        )

    def _endings(self, table: Table) -> list[tuple[str, ...]]:
        """The texts of each row's choices, without their beginning. Raises ValueError, naming the line, for fewer than
        two or no texts.
        """
        options = self.options
        if not options.choices_column:
            return list(zip(*(labelled_texts.texts(table, name) for name in options.choice_columns)))
        for row, value in enumerate(table.columns[options.choices_column]):
            if not isinstance(value, list) or len(value) < 2 or not all(isinstance(ending, str) for ending in value):
                raise ValueError(
                    f"{table.place(row)}: column {options.choices_column!r}: expected a list of two or more texts, "
                    f"got {str(value)[:60]!r}"
                )
        return list(map(tuple, table.columns[options.choices_column]))

    def make_features(
        self, data: LabelledTexts, targets: Mapping[str, np.ndarray], cache_dir: str = ""
    ) -> TextFeatures | ChoiceFeatures:
        """Returns features with a row for each choice of each text."""
        rows = list(zip(data.text, data.choices or ()))
        return make_choice_features(rows, self.tokenizer, self.options.max_seq_length, cache_dir, targets)

    def batch_spec(self, batch_size: int) -> dict[str, tf.TensorSpec]:
        """Returns the shapes of a batch at full length."""
        return row_spec(batch_size, self.task.num_outputs, self.options.max_seq_length) | {
            "label_ids": tf.TensorSpec((batch_size,), tf.int32)
        }


class ChoiceAnswers(TextAnswers):
    """Answers that are the number of a choice."""

    metrics = ("accuracy",)

    def input_columns(self) -> dict[str, tuple[str, ...]]:
        return {"text": (self.options.text_column,), "choices": self.options.choice_parts}

    def answer(self, logits: np.ndarray) -> dict[str, Any]:
        """Returns `choice`, from 0, and `probabilities`."""
        return {"choice": int(np.argmax(logits)), **self.probabilities(logits)}

    def write_set(self, name: str, logits: np.ndarray, output_dir: str) -> str:
        """Writes `predictions.csv`: the number of the choice, and the probability of each."""
        choices = range(logits.shape[-1]) if self.options.choices_column else self.options.choice_columns
        path = os.path.join(output_dir, f"{name}.csv")
        return self.write_table(path, logits, operator.itemgetter("choice"), choices, ",")


class Task(TextClassification):
    """Rows [B,C,S]: `[CLS] sent1 [SEP] sent2 ending [SEP]` for each ending; C: the most choices of any row."""

    Options = Options
    head = "choice"
    serving = "official_bert.tasks.texts.served:CHOICES"
    data = property(ChoiceData)
    answers = property(ChoiceAnswers)

    @property
    def num_outputs(self) -> int:
        """The number of choices of a text, if choices are columns."""
        return len(self.options.choice_columns)

    def build_model(self) -> keras.Model:
        """Builds encoder, pooler and one vector."""
        return ChoiceClassifier.make(
            self.config.model, {"dropout": self.options.dropout}, recompute=self.config.training.recompute
        )
