"""The published sentence tasks of the paper (4.1; GLUE and XNLI): official files, metrics and files to hand in."""

import dataclasses
import os
from typing import Literal

import numpy as np
from absl import logging

from official_bert.tasks.texts import glue_files
from official_bert.tasks.texts.base import TextClassification, TextOptions


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options(TextOptions):
    """Which of the tasks."""

    dataset: Literal["cola", "sst2", "mrpc", "stsb", "qqp", "mnli", "qnli", "rte", "wnli", "xnli"] = "mrpc"
    labels: tuple[str, ...] = ()  # filled in: in the order of the logits
    language: str = "en"  # XNLI: of evaluation and test
    train_language: str = ""  # XNLI: of the training file, where it is another (zero-shot)
    majority_class: bool = False  # answer the training data's most frequent label always (what the paper hands in for WNLI)

    @property
    def pairs(self) -> bool:
        """Whether a row has two texts."""
        return len(glue_files.DATASETS[self.dataset].texts) == 2


class Task(TextClassification):
    """A task of GLUE, or XNLI."""

    Options = Options

    def __init__(self, config, files=None):
        super().__init__(config, files)
        self.dataset = glue_files.DATASETS[self.options.dataset]
        self.resolve(labels=self.dataset.labels)
        self.head = "classifier" if self.dataset.labels else "regression"
        self.metrics = self.dataset.metrics
        self.reader = glue_files.Reader(self.options.dataset, self.files.data_dir, self.options.language, self.options.train_language,
                                  logging.warning)

    def train_data(self):
        """The published training file, or `--train_file` in its columns."""
        return self.reader.train(self.files.train_file)

    def held_out_parts(self):
        """The published development files, or `--eval_file`."""
        return self.reader.held_out(self.files.eval_file) if self.files.data_dir or self.files.eval_file else []

    def test_parts(self):
        """The published test files, or `--predict_file`."""
        return self.reader.tests(self.files.predict_file) if self.files.data_dir or self.files.predict_file else []

    def write_part(self, name, logits, output_dir):
        """`<name>.tsv` as GLUE wants it."""
        path = os.path.join(output_dir, f"{name}.tsv")
        labels = glue_files.DATASETS["mnli"].labels if name == "AX" else self.dataset.labels
        return glue_files.write_submission(path, glue_files.answers(dataclasses.replace(self.dataset, labels=labels), logits))

    def constant_predictions(self, source):
        """With `majority_class`: the most frequent label of the training data for each row, and no model."""
        if not self.options.majority_class:
            return None
        counts = np.bincount(self.train_data().targets, minlength=self.num_outputs)
        logits = np.eye(self.num_outputs, dtype=np.float32)[np.argmax(counts)]
        return [{"logits": logits}] * len(source.examples)
