"""Embeddings for search and similarity: pairs of texts that belong together are near each other (Reimers and Gurevych 2019).

Files are tables with a column for each text: a question and its answer, a sentence and its paraphrase. With a column of scores, both texts
are compared as in STS.
"""

import csv
import dataclasses
import math
import os
from collections.abc import Sequence
from typing import Literal

import numpy as np
import tensorflow as tf
from absl import logging
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from official_bert.config import check_used
from official_bert.data import labelled_texts, splits, tables
from official_bert.data.labelled_texts import LabelledTexts
from official_bert.data.sources import ExampleSource
from official_bert.data.splits import SplitOptions
from official_bert.data.tables import Format, Source, checked_delimiter, read_table
from official_bert.data.text_features import ChoiceFeatures, TextFeatures, make_features
from official_bert.files import written_whole
from official_bert.models.bi_encoder import BiEncoder, Pooling
from official_bert.models.encoder import INPUTS
from official_bert.serving.served_model import ServedEmbeddings
from official_bert.tasks.retrieval import metrics
from official_bert.training import losses
from official_bert.training.distribution import check_batch
from official_bert.training.task import DataFiles, Predictions, Resolved, TaskBase

TEXTS = 2  # of a row
TWO_COLUMNS = "config.options.text_column, text_pair_column: expected two columns"
FILES = {name: tuple(f"{name}{suffix}" for suffix in tables.SUFFIXES) for name in ("train", "dev", "test")}  # of a --data_dir


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options(SplitOptions):
    """The columns of the files, the loss, and the vectors."""

    max_seq_length: int = 128  # of each text
    buckets: tuple[int, ...] = ()  # lengths to which batches are padded; none: to the longest of each
    text_column: str = "text"
    text_pair_column: str = "text_pair"
    score_column: str = ""  # of the evaluation file: compare scores with cosines; "": search for the second texts
    train_on: Literal["pairs", "scores"] = "pairs"  # rows that belong together, or rows with scores of similarity
    score_range: tuple[float, ...] = ()  # the scores of cosines 0 and 1, for training on scores; of STS-B, 0 and 5
    group_size: int = 32  # rows in which the second text of each is to be found; replicas and micro-batches hold whole groups
    temperature: float = 0.05  # divides the cosines
    pooling: Pooling = "mean"
    empty_text: labelled_texts.EmptyText = "refuse"
    file_format: Format = "auto"  # by the file's suffix
    delimiter: str = ""  # between columns; "": a tab in TSV, a comma in CSV

    def __post_init__(self):
        super().__post_init__()
        checked_delimiter(self.delimiter)
        if self.group_size < 2:
            raise ValueError(f"config.options.group_size: expected at least 2 rows, got {self.group_size}")
        if not 0.0 < self.temperature < math.inf:
            raise ValueError(f"config.options.temperature: expected a positive number, got {self.temperature}")
        if self.score_range and (len(self.score_range) != 2 or not self.score_range[0] < self.score_range[1]):
            raise ValueError(f"config.options.score_range: expected lowest and highest score, got {list(self.score_range)}")
        if self.train_on == "scores" and not (self.score_column and self.score_range):
            raise ValueError("config.options.train_on: scores: expected options.score_column and score_range (the lowest and the highest "
                             "score; for STS-B [0,5]) beside it")
        check_used(self, ["temperature", "group_size"], "options.train_on: pairs", self.train_on == "pairs")
        if not (self.text_column and self.text_pair_column):
            raise ValueError(f"{TWO_COLUMNS}, got {self.text_column!r} and {self.text_pair_column!r}")


class Task(TaskBase):
    """A vector for each text: rows [B,2,S], `[CLS] text [SEP]` for each of both texts."""

    Options = Options
    head = "embeddings"
    served_classes = (ServedEmbeddings,)

    def build_model(self):
        """Builds an encoder without a head."""
        return BiEncoder.make(self.config.model, {"pooling": self.options.pooling}, recompute=self.config.training.recompute)

    def losses(self, outputs, batch):
        """Cross-entropy of the own second text among those of the row's group; with scores, their squared difference from cosines."""
        vectors, weights = outputs["embedding"], batch["example_weights"]
        if "scores" in batch:
            return {"loss": losses.squared_error(tf.reduce_sum(vectors[:, 0] * vectors[:, 1], axis=-1), batch["scores"], weights)}
        return {"loss": losses.cross_entropy(*self._logits(outputs, batch), weights)}

    @property
    def counter_names(self):
        return () if self.options.train_on == "scores" else ("accuracy",)

    def counters(self, outputs, batch):
        """The share of rows whose own second text is the nearest of the group."""
        if "scores" in batch:
            return {}
        return {"accuracy": losses.accuracy(*self._logits(outputs, batch), batch["example_weights"])}

    def _logits(self, outputs, batch) -> tuple[tf.Tensor, tf.Tensor]:
        return losses.group_logits(outputs["embedding"], batch["text_numbers"], batch["example_weights"], self.options.group_size,
                                   self.options.temperature)

    def predictions(self, outputs, batch):
        return {"embedding": outputs["embedding"]}

    def batch_spec(self, batch_size):
        """Rows at their full length."""
        rows = {name: tf.TensorSpec((batch_size, TEXTS, self.options.max_seq_length), tf.int32) for name in INPUTS}
        target = ({"scores": tf.TensorSpec((batch_size,), tf.float32)} if self.options.train_on == "scores" else
                  {"text_numbers": tf.TensorSpec((batch_size, TEXTS), tf.int32)})
        return rows | target | {"example_weights": tf.TensorSpec((batch_size,), tf.float32)}

    def best_metric(self):
        """The correlation with the scores, or the mean reciprocal rank."""
        return "spearman" if self.options.score_column else "mrr"

    def data(self, files):
        return {"train": [files.path(files.train_file, FILES["train"])], "eval": [files.path(files.eval_file, FILES["dev"])]}

    def input_columns(self):
        return {"text": (self.options.text_column,)}

    def read(self, files, steps, model):
        """Reads the pairs to train on, bucketed by length and ordered by (seed, epoch), pairs held out and pairs to compare.

        Raises ValueError if nearly all pairs held out are training pairs.
        """
        splits.check_eval_file(self.options, files.eval_file)
        eval_path = files.path(files.eval_file, FILES["dev"]) if steps.evaluate and not self.options.folds else ""
        train_path = files.training_path(FILES["train"]) if steps.train else files.path(files.train_file, FILES["train"])
        divided = steps.evaluate and not eval_path
        train = self._read(train_path, self.options.train_on == "scores") if steps.train or (divided and train_path) else None
        held_out = self._read(eval_path, bool(self.options.score_column)) if eval_path else None
        if train and held_out:
            labelled_texts.check_held_out(train, held_out, files.refuse_same)
        notes: tuple[str, ...] = ()
        if train and self.options.divides(divided):
            parts = self._divide(train, divided)
            if divided and len(parts.held_out):
                held_out = self._read(train_path, bool(self.options.score_column)).rows(parts.held_out)
            train, notes = train.rows(parts.train), parts.notes
        predict_path = files.path(files.predict_file, FILES["test"]) if steps.predict else ""
        tests = self._read(predict_path, scored=False, empty="keep") if predict_path else None
        return Resolved(task=self, model=model or self.build_model(),
                        train=self._make_source(train, files, training=True) if train and steps.train else None,
                        held_out=Pairs(held_out, self._make_source(held_out, files)) if held_out else None,
                        tests=Pairs(tests, self._make_source(tests, files)) if tests else None, notes=notes)

    def _divide(self, data: LabelledTexts, hold_out: bool) -> splits.Parts:
        """Divides pairs such that pairs with a text in common stay together; tenths of the scores are the strata."""
        assert data.text_pair is not None
        both = number_texts([text for pair in zip(data.text, data.text_pair) for text in pair])
        ones = np.ones(len(both), np.int8)
        common = connected_components(coo_array((ones, (both[:, 0], both[:, 1])), shape=(both.max() + 1,) * 2), directed=False)[1]
        strata = [0] * len(both) if data.targets is None else splits.bins(data.targets)
        return splits.divide(self.options, common[both[:, 0]].tolist(), strata, hold_out, data.path)

    def check(self, steps):
        """Also refuses batches whose part for a replica, or a micro-batch of it, would cut a group, and one column for both texts.

        Raw texts have vectors by themselves, those of the second column too.
        """
        super().check(steps)
        settings, options = self.config.training, self.options
        if options.text_column == options.text_pair_column:
            raise ValueError(f"{TWO_COLUMNS}, got {options.text_column!r} twice")
        wanted = {"batch_size": (steps.train and options.train_on == "pairs", settings.accumulation_steps),
                  "eval_batch_size": (steps.evaluate and not options.score_column, 1)}
        for key, (used, micro_batches) in wanted.items():
            rows = check_batch(key, getattr(settings, key), tf.distribute.get_strategy(), micro_batches) if used else 0
            if rows % options.group_size:
                raise ValueError(f"config.training.{key}: expected whole groups of options.group_size = {options.group_size} rows in each "
                                 f"micro-batch of each replica, got {rows} rows there ({getattr(settings, key)} in the batch)")

    def _read(self, path: Source, scored: bool, empty: labelled_texts.EmptyText | None = None) -> LabelledTexts:
        options = self.options
        texts = (options.text_column, options.text_pair_column)
        table = read_table(path, [*texts, *([options.score_column] if scored else [])], form=options.file_format,
                           delimiter=options.delimiter)
        table = labelled_texts.without_empty(table, texts, empty or options.empty_text, logging.warning)
        first, second = (labelled_texts.texts(table, name) for name in texts)
        return LabelledTexts(str(path), first, second,
                             labelled_texts.scores(table, options.score_column, *options.score_range) if scored else None)

    def _make_source(self, data: LabelledTexts, files: DataFiles, training: bool = False) -> ExampleSource:
        settings = self.config.training
        assert data.text_pair is not None
        both = [text for pair in zip(data.text, data.text_pair) for text in pair]
        extra = {"text_numbers": number_texts(both)} if data.targets is None else {"scores": self._cosines(data.targets)}
        arrays = make_features(both, None, self.tokenizer, self.options.max_seq_length, files.cache_dir)
        return ExampleSource(ChoiceFeatures(TextFeatures(arrays), TEXTS, extra),
                             settings.batch_size if training else settings.eval_batch_size, self.config.seed, training,
                             self.options.buckets, by_length=not settings.eval_steps)

    def _cosines(self, scores: np.ndarray) -> np.ndarray:
        """Scales scores to 0 to 1, float32 [N]; without `score_range`, which only their correlation can do, by those that are there."""
        low, high = self.options.score_range or (scores.min(), scores.max())
        return (scores - np.float32(low)) / np.float32(high - low or 1.0)

    def served(self, model, options):
        return ServedEmbeddings.make(self, model.encoder, options, pooling=self.options.pooling)


def number_texts(both: Sequence[str]) -> np.ndarray:
    """Numbers texts, two a row, int32 [N,2]: equal texts have equal numbers."""
    numbers: dict[str, int] = {}
    return np.array([numbers.setdefault(text, len(numbers)) for text in both], np.int32).reshape(-1, TEXTS)


@dataclasses.dataclass(frozen=True)
class Pairs:
    """Pairs to evaluate on or to compare, and the use of their vectors."""

    data: LabelledTexts
    source: ExampleSource

    def evaluate(self, predictions: Predictions) -> dict[str, float]:
        """Computes the correlation with the scores, or the metrics of search."""
        rows, vectors = self._vectors(predictions)
        if self.data.targets is not None:
            return metrics.similarity(vectors, self.data.targets[rows])
        return metrics.search(vectors, np.stack([self.source.examples[row]["text_numbers"] for row in rows]))

    def write(self, predictions: Predictions, output_dir: str) -> list[str]:
        """Writes `predictions.tsv`: the cosine of the two texts of each row."""
        path = os.path.join(output_dir, "predictions.tsv")
        rows, vectors = self._vectors(predictions)
        with written_whole(path) as file:
            writer = csv.writer(file, delimiter="\t", lineterminator="\n")
            writer.writerow(["index", "prediction"])
            writer.writerows([row, f"{np.dot(*both):.6f}"] for row, both in zip(rows, vectors))
        return [path]

    def _vectors(self, predictions: Predictions) -> tuple[np.ndarray, np.ndarray]:
        """The numbers of the predicted rows, in order, and their vectors [N,2,D]."""
        found = self.source.in_order(predictions)
        rows = np.array([number for number, row in enumerate(found) if row is not None])
        return rows, np.stack([found[row]["embedding"] for row in rows])  # type: ignore[index]
