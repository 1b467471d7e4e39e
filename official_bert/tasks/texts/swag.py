"""SWAG: the right one of four endings of a sentence (paper 4.4). An ending's score is a vector's product with [CLS]."""

import csv
import dataclasses
import os

import numpy as np
import scipy.special
import tensorflow as tf
from absl import logging

from official_bert.data import labelled_texts
from official_bert.data.labelled_texts import LabelledTexts, TextSet
from official_bert.data.tables import Source, Table, read_table
from official_bert.data.text_features import ChoiceFeatures, TextFeatures, make_features
from official_bert.files import written_whole
from official_bert.models.classifier import ChoiceClassifier
from official_bert.tasks.texts.base import ROWS, TextClassification, TextOptions
from official_bert.tasks.texts.served import ServedChoice
from official_bert.training.task import DataFiles

CHOICES = 4
ENDINGS = tuple(f"ending{number}" for number in range(CHOICES))
COLUMNS = ("sent1", "sent2", *ENDINGS)  # a sentence, the beginning of the next one, its possible endings
FILES = {"train": "train.csv", "dev": "val.csv", "test": "test.csv"}  # of a --data_dir


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options(TextOptions):
    """The options of all tasks on texts."""


class Task(TextClassification):
    """Rows [B,4,S]: `[CLS] sent1 [SEP] sent2 ending [SEP]` for each ending."""

    Options = Options
    head = "choice"
    served_classes = (ServedChoice,)
    metrics = ("accuracy",)
    num_outputs = CHOICES

    def build_model(self):
        """Builds encoder, pooler and one vector."""
        return ChoiceClassifier.make(self.config.model, {"dropout": self.options.dropout}, recompute=self.config.training.recompute)

    def data(self, files):
        return {"train": [_path("train", files.train_file, files)], "eval": [_path("dev", files.eval_file, files)]}

    def input_columns(self):
        return {"text": COLUMNS[:1], "choices": COLUMNS[1:]}

    def read_train(self, files):
        """Reads `--train_file`, or `train.csv` in `--data_dir`."""
        if not (path := _path("train", files.train_file, files)):
            raise ValueError(f"expected training data: --train_file, or --data_dir with {FILES['train']}")
        return self, self._read(path, labelled=True)

    def read_held_out(self, files):
        """Reads `--eval_file`, or `val.csv` in `--data_dir`."""
        path = _path("dev", files.eval_file, files)
        return [TextSet("", self._read(path, labelled=True))] if path else []

    def read_tests(self, files):
        """Reads `--predict_file`, or `test.csv` in `--data_dir`."""
        path = _path("test", files.predict_file, files)
        return [TextSet("predictions", self._read(path, labelled=False))] if path else []

    def _read(self, path: Source, labelled: bool) -> LabelledTexts:
        table = read_table(path, [*COLUMNS, *(["label"] if labelled else [])])
        table = labelled_texts.without_empty(table, ("sent1", *ENDINGS), "keep", logging.warning)
        targets = labelled_texts.label_ids(table, "label", [str(number) for number in range(CHOICES)]) if labelled else None
        return LabelledTexts(str(path), labelled_texts.texts(table, "sent1"), None, targets, _endings(table))

    def make_features(self, data, targets, cache_dir=""):
        """Four rows for each text."""
        first = [text for text in data.text for _ in range(CHOICES)]
        second = [choice for choices in data.choices for choice in choices]
        arrays = make_features(first, second, self.tokenizer, self.options.max_seq_length, cache_dir)
        return ChoiceFeatures(TextFeatures(arrays), CHOICES, targets)

    def batch_spec(self, batch_size):
        """Rows at their full length."""
        rows = {name: tf.TensorSpec((batch_size, CHOICES, self.options.max_seq_length), tf.int32) for name in ROWS}
        return rows | {"label_ids": tf.TensorSpec((batch_size,), tf.int32),
                       "example_weights": tf.TensorSpec((batch_size,), tf.float32)}

    def served(self, model, options):
        return ServedChoice.make(self, model, options)

    def answer(self, logits):
        """Returns `choice`, from 0, and `probabilities`."""
        return {"choice": int(np.argmax(logits)), "probabilities": scipy.special.softmax(logits).tolist()}

    def write_set(self, name, logits, output_dir):
        """Writes `predictions.csv`: the number of the ending, and the probability of each."""
        path = os.path.join(output_dir, f"{name}.csv")
        with written_whole(path) as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(["index", "prediction", *(f"probability:{ending}" for ending in ENDINGS)])
            for index, answer in enumerate(map(self.answer, logits)):
                writer.writerow([index, answer["choice"], *(f"{value:.6f}" for value in answer["probabilities"])])
        return path


def _path(which: str, given: Source, files: DataFiles) -> Source:
    return given or (os.path.join(files.data_dir, FILES[which]) if files.data_dir else "")


def _endings(table: Table) -> list[tuple[str, ...]]:
    """The possible next sentences: the beginning with each ending."""
    columns = [labelled_texts.texts(table, name) for name in COLUMNS[1:]]
    return [tuple(f"{begins} {ending}".strip() for ending in endings) for begins, *endings in zip(*columns)]
