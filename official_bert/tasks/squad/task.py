"""Question answering over a passage: SQuAD 1.1 and 2.0 (paper 4.2 and 4.3; 2018 `run_squad.py`)."""

import collections
import dataclasses
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import keras
import numpy as np
import tensorflow as tf
from absl import logging

from official_bert.config import check_length
from official_bert.data.batches.feature_rows import TextFeatures
from official_bert.data.batches.sources import ExampleSource, incomplete
from official_bert.data.cache import cached, text_digest
from official_bert.data.labelled import splits
from official_bert.data.labelled.labelled_texts import SAME_SHARE
from official_bert.data.labelled.splits import SplitOptions
from official_bert.data.rows import Source, digest
from official_bert.dotted_names import by_name
from official_bert.fields import Count, check_used
from official_bert.models.classifier import SpanPredictor
from official_bert.objectives.spans import AnswerSpan
from official_bert.reports.comparable import ComparableAnswers
from official_bert.reports.sections import Section
from official_bert.storage.files import write_json
from official_bert.tasks.answers import Answers, Examination
from official_bert.tasks.data import DataFiles, Steps, row_spec
from official_bert.tasks.file_data import FileData, TaskRows, Use
from official_bert.tasks.squad import metrics, reading
from official_bert.tasks.squad.alignment import LabelCounts
from official_bert.tasks.squad.decoding import Decoded, DecodingRules, Logits, decode_all
from official_bert.tasks.squad.features import FeatureMaker, SquadFeature, as_arrays
from official_bert.tasks.squad.reading import Alignment, SeveralAnswers, SquadFile, read_squad
from official_bert.tasks.task import TaskBase
from official_bert.text import loading
from official_bert.text.accents import casing_warnings
from official_bert.training.held_out import HeldOut, Predictions

LAYOUT = 3  # of the arrays that are cached
FILES = {"1.1": ("train-v1.1.json", "dev-v1.1.json"), "2.0": ("train-v2.0.json", "dev-v2.0.json")}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options(SplitOptions, DecodingRules):
    """The flags of 2018's `run_squad.py`, and the parts of the training file."""

    max_seq_length: int = 384
    """Tokens of a row: question and window."""
    doc_stride: Count = 128
    """Tokens from one window of a passage to the next."""
    max_query_length: Count = 64
    """Most tokens of a question; the rest is cut off."""
    several_answers: SeveralAnswers = "refuse"
    """Training questions with several answers; first: the first one, all: an example for each different one."""
    answer_alignment: Alignment = "characters"
    """How answers and pieces are aligned, in training and prediction; 2018: as in run_squad.py, by words between
    spaces."""
    buckets: tuple[int, ...] = ()
    """Lengths to which batches are padded; none: the longest row of each batch."""
    encoding: str = ""
    """Encoding of files of JSON; empty: UTF-8."""


class SquadData(FileData):
    """Questions about passages, in windows of these."""

    def batch_spec(self, batch_size: int) -> dict[str, tf.TensorSpec]:
        """Returns the shapes of a batch at full length, with the answers."""
        return row_spec(batch_size, self.options.max_seq_length) | {
            name: tf.TensorSpec((batch_size,), tf.int32) for name in ("start_positions", "end_positions")
        }

    def check(self, steps: Steps) -> None:
        """Also raises ValueError for training with a null threshold if every question has an answer."""
        super().check(steps)
        if steps.train:
            check_used(
                self.options,
                ["null_score_diff_threshold"],
                "options.version_2_with_negative: true",
                self.options.version_2_with_negative,
            )

    @property
    def file_names(self) -> dict[str, list[str]]:  # type: ignore[override]
        """The names of the files of the SQuAD version."""
        train, dev = FILES["2.0" if self.options.version_2_with_negative else "1.1"]
        return {"train": [train], "dev": [dev]}

    def read_file(self, path: Source, use: Use) -> SquadFile:
        """Reads questions; for training, only those whose answers are in their contexts."""
        options = self.options
        return read_squad(
            path,
            use == "train",
            options.version_2_with_negative,
            options.several_answers,
            options.answer_alignment,
            options.encoding,
        )

    def read_tests(self, files: DataFiles) -> SquadFile | None:
        """Reads the questions of `predict_file`, else the evaluation questions."""
        path = files.predict_file or self.eval_path(files)
        return self.read_file(path, "test") if path else None

    def check_rows(self, rows: TaskRows, files: DataFiles, steps: Steps) -> TaskRows:
        """Also drops evaluation questions if none has gold answers. Raises ValueError if no training question is left,
        or if only some evaluation questions have answers.
        """
        train, held_out, version_2 = (
            rows.train if steps.train else None,
            rows.held_out,
            self.options.version_2_with_negative,
        )
        # a training asks what will be answered later
        tests = self.read_tests(files) if train and not steps.predict else rows.tests
        same_file = files.predict_file in ("", self.eval_path(files))
        if held_out and tests and same_file:
            tests = held_out
        if train and tests:
            _check_overlap(train, tests, files.refuse_same if same_file else None)
        if train and held_out and held_out is not tests:
            _check_overlap(train, held_out, files.refuse_same)
        rows = dataclasses.replace(rows, tests=tests if steps.predict else None)
        if held_out and not metrics.has_gold_answers(held_out.articles, version_2):
            if not steps.train:
                raise ValueError(f"task squad: no evaluation data given: {held_out.source} has no answers")
            return dataclasses.replace(
                rows, held_out=None, notes=(f"{held_out.source} has no answers: nothing is evaluated",)
            )
        if held_out:
            metrics.check_answers(held_out.articles, version_2, str(held_out.source))
        return rows

    def divide(self, train: SquadFile, hold_out: bool) -> splits.Parts:
        """Divides the questions of a training file by articles, or by passages if there are few articles."""
        units, unit = reading.units_of(train.articles, max(splits.FEW, self.options.folds))
        questions = collections.Counter(units)
        sizes = dict(zip(questions, splits.bins(np.array(list(questions.values())))))
        return splits.divide(
            self.options, units, [sizes[key] for key in units], hold_out, str(train.source), "questions", unit
        )

    def hold_out_rows(self, train: SquadFile, numbers: np.ndarray, files: DataFiles) -> SquadFile:
        return train.rows_to_evaluate(numbers)

    def described(self, train: SquadFile) -> str:
        return train.described()

    def make_train(self, train: SquadFile, files: DataFiles, model: keras.Model) -> tuple[ExampleSource, Sequence[str]]:
        """Returns training batches, and a note about the labels if some differ from their answers."""
        if train.unfound:
            logging.warning("%s", train.warning())
        depends_on = {
            "layout": LAYOUT,
            "data": digest(train.source),
            "vocab": loading.digest(self.config.tokenizer.vocab_file),
            "questions": text_digest(example.qas_id for example in train.examples),
            "do_lower_case": self.config.tokenizer.do_lower_case,
        } | {
            key: getattr(self.options, key)
            for key in (
                "max_seq_length",
                "doc_stride",
                "max_query_length",
                "version_2_with_negative",
                "several_answers",
                "answer_alignment",
            )
        }
        arrays = cached(files.cache_dir, depends_on, lambda: self._train_arrays(train))
        self._warn_of_cut(train, int(arrays["cut_questions"]))
        label_line = LabelCounts(*map(int, arrays["labels"])).line(self.options.answer_alignment)
        answers = {name: arrays[name] for name in ("start_positions", "end_positions")}
        source = self.make_batches(TextFeatures(arrays, answers), training=True, rows=len(train.examples))
        contexts = dict.fromkeys(example.passage.context for example in train.examples)
        return source, [
            *casing_warnings(self.tokenizer, contexts),
            *[f"{train.source}: {label_line}"] * bool(label_line),
        ]

    def _train_arrays(self, file: SquadFile) -> dict[str, np.ndarray]:
        maker = self._feature_maker()
        arrays = as_arrays(maker.make(file.examples, training=True))
        return arrays | {
            "labels": np.array(dataclasses.astuple(maker.labels)),
            "cut_questions": np.array(maker.cut_questions),
        }

    def make_held_out(self, held_out: SquadFile, files: DataFiles, model: keras.Model) -> HeldOut:
        maker = self._feature_maker()
        features = maker.make(held_out.examples)
        self._warn_of_cut(held_out, maker.cut_questions)
        return Questions(self.task, held_out, features, self.make_batches(TextFeatures(as_arrays(features))))

    def check_same_rows(self, other: TaskBase, where: str) -> None:
        """Raises ValueError if another run's model cannot answer this task's rows."""
        check_length(self.options.max_seq_length, other.config.model, f"{where}: max_seq_length")
        if (
            self.tokenizer.vocab != other.tokenizer.vocab
            or self.tokenizer.do_lower_case != other.tokenizer.do_lower_case
        ):
            raise ValueError(
                f"{where}: its vocabulary or casing is not that of the questions: {self.config.tokenizer.vocab_file} "
                f"with do_lower_case {str(self.tokenizer.do_lower_case).lower()}"
            )

    def _feature_maker(self) -> FeatureMaker:
        return FeatureMaker(
            self.tokenizer,
            self.options.max_seq_length,
            self.options.doc_stride,
            self.options.max_query_length,
            self.options.answer_alignment,
        )

    def _warn_of_cut(self, file: SquadFile, questions: int) -> None:
        if questions:
            logging.warning(
                "%s: %d questions are longer than max_query_length = %d tokens and were cut",
                file.source,
                questions,
                self.options.max_query_length,
            )


class SpanAnswers(Answers):
    """Span answers, measured by F1; version 2 tunes the null threshold."""

    def best_metric(self) -> str:
        return "f1"

    def tuned_options(self, metrics: Mapping[str, float]) -> dict[str, Any]:
        """Returns the null threshold with the best F1 on the evaluation data."""
        threshold = metrics.get("best_f1_threshold")
        return {} if threshold is None else {"null_score_diff_threshold": threshold}

    def with_tuned(self, stored: Mapping[str, Any]) -> TaskBase:
        """Returns the task with the stored threshold in place of 0.0, 2018's default."""
        if not stored or not self.options.version_2_with_negative or self.options.null_score_diff_threshold:
            return self.task
        return self.task.with_options(null_score_diff_threshold=float(stored["null_score_diff_threshold"]))


class Task(TaskBase):
    """Start and end of the answer in a window of the passage; [CLS] if the answer is not in the window."""

    Options = Options
    head = "span"
    serving = "official_bert.tasks.squad.served:ANSWERS"
    objective = AnswerSpan()
    refused: ClassVar[Mapping[str, str]] = {"header": "the files are JSON or Parquet, whose rows name their keys"}
    data = property(SquadData)
    answers = property(SpanAnswers)

    def build_model(self) -> keras.Model:
        """Builds the encoder with a start and an end vector."""
        return SpanPredictor.make(self.config.model, recompute=self.config.training.recompute)


def _examination() -> Examination:
    return by_name("official_bert.tasks.squad.examination")


@dataclasses.dataclass(frozen=True)
class Questions:
    """The questions of a file, in windows, and the use of their logits."""

    task: Task
    file: SquadFile
    features: list[SquadFeature]
    source: ExampleSource

    @property
    def have_gold_answers(self) -> bool:
        """Whether the questions can be evaluated."""
        return metrics.has_gold_answers(self.file.articles, self.task.options.version_2_with_negative)

    def decode(self, predictions: Predictions) -> dict[str, Decoded]:
        """Returns the decoded answers, by id, to questions with predictions for all windows, because an evaluation may
        stop early.
        """
        rows = self.source.in_order(predictions)
        missing = incomplete(rows, [feature.example_index for feature in self.features])
        whole = [
            (feature, row)
            for feature, row in zip(self.features, rows)
            if row is not None and feature.example_index not in missing
        ]
        logits = [_logits(row, len(feature.input_ids)) for feature, row in whole]
        return decode_all(
            self.file.examples,
            [feature for feature, _ in whole],
            logits,
            self.task.options,
            self.task.config.tokenizer.do_lower_case,
        )

    def check_answers(self) -> None:
        """Raises ValueError for a question without gold answers."""
        metrics.check_answers(self.file.articles, self.task.options.version_2_with_negative, str(self.file.source))

    def evaluate(self, predictions: Predictions) -> dict[str, float]:
        """Computes exact match and F1 as the official evaluator; version 2: also the best threshold for no answer."""
        return metrics.squad_metrics(*self._answered(predictions))

    def examine(self, predictions: Predictions) -> list[Section]:
        """Returns report sections with scores by length and threshold, and the worst answers."""
        return list(_examination().examine(*self._answered(predictions)))

    def comparable(self, predictions: Predictions) -> dict[str, ComparableAnswers]:
        """Returns the answers to the questions."""
        return {"": _examination().comparable(*self._answered(predictions))}

    def _answered(self, predictions: Predictions) -> tuple[list[dict], dict[str, Decoded], bool]:
        """The articles with the questions that were answered, the answers, and whether questions may have none."""
        decoded = self.decode(predictions)
        return reading.only(self.file.articles, decoded), decoded, self.task.options.version_2_with_negative

    def write(self, predictions: Predictions, output_dir: str) -> list[str]:
        """Writes `predictions.json`, `nbest_predictions.json` and, with version 2, `null_odds.json`, as 2018 does."""
        return write_answers(self.decode(predictions), output_dir, self.task.options.version_2_with_negative)


def _check_overlap(train: SquadFile, second_file: SquadFile, refuse: Callable[[str], None] | None) -> None:
    """Warns of training questions that are also answered; calls `refuse`, if it is given, if nearly all questions are
    such.

    A question is the same if its text and its context are: ids may be numbers of rows.
    """
    trained, answered_questions = _ids_by_question(train), _ids_by_question(second_file)
    if not (shared := [number for question, number in trained.items() if question in answered_questions]):
        return
    message = (
        f"{train.source}: {len(shared)} of its {len(trained)} questions are in {second_file.source} too "
        f"({shared[0]} ...)"
    )
    if refuse and len(shared) >= SAME_SHARE * len(answered_questions):
        refuse(message)
    else:
        logging.warning("%s: the results say nothing about other questions", message)


def _ids_by_question(file: SquadFile) -> dict[tuple[str, str], str]:
    """The ids of a file's questions by context and question."""
    return {
        (paragraph["context"], row["question"]): row["id"] for _, paragraph, row in reading.questions_in(file.articles)
    }


def _logits(row: Mapping[str, Any], length: int) -> Logits:
    """A prediction's logits without those of padding."""
    return Logits(*(np.asarray(row[name][:length], np.float64) for name in ("start_logits", "end_logits")))


def average_logits(predictions: Sequence[Sequence[Mapping[str, np.ndarray]]]) -> list[dict[str, np.ndarray]]:
    """Returns the mean predictions of several models for the same rows in the same order."""
    return [
        {name: np.mean([row[name] for row in rows], axis=0) for name in rows[0]}
        for rows in zip(*predictions, strict=True)
    ]


def write_answers(decoded: dict[str, Decoded], output_dir: str, version_2: bool) -> list[str]:
    """Writes 2018's prediction files; returns their paths."""
    files: dict[str, dict] = {
        "predictions.json": {key: value.prediction for key, value in decoded.items()},
        "nbest_predictions.json": {
            key: [dataclasses.asdict(answer) for answer in value.nbest] for key, value in decoded.items()
        },
    }
    if version_2:
        files["null_odds.json"] = {key: value.null_odds for key, value in decoded.items()}
    for name, values in files.items():
        write_json(os.path.join(output_dir, name), values, "\n", indent=4)
    return [os.path.join(output_dir, name) for name in files]
