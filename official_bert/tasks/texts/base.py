"""The base of tasks that label or score whole texts: features, batches, objective, metrics, answers.

A task reads the rows (`read_file`) and writes the answers (`write_set`).
"""

import abc
import dataclasses
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar

import keras
import numpy as np
import scipy.special
import tensorflow as tf

from official_bert.data.batches.feature_rows import ChoiceFeatures, TextFeatures
from official_bert.data.batches.sources import ExampleSource, incomplete
from official_bert.data.batches.text_features import Truncate, make_features
from official_bert.data.labelled import label_weights, labelled_texts, splits
from official_bert.data.labelled.labelled_texts import LabelledTexts, TextSet
from official_bert.data.labelled.splits import SplitOptions
from official_bert.dotted_names import by_name
from official_bert.fields import Count, Rate, ShareBelow1, only_with
from official_bert.models.classifier import Classifier
from official_bert.objectives.labels import OneLabel, Score, SeveralLabels
from official_bert.objectives.objective import Objective
from official_bert.reports.comparable import ComparableAnswers
from official_bert.reports.sections import Section
from official_bert.storage.files import written_whole
from official_bert.tasks.answers import Examination, write_answers
from official_bert.tasks.calibration import CalibratedAnswers, CalibrationOptions
from official_bert.tasks.data import DataFiles, Steps, row_spec
from official_bert.tasks.file_data import FileData, TaskRows
from official_bert.tasks.task import TaskBase
from official_bert.tasks.texts import metrics
from official_bert.text.accents import casing_warnings
from official_bert.training.held_out import HeldOut, Predictions


@dataclasses.dataclass(frozen=True, kw_only=True)
class TextOptions(CalibrationOptions, SplitOptions):
    """Lengths of rows and batches, dropout, and smoothing of the labels."""

    max_seq_length: int = 128
    """Most tokens of a row."""
    truncate: Truncate = "head"
    """What the model sees of a longer text: its head as in 2018, its tail, half of each, or all of it in windows whose
    logits are averaged."""
    doc_stride: Count = only_with(64, "truncate", "windows")
    """Tokens from one window to the next."""
    buckets: tuple[int, ...] = ()
    """Lengths to which batches are padded; none: the longest row of each batch."""
    dropout: Rate = 0.1
    """Dropout between pooler and classifier: 0.1 in 2018, whatever the encoder's rate."""
    label_smoothing: ShareBelow1 = 0.0
    """Share of the target that is spread evenly over all labels."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.truncate == "windows" and self.pairs:
            raise ValueError(
                "config.options.truncate: windows are those of a single text, got pairs; expected head, tail or "
                "head_tail"
            )

    @property
    def pairs(self) -> bool:
        """Whether a row has two texts."""
        return False


@dataclasses.dataclass(frozen=True, kw_only=True)
class LabelOptions(TextOptions):
    """Weights of the labels in the loss of training."""

    class_weights: label_weights.Weights = ""
    """Weights of the labels in the loss of training: balanced, or numbers in the order of the labels or by label;
    empty: every row counts 1."""


class TextData(FileData):
    """Labelled texts; `read_file` reads them."""

    def batch_spec(self, batch_size: int) -> dict[str, tf.TensorSpec]:
        """Returns the shapes of a batch at full length."""
        per_row = tf.TensorSpec((batch_size,), tf.float32)
        per_label = tf.TensorSpec((batch_size, self.task.num_outputs), tf.float32)
        target = {"classifier": tf.TensorSpec((batch_size,), tf.int32), "regression": per_row, "multi_label": per_label}
        weights = (
            {"loss_weights": per_label if self.task.head == "multi_label" else per_row} if self._weights_given else {}
        )
        shares = {"label_shares": per_label} if self.learns_shares else {}
        rows = row_spec(batch_size, self.options.max_seq_length)
        return rows | weights | {self._target_key: target[self.task.head]} | shares

    @property
    def _target_key(self) -> str:
        return "scores" if self.task.head == "regression" else "label_ids"

    def read_held_out(self, files: DataFiles) -> list[TextSet]:
        """Reads sets of labelled rows to evaluate on; [] if there are no such files."""
        rows = super().read_held_out(files)
        return [TextSet("", rows)] if rows else []

    def read_tests(self, files: DataFiles) -> list[TextSet]:
        """Reads sets of rows to answer; [] if there are no such files."""
        rows = super().read_tests(files)
        return [TextSet("predictions", rows)] if rows else []

    def check_rows(self, rows: TaskRows, files: DataFiles, steps: Steps) -> TaskRows:
        for text_set in rows.held_out or () if rows.train else ():
            labelled_texts.check_held_out(rows.train, text_set.data, files.refuse_same)
        return rows

    def divide(self, train: LabelledTexts, hold_out: bool) -> splits.Parts:
        """Divides the rows of a training file, stratified by label, set of labels, or tenths of the scores."""
        assert train.targets is not None  # training rows are labelled
        strata = (
            splits.bins(train.targets)
            if self.task.head == "regression"
            else [target.tobytes() for target in train.targets]
        )
        return splits.divide(self.options, list(train.pairs()), strata, hold_out, train.path)

    def hold_out_rows(self, train: LabelledTexts, numbers: np.ndarray, files: DataFiles) -> list[TextSet]:
        return [TextSet("", train.rows(numbers))]

    def described(self, train: LabelledTexts) -> str:
        return labelled_texts.described_rows(train, () if self.task.head == "choice" else self.options.labels)

    def make_train(
        self, train: LabelledTexts, files: DataFiles, model: keras.Model
    ) -> tuple[ExampleSource, Sequence[str]]:
        """Returns training batches, in which rows or labels may have weights in the loss."""
        features = self._features_of(train, files)
        notes = casing_warnings(self.tokenizer, train.text)
        if self._weights_given:
            weights, features.extra["loss_weights"] = self._weights(features.extra[self._target_key])
            weighted = "positive rows" if self.task.head == "multi_label" else "labels"
            notes.append(f"weights of the {weighted}: {label_weights.describe(weights, self.options.labels)}")
        return self.make_batches(features, training=True), notes

    def make_held_out(self, held_out: Sequence[TextSet], files: DataFiles, model: keras.Model) -> HeldOut:
        """Returns the batches of all sets, one after another."""
        return TextSets(
            self.task, held_out, self.make_batches(self._features_of(labelled_texts.joined(held_out), files))
        )

    def _features_of(self, data: LabelledTexts, files: DataFiles) -> TextFeatures | ChoiceFeatures:
        targets = {self._target_key: data.targets, "label_shares": data.label_shares}
        return self.make_features(
            data, {name: values for name, values in targets.items() if values is not None}, files.cache_dir
        )

    @property
    def learns_shares(self) -> bool:
        """Whether the target of one label is a probability for each."""
        return self.task.head == "classifier" and bool(getattr(self.options, "label_columns", ()))

    @property
    def _weights_given(self) -> bool:
        """Whether rows or labels have weights in the loss of training."""
        return bool(getattr(self.options, "class_weights", "") or getattr(self.options, "positive_weights", ""))

    def _weights(self, targets: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The weight of each label, or of its positive rows, float32 [K], and that of each row [N], or of each of its
        labels [N,K]; `targets` [N] or [N,K] has all rows, each window of a text.
        """
        labels = self.options.labels
        if self.task.head == "multi_label":
            weights = label_weights.positive_weights(
                self.options.positive_weights, labels, targets, "config.options.positive_weights"
            )
            return weights, np.where(targets == 1.0, weights, 1.0).astype(np.float32)
        counts = np.bincount(targets, minlength=len(labels))
        weights = label_weights.class_weights(
            self.options.class_weights, labels, counts, "config.options.class_weights"
        )
        return weights, weights[targets]

    def make_features(
        self, data: LabelledTexts, targets: Mapping[str, np.ndarray], cache_dir: str = ""
    ) -> TextFeatures | ChoiceFeatures:
        """Makes unpadded features of each row, with its target."""
        options = self.options
        return TextFeatures(
            make_features(
                data.text,
                data.text_pair,
                self.tokenizer,
                options.max_seq_length,
                cache_dir,
                options.truncate,
                options.doc_stride,
            ),
            targets,
        )


class TextAnswers(CalibratedAnswers, abc.ABC):
    """Turns logits into metrics and answers."""

    metrics: Sequence[str]  # names in `metrics`; the first one chooses among checkpoints and runs

    @abc.abstractmethod
    def write_set(self, name: str, logits: np.ndarray, output_dir: str) -> str:
        """Writes the answers for one of the sets of `read_tests` from its logits [N,K]; returns the path."""

    def write_table(
        self,
        path: str,
        logits: np.ndarray,
        shown: Callable[[Mapping[str, Any]], object],
        labels: Iterable[object],
        delimiter: str = "\t",
    ) -> str:
        """Writes what is `shown` of each answer, and the probability of each label; returns the path."""
        more = self.calibration.abstention(0.0)
        rows = [
            [
                index,
                shown(answer),
                *(f"{probability:.6f}" for probability in answer.get("probabilities", ())),
                *(answer[name] for name in more),
            ]
            for index, answer in enumerate(map(self.answer, logits))
        ]
        return write_answers(path, rows, [*(f"probability:{label}" for label in labels), *more], delimiter)

    def best_metric(self) -> str:
        """Returns the first metric, with `-` in front of errors."""
        return f"-{self.metrics[0]}" if self.metrics[0].endswith("error") else self.metrics[0]

    @property
    def thresholds(self) -> np.ndarray:
        """The least probability at which each of several labels is assigned, float32 [K]."""
        return np.full(self.task.num_outputs, 0.5, np.float32)

    def measure(self, targets: np.ndarray, logits: np.ndarray, end: str = "") -> dict[str, float]:
        """Computes the task's metrics of logits [N,K]; their names get the suffix `end`."""
        return metrics.measure(self.metrics, targets, logits, end)

    def answer(self, logits: np.ndarray) -> dict[str, Any]:
        """Turns logits [K] into an answer, with the names of the served model."""
        labels = self.options.labels
        if self.task.head == "regression":
            return {"score": float(logits[0])}
        if self.task.head == "multi_label":
            probabilities = scipy.special.expit(logits)
            holds = probabilities >= self.thresholds
            chosen = [labels[number] for number in np.argsort(-logits, kind="stable") if holds[number]]
            return {"labels": chosen, "probabilities": probabilities.tolist()}
        return {"label": labels[int(np.argmax(logits))], **self.probabilities(logits)}

    def probabilities(self, logits: np.ndarray) -> dict[str, Any]:
        """Returns `probabilities` of exclusive classes, and `abstains` if answers may abstain."""
        probabilities = scipy.special.softmax(self.calibration.cooled(logits)).tolist()
        return {"probabilities": probabilities, **self.calibration.abstention(max(probabilities))}


class TextClassification(TaskBase):
    """One label, several labels or a score for one text or two.

    `options` are `TextOptions` with `labels` (empty for scores) and `pairs`; `head` says which of the three it is.
    """

    serving: ClassVar[str] = "official_bert.tasks.texts.served:LABELS"
    data = property(TextData)
    answers = property(TextAnswers)

    @property
    def num_outputs(self) -> int:
        """The number of logits of a row."""
        return 1 if self.head == "regression" else len(self.options.labels)

    def build_model(self) -> keras.Model:
        """Builds encoder, pooler and a linear layer."""
        if not self.num_outputs:
            raise ValueError("config.options.labels: expected the labels; there is no training data to find them in")
        return Classifier.make(
            self.config.model,
            {"num_classes": self.num_outputs, "dropout": self.options.dropout},
            recompute=self.config.training.recompute,
        )

    @property
    def objective(self) -> Objective:
        """Cross-entropy (binary for several labels), or squared error."""
        if self.head == "regression":
            return Score()
        return (SeveralLabels if self.head == "multi_label" else OneLabel)(self.options.label_smoothing)


def _examination() -> Examination:
    return by_name("official_bert.tasks.texts.examination")


@dataclasses.dataclass(frozen=True)
class TextSets:
    """Sets of rows to evaluate on or to answer, one after another, and the evaluation of their logits."""

    task: TextClassification
    sets: Sequence[TextSet]
    source: ExampleSource

    def evaluate(self, predictions: Predictions) -> dict[str, float]:
        """Computes the task's metrics on each set, and calibrates on all of them."""
        measured: dict[str, float] = {}
        every: list[tuple[np.ndarray, np.ndarray]] = []
        for text_set, rows, logits in self._by_set(predictions):
            if len(rows):
                assert text_set.data.targets is not None
                every.append((text_set.data.targets[rows], logits))
                measured |= self.task.answers.measure(*every[-1], text_set.name)
        if (answers := self.task.answers).asked:
            measured |= _examination().tune(self.task.options, answers.tunes, *map(np.concatenate, zip(*every)))
        return measured

    def examine(self, predictions: Predictions) -> list[Section]:
        """Returns report sections for each set, with the thresholds that the evaluation tunes: scores by class,
        calibration, worst mistakes.
        """
        task, examination = self._tuned(predictions), _examination()
        return [
            section
            for text_set, rows, logits in self._by_set(predictions)
            if len(rows)
            for section in examination.examine(task, text_set, rows, logits)
        ]

    def comparable(self, predictions: Predictions) -> dict[str, ComparableAnswers]:
        """Returns the answers to each set of rows, with the thresholds that the evaluation tunes."""
        task, examination = self._tuned(predictions), _examination()
        return {
            text_set.name: examination.comparable(task, text_set, rows, logits)
            for text_set, rows, logits in self._by_set(predictions)
            if len(rows)
        }

    def _tuned(self, predictions: Predictions) -> TextClassification:
        """The task with what an evaluation of these predictions tunes."""
        return self.task.answers.with_tuned(self.task.answers.tuned_options(self.evaluate(predictions)))

    def write(self, predictions: Predictions, output_dir: str) -> list[str]:
        """Writes a file for each set."""
        return [
            self.task.answers.write_set(text_set.name, logits, output_dir)
            for text_set, _, logits in self._by_set(predictions)
        ]

    def write_probabilities(self, predictions: Predictions, output_dir: str) -> list[str]:
        """Writes 2018's `test_results.tsv`: probabilities, or a score, for each row; further sets get files with their
        names.
        """
        paths = []
        for number, (text_set, _, logits) in enumerate(self._by_set(predictions)):
            path = os.path.join(output_dir, f"test_results{f'_{text_set.name}' if number else ''}.tsv")
            with written_whole(path) as file:
                for row in map(self.task.answers.answer, logits):
                    file.write("\t".join(map(str, row.get("probabilities", [row.get("score")]))) + "\n")
            paths.append(path)
        return paths

    def _by_set(self, predictions: Predictions) -> list[tuple[TextSet, np.ndarray, np.ndarray]]:
        """Each set with the numbers of its predicted rows, in order, and their logits [N,K]."""
        examples = self.source.examples
        rows = _by_text(
            self.source.in_order(predictions), examples.texts if isinstance(examples, TextFeatures) else None
        )
        numbers = np.array([number for number, row in enumerate(rows) if row is not None])
        logits = np.stack([row["logits"] for row in rows if row is not None])
        ends = np.cumsum([0, *(len(text_set.data) for text_set in self.sets)])
        bounds = np.searchsorted(numbers, ends)
        return [
            (text_set, numbers[low:high] - start, logits[low:high])
            for text_set, low, high, start in zip(self.sets, bounds, bounds[1:], ends)
        ]


def _by_text(
    rows: Sequence[Mapping[str, np.ndarray] | None], texts: np.ndarray | None
) -> list[Mapping[str, np.ndarray] | None]:
    """Averages the logits of each text's rows, whose texts have the numbers `texts` (None: a row is a text).

    None for texts of which a row was not evaluated.
    """
    if texts is None:
        return list(rows)
    missing = incomplete(rows, texts)
    groups = np.split(np.arange(len(rows)), np.flatnonzero(np.diff(texts)) + 1)
    parts = ([row["logits"] for number in group if (row := rows[number]) is not None] for group in groups)
    return [
        None if texts[group[0]] in missing else {"logits": np.mean(part, axis=0)} for group, part in zip(groups, parts)
    ]
