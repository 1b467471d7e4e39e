"""The published sentence tasks of the paper (4.1; GLUE and XNLI): official files, metrics and submissions."""

import dataclasses
import os
from collections.abc import Sequence
from typing import Literal, Self

import numpy as np
from absl import logging

from official_bert.config import Config, to_dict
from official_bert.data.labelled.labelled_texts import LabelledTexts, TextSet
from official_bert.data.rows import Source
from official_bert.tasks.answers import ConstantAnswers, write_answers
from official_bert.tasks.data import DataFiles, Steps
from official_bert.tasks.task import Head
from official_bert.tasks.texts import glue_files, metrics
from official_bert.tasks.texts.base import LabelOptions, TextAnswers, TextClassification, TextData


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options(LabelOptions):
    """The task and, for XNLI, its languages."""

    dataset: Literal["cola", "sst2", "mrpc", "stsb", "qqp", "mnli", "qnli", "rte", "wnli", "xnli"] = "mrpc"
    """Data set."""
    labels: tuple[str, ...] = ()
    """Filled in: labels in the order of the logits."""
    language: str = "en"
    """Language of evaluation and test (XNLI)."""
    train_language: str = ""
    """Language of the training file, if it is another (XNLI: zero-shot)."""
    majority_class: bool = False
    """Always answer the training data's most frequent label, as the paper does for WNLI."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.majority_class and self.folds:
            raise ValueError("config.options.majority_class: expected no folds with it")
        if self.dataset != "xnli" and (self.language, self.train_language) != ("en", ""):
            raise ValueError(
                f"config.options.language, train_language: expected xnli with them, {self.dataset} has one language"
            )
        if not glue_files.DATASETS[self.dataset].labels and (
            self.class_weights or self.label_smoothing or self.majority_class
        ):
            raise ValueError(
                "config.options.class_weights, label_smoothing, majority_class: expected a data set with labels, "
                f"{self.dataset} has scores"
            )

    @property
    def pairs(self) -> bool:
        """Whether a row has two texts."""
        return len(glue_files.DATASETS[self.dataset].texts) == 2


class GlueData(TextData):
    """The files of a data set."""

    def _reader(self, files: DataFiles) -> glue_files.Reader:
        return glue_files.Reader(
            self.options.dataset, files.data_dir, self.options.language, self.options.train_language, logging.warning
        )

    def sources(self, files: DataFiles) -> dict[str, list[Source]]:
        return self._reader(files).data(files.train_file, files.eval_file)

    def read_train(self, files: DataFiles) -> tuple[Self, LabelledTexts]:
        """Reads the published training file, or `--train_file` with the same columns."""
        return self, self._reader(files).train(files.train_file)

    def read_held_out(self, files: DataFiles) -> list[TextSet]:
        """Reads the published development files, or `--eval_file`."""
        return self._reader(files).held_out(files.eval_file) if files.data_dir or files.eval_file else []

    def read_tests(self, files: DataFiles) -> list[TextSet]:
        """Reads the published test files, or `--predict_file`."""
        return self._reader(files).tests(files.predict_file) if files.data_dir or files.predict_file else []


class GlueAnswers(TextAnswers):
    """A data set's metrics, and submission files for the benchmark's server."""

    @property
    def metrics(self) -> Sequence[str]:  # type: ignore[override]
        return self.task.dataset.metrics

    def input_columns(self) -> dict[str, tuple[str, ...]]:
        return {name: (column,) for name, column in zip(("text", "text_pair"), self.task.dataset.texts)}

    def write_set(self, name: str, logits: np.ndarray, output_dir: str) -> str:
        """Writes `<name>.tsv` in GLUE's format."""
        path = os.path.join(output_dir, f"{name}.tsv")
        labels = glue_files.DATASETS["mnli"].labels if name == "AX" else self.task.dataset.labels
        return write_answers(
            path, enumerate(glue_files.answers(dataclasses.replace(self.task.dataset, labels=labels), logits))
        )

    def constant_answers(self, files: DataFiles, steps: Steps) -> ConstantAnswers | None:
        """Returns, with `majority_class`, the most frequent training label for each row.

        Raises ValueError if there are no rows to evaluate on or to answer.
        """
        if not self.options.majority_class:
            return None
        _, rows = self.task.data.read_rows(files, dataclasses.replace(steps, train=True))
        if not (rows.held_out or rows.tests):
            raise ValueError(
                "config.options.majority_class: expected rows to evaluate on or to answer, got none (no model is "
                "trained)"
            )
        counts = np.bincount(rows.train.targets, minlength=self.task.num_outputs)
        most_frequent = np.eye(self.task.num_outputs, dtype=np.float32)[np.argmax(counts)]
        measured: dict[str, float] = {}
        for text_set in rows.held_out or ():
            logits = np.tile(most_frequent, (len(text_set.data), 1))
            measured |= metrics.measure(self.metrics, text_set.data.targets, logits, text_set.name)

        def write(folder: str) -> list[str]:
            return [
                self.write_set(text_set.name, np.tile(most_frequent, (len(text_set.data), 1)), folder)
                for text_set in rows.tests
            ]

        return ConstantAnswers(measured, write if rows.tests else None)


class Task(TextClassification):
    """A task of GLUE, or XNLI."""

    Options = Options
    refused = dict.fromkeys(
        ("encoding", "header", "delimiter", "file_format"),
        "it reads the published files, TSV in UTF-8; --task=classification reads others",
    )
    data = property(GlueData)
    answers = property(GlueAnswers)

    def __init__(self, config: Config) -> None:
        options = self.read_options(config.options)
        labels = glue_files.DATASETS[options.dataset].labels
        super().__init__(dataclasses.replace(config, options=to_dict(dataclasses.replace(options, labels=labels))))

    @property
    def dataset(self) -> glue_files.Dataset:
        """The files, columns, labels and metrics of the data set."""
        return glue_files.DATASETS[self.options.dataset]

    @property
    def head(self) -> Head:
        return "classifier" if self.dataset.labels else "regression"
