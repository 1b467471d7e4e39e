"""What tasks share that say something about whole texts: features, sources, losses, metrics, answers.

A task adds which rows there are (`train_data`, `held_out_parts`, `test_parts`) and how answers are written down.
"""

import abc
import dataclasses
import os
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import scipy.special
import tensorflow as tf

from official_bert.config import check_length
from official_bert.data.sources import ExampleSource
from official_bert.data.text_features import TextFeatures, make_features
from official_bert.files import written_whole
from official_bert.models.classifier import make_classifier
from official_bert.tasks.texts import labelled_texts, metrics
from official_bert.tasks.texts.labelled_texts import LabelledTexts, Part
from official_bert.tasks.texts.served import ServedClassifier, ServedMultiLabel, ServedRegression
from official_bert.training import losses
from official_bert.training.task import TaskBase

ROWS = ("input_ids", "input_mask", "segment_ids")


@dataclasses.dataclass(frozen=True, kw_only=True)
class TextOptions:
    """How texts become rows."""

    max_seq_length: int = 128
    buckets: tuple[int, ...] = ()  # lengths to which batches are padded; none: to the longest of each
    dropout: float = 0.1  # between pooler and classifier: 0.1 in 2018 whatever the encoder's


class TextClassification(TaskBase):
    """One label, several labels or a score for a text or two.

    `options` are `TextOptions` with `labels` (empty for scores) and `pairs`; `head` says which of the three it is.
    """

    served_classes: ClassVar[tuple[type, ...]] = (ServedClassifier, ServedMultiLabel, ServedRegression)
    metrics: Sequence[str]  # of task_metrics; the first chooses among checkpoints and runs

    def __init__(self, config, files=None):
        super().__init__(config, files)
        self._train: LabelledTexts | None = None
        self._held_out: Any = None  # (parts, their source), once asked for
        self._tests: Any = None

    @abc.abstractmethod
    def train_data(self) -> LabelledTexts:
        """The training rows; what they tell of the labels goes into `resolve`."""

    @abc.abstractmethod
    def held_out_parts(self) -> list[Part]:
        """Labelled rows to evaluate on; none where there are no such files."""

    @abc.abstractmethod
    def test_parts(self) -> list[Part]:
        """Rows to answer; none where there are no such files."""

    @abc.abstractmethod
    def write_part(self, name: str, logits: np.ndarray, output_dir: str) -> str:
        """Writes the answers for one of the `test_parts` from its logits [N,K]; the path."""

    @property
    def num_outputs(self) -> int:
        """Logits for a row."""
        return 1 if self.head == "regression" else len(self.options.labels)

    def build_model(self):
        """Encoder, pooler and a linear layer."""
        if not self.num_outputs:
            raise ValueError("config.options.labels: expected the labels; there is no training data to find them in")
        return make_classifier(self.config.model, self.num_outputs, self.options.dropout,
                               recompute=self.config.training.recompute)

    def losses(self, outputs, batch):
        """Cross-entropy, that of each label by itself, or the squared error."""
        logits, weights = outputs["logits"], batch["example_weights"]
        if self.head == "regression":
            return {"loss": losses.squared_error(logits[:, 0], batch["scores"], weights)}
        loss = losses.binary_cross_entropy if self.head == "multi_label" else losses.cross_entropy
        return {"loss": loss(logits, batch["label_ids"], weights)}

    def counters(self, outputs, batch):
        """Accuracy, where there is one label."""
        if self.head not in ("classifier", "choice"):
            return {}
        return {"accuracy": losses.accuracy(outputs["logits"], batch["label_ids"], batch["example_weights"])}

    def predictions(self, outputs, batch):
        """The logits."""
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

    def train_source(self):
        """The training rows, bucketed by length, in an order of (seed, epoch)."""
        if self._train is None:
            self._train = self.train_data()
        return self._source(self._train, self.config.training.batch_size, shuffle=True)

    def eval_source(self):
        """The rows held out; ValueError where they are the training rows."""
        if self._held_out is None and (parts := self.held_out_parts()):
            for part in parts if self._train is not None else []:
                labelled_texts.check_held_out(self._train, part.data)
            self._held_out = (parts, self._source(labelled_texts.joined(parts), self.config.training.eval_batch_size))
        return self._held_out and self._held_out[1]

    def predict_source(self):
        """The rows to answer."""
        if self._tests is None and (parts := self.test_parts()):
            self._tests = (parts, self._source(labelled_texts.joined(parts), self.config.training.eval_batch_size))
        return self._tests and self._tests[1]

    def _source(self, data: LabelledTexts, batch_size: int, shuffle: bool = False) -> ExampleSource:
        """Batches of rows. In evaluation, too, rows of similar length come together, unless only the first few are evaluated."""
        check_length(self.options.max_seq_length, self.config.model)
        targets = {} if data.targets is None else {self._target_key: data.targets}
        return ExampleSource(self.make_features(data, targets), batch_size, self.config.seed, shuffle, self.options.buckets,
                             by_length=not self.config.training.eval_steps)

    def make_features(self, data: LabelledTexts, targets: Mapping[str, np.ndarray]) -> Sequence[Mapping[str, np.ndarray]]:
        """Unpadded features of each row, with its target."""
        return TextFeatures(make_features(data.text, data.text_pair, self.tokenizer, self.options.max_seq_length,
                                          self.files.cache_dir), targets)

    def evaluate(self, predictions):
        """The task's metrics on each part held out."""
        measured: dict[str, float] = {}
        parts, source = self._held_out
        for part, rows, logits in _by_part(parts, source, predictions):
            if len(rows):
                measured |= metrics.measure(self.metrics, part.data.targets[rows], logits, part.name)
        return measured

    def best_metric(self):
        """The first of the metrics; less is better of an error."""
        return f"-{self.metrics[0]}" if self.metrics[0].endswith("error") else self.metrics[0]

    def write_predictions(self, predictions, output_dir):
        """A file for each of the `test_parts`."""
        parts, source = self._tests
        return [self.write_part(part.name, logits, output_dir) for part, _, logits in _by_part(parts, source, predictions)]

    def write_probabilities(self, predictions: Sequence[Mapping[str, Any]], output_dir: str) -> list[str]:
        """2018's `test_results.tsv`: probabilities, or a score, for each row; files of further parts have their names in theirs."""
        paths = []
        parts, source = self._tests
        for number, (part, _, logits) in enumerate(_by_part(parts, source, predictions)):
            path = os.path.join(output_dir, f"test_results{f'_{part.name}' if number else ''}.tsv")
            with written_whole(path) as file:
                for row in map(self.answer, logits):
                    file.write("\t".join(map(str, row.get("probabilities", [row.get("score")]))) + "\n")
            paths.append(path)
        return paths

    def served(self, model, options):
        """One label, several, or a score."""
        kind = {"multi_label": ServedMultiLabel, "regression": ServedRegression}.get(self.head, ServedClassifier)
        return kind.make(self, model, options, labels=self.options.labels, pairs=self.options.pairs)

    def answer(self, logits: np.ndarray) -> dict[str, Any]:
        """What logits [K] say, under the names of the served model."""
        labels = self.options.labels
        if self.head == "regression":
            return {"score": float(logits[0])}
        if self.head == "multi_label":
            chosen = [labels[number] for number in np.argsort(-logits, kind="stable") if logits[number] >= 0.0]
            return {"labels": chosen, "probabilities": scipy.special.expit(logits).tolist()}
        return {"label": labels[int(np.argmax(logits))], "probabilities": scipy.special.softmax(logits).tolist()}


def _by_part(parts: Sequence[Part], source: ExampleSource,
             predictions: Sequence[Mapping[str, Any]]) -> list[tuple[Part, np.ndarray, np.ndarray]]:
    """Each part with the numbers of its rows that were predicted, in their order, and their logits [N,K]."""
    found = source.in_order(predictions)
    numbers = np.array([number for number, row in enumerate(found) if row is not None])
    logits = np.stack([row["logits"] for row in found if row is not None])
    ends = np.cumsum([0, *(len(part.data) for part in parts)])
    bounds = np.searchsorted(numbers, ends)
    return [(part, numbers[low:high] - start, logits[low:high])
            for part, low, high, start in zip(parts, bounds, bounds[1:], ends)]
