"""The base of tasks that label or score whole texts: features, batches, losses, metrics, answers.

A task reads the rows (`read_train`, `read_held_out`, `read_tests`) and writes the answers (`write_set`).
"""

import abc
import dataclasses
import os
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import scipy.special
import tensorflow as tf

from official_bert.config import check_length, check_rate
from official_bert.data import labelled_texts
from official_bert.data.labelled_texts import LabelledTexts, TextSet
from official_bert.data.sources import ExampleSource
from official_bert.data.text_features import TextFeatures, make_features
from official_bert.files import written_whole
from official_bert.models.classifier import Classifier
from official_bert.tasks.texts import metrics
from official_bert.tasks.texts.served import ServedClassifier, ServedMultiLabel, ServedRegression
from official_bert.training import losses
from official_bert.training.task import DataFiles, Predictions, Resolved, TaskBase

ROWS = ("input_ids", "input_mask", "segment_ids")


@dataclasses.dataclass(frozen=True, kw_only=True)
class TextOptions:
    """Lengths of rows and batches, and dropout."""

    max_seq_length: int = 128
    buckets: tuple[int, ...] = ()  # lengths to which batches are padded; none: to the longest of each
    dropout: float = 0.1  # between pooler and classifier: 0.1 in 2018, whatever the encoder's rate

    def __post_init__(self):
        check_rate(self.dropout, "config.options.dropout")


class TextClassification(TaskBase):
    """One label, several labels or a score for one text or two.

    `options` are `TextOptions` with `labels` (empty for scores) and `pairs`; `head` says which of the three it is.
    """

    served_classes: ClassVar[tuple[type, ...]] = (ServedClassifier, ServedMultiLabel, ServedRegression)
    metrics: Sequence[str]  # names in `metrics`; the first one chooses among checkpoints and runs

    @abc.abstractmethod
    def read_train(self, files: DataFiles) -> tuple["TextClassification", LabelledTexts]:
        """Reads the training rows; returns this task with their labels, and the rows."""

    @abc.abstractmethod
    def read_held_out(self, files: DataFiles) -> list[TextSet]:
        """Reads labelled rows to evaluate on; [] if there are no such files."""

    @abc.abstractmethod
    def read_tests(self, files: DataFiles) -> list[TextSet]:
        """Reads rows to answer; [] if there are no such files."""

    @abc.abstractmethod
    def write_set(self, name: str, logits: np.ndarray, output_dir: str) -> str:
        """Writes the answers for one of the sets of `read_tests` from its logits [N,K]; returns the path."""

    @property
    def num_outputs(self) -> int:
        """Logits for a row."""
        return 1 if self.head == "regression" else len(self.options.labels)

    def build_model(self):
        """Builds encoder, pooler and a linear layer."""
        if not self.num_outputs:
            raise ValueError("config.options.labels: expected the labels; there is no training data to find them in")
        return Classifier.make(self.config.model, {"num_classes": self.num_outputs, "dropout": self.options.dropout},
                               recompute=self.config.training.recompute)

    def losses(self, outputs, batch):
        """Cross-entropy (binary for several labels), or squared error."""
        logits, weights = outputs["logits"], batch["example_weights"]
        if self.head == "regression":
            return {"loss": losses.squared_error(logits[:, 0], batch["scores"], weights)}
        loss = losses.binary_cross_entropy if self.head == "multi_label" else losses.cross_entropy
        return {"loss": loss(logits, batch["label_ids"], weights)}

    @property
    def counter_names(self):
        return ("accuracy",) if self.head in ("classifier", "choice") else ()

    def counters(self, outputs, batch):
        """Accuracy, if there is one label."""
        if not self.counter_names:
            return {}
        return {"accuracy": losses.accuracy(outputs["logits"], batch["label_ids"], batch["example_weights"])}

    def predictions(self, outputs, batch):
        return {"logits": tf.cast(outputs["logits"], tf.float32)}

    def batch_spec(self, batch_size):
        """Rows at their full length."""
        rows = {name: tf.TensorSpec((batch_size, self.options.max_seq_length), tf.int32) for name in ROWS}
        target = {"classifier": tf.TensorSpec((batch_size,), tf.int32), "regression": tf.TensorSpec((batch_size,), tf.float32),
                  "multi_label": tf.TensorSpec((batch_size, self.num_outputs), tf.float32)}[self.head]
        return rows | {self._target_key: target, "example_weights": tf.TensorSpec((batch_size,), tf.float32)}

    @property
    def _target_key(self) -> str:
        return "scores" if self.head == "regression" else "label_ids"

    def read(self, files, steps, model):
        """Reads training rows, bucketed by length and ordered by (seed, epoch), rows held out and rows to answer.

        Raises ValueError if nearly all rows held out are training rows.
        """
        check_length(self.options.max_seq_length, self.config.model)
        task, train = self.read_train(files) if steps.train else (self, None)
        held_out = task.read_held_out(files) if steps.evaluate else []
        for one in held_out if train is not None else []:
            labelled_texts.check_held_out(train, one.data, files.refuse_same)
        tests = task.read_tests(files) if steps.predict else []
        model = model or task.build_model()
        return Resolved(task=task, model=model, train=None if train is None else task.make_source(train, files, training=True),
                        held_out=task.make_sets(held_out, files) if held_out else None,
                        tests=task.make_sets(tests, files) if tests else None)

    def make_sets(self, sets: Sequence[TextSet], files: DataFiles) -> "TextSets":
        """Makes the batches of sets, one after another."""
        return TextSets(self, sets, self.make_source(labelled_texts.joined(sets), files))

    def make_source(self, data: LabelledTexts, files: DataFiles, training: bool = False) -> ExampleSource:
        """Makes batches of rows; evaluation also batches rows of similar length, unless it evaluates only the first few."""
        settings = self.config.training
        targets = {} if data.targets is None else {self._target_key: data.targets}
        return ExampleSource(self.make_features(data, targets, files.cache_dir),
                             settings.batch_size if training else settings.eval_batch_size, self.config.seed, training,
                             self.options.buckets, by_length=not settings.eval_steps)

    def make_features(self, data: LabelledTexts, targets: Mapping[str, np.ndarray],
                      cache_dir: str = "") -> Sequence[Mapping[str, np.ndarray]]:
        """Makes unpadded features of each row, with its target."""
        return TextFeatures(make_features(data.text, data.text_pair, self.tokenizer, self.options.max_seq_length, cache_dir), targets)

    def best_metric(self):
        """The first metric; for errors, less is better."""
        return f"-{self.metrics[0]}" if self.metrics[0].endswith("error") else self.metrics[0]

    def served(self, model, options):
        kind = {"multi_label": ServedMultiLabel, "regression": ServedRegression}.get(self.head, ServedClassifier)
        return kind.make(self, model, options, labels=self.options.labels, pairs=self.options.pairs)

    def answer(self, logits: np.ndarray) -> dict[str, Any]:
        """Turns logits [K] into an answer, with the names of the served model."""
        labels = self.options.labels
        if self.head == "regression":
            return {"score": float(logits[0])}
        if self.head == "multi_label":
            chosen = [labels[number] for number in np.argsort(-logits, kind="stable") if logits[number] >= 0.0]
            return {"labels": chosen, "probabilities": scipy.special.expit(logits).tolist()}
        return {"label": labels[int(np.argmax(logits))], "probabilities": scipy.special.softmax(logits).tolist()}


@dataclasses.dataclass(frozen=True)
class TextSets:
    """Sets of rows to evaluate on or to answer, one after another, and the use of their logits."""

    task: TextClassification
    sets: Sequence[TextSet]
    source: ExampleSource

    def evaluate(self, predictions: Predictions) -> dict[str, float]:
        """Computes the task's metrics on each set."""
        measured: dict[str, float] = {}
        for one, rows, logits in self._by_set(predictions):
            if len(rows):
                assert one.data.targets is not None
                measured |= metrics.measure(self.task.metrics, one.data.targets[rows], logits, one.name)
        return measured

    def write(self, predictions: Predictions, output_dir: str) -> list[str]:
        """Writes a file for each set."""
        return [self.task.write_set(one.name, logits, output_dir) for one, _, logits in self._by_set(predictions)]

    def write_probabilities(self, predictions: Predictions, output_dir: str) -> list[str]:
        """Writes 2018's `test_results.tsv`: probabilities, or a score, for each row; further sets get files with their names."""
        paths = []
        for number, (one, _, logits) in enumerate(self._by_set(predictions)):
            path = os.path.join(output_dir, f"test_results{f'_{one.name}' if number else ''}.tsv")
            with written_whole(path) as file:
                for row in map(self.task.answer, logits):
                    file.write("\t".join(map(str, row.get("probabilities", [row.get("score")]))) + "\n")
            paths.append(path)
        return paths

    def _by_set(self, predictions: Predictions) -> list[tuple[TextSet, np.ndarray, np.ndarray]]:
        """Each set with the numbers of its predicted rows, in order, and their logits [N,K]."""
        found = self.source.in_order(predictions)
        numbers = np.array([number for number, row in enumerate(found) if row is not None])
        logits = np.stack([row["logits"] for row in found if row is not None])
        ends = np.cumsum([0, *(len(one.data) for one in self.sets)])
        bounds = np.searchsorted(numbers, ends)
        return [(one, numbers[low:high] - start, logits[low:high])
                for one, low, high, start in zip(self.sets, bounds, bounds[1:], ends)]
