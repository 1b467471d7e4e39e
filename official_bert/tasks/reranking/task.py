"""Reranking: one score for a query and a passage that are read together (a cross-encoder; Nogueira and Cho 2019).

It reads what a search found first, and puts the passages into a better order.
"""

import csv
import dataclasses
import os
from collections.abc import Sequence
from typing import Literal

import numpy as np
import tensorflow as tf
from absl import logging

from official_bert.data import labelled_texts, splits, tables
from official_bert.data.labelled_texts import LabelledTexts
from official_bert.data.search import measures
from official_bert.data.search.bm25 import nearest_by_words
from official_bert.data.search.collections import UnknownIds, check_options, files_of, is_collection, read_collection
from official_bert.data.search.rows import Candidates, SearchColumns, described_pairs, read_candidates, read_rows
from official_bert.data.sources import ExampleSource
from official_bert.data.splits import SplitOptions
from official_bert.data.tables import Source, TableOptions
from official_bert.data.text_features import ChoiceFeatures, TextFeatures, make_features
from official_bert.fields import Count, Natural, Rate, check_used
from official_bert.files import written_whole
from official_bert.models.classifier import ChoiceClassifier
from official_bert.reports.sections import Section
from official_bert.tasks.reranking.served import ServedReranker
from official_bert.training import ranking_losses
from official_bert.training.task import INSPECTOR, DataFiles, Predictions, Resolved, TaskBase

FILES = {name: (*(f"{name}{suffix}" for suffix in tables.SUFFIXES), f"qrels/{name}.tsv") for name in ("train", "dev")}  # of a --data_dir
TEST_FILES = tuple(f"test{suffix}" for suffix in tables.SUFFIXES)
LOSSES = {"pointwise": ranking_losses.pointwise, "pairwise": ranking_losses.pairwise, "listwise": ranking_losses.listwise}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options(SplitOptions, TableOptions):
    """The columns of the files, and the loss."""

    max_seq_length: int = 256
    """Most tokens of a query with a passage."""
    buckets: tuple[int, ...] = ()
    """Lengths to which batches are padded; none: the longest row of each batch."""
    text_column: str = "text"
    """Column of the query."""
    text_pair_column: str = "text_pair"
    """Column of the passage."""
    negative_columns: tuple[str, ...] = ()
    """Columns of passages that do not answer the query; a cell is a text or a list of texts."""
    most_negatives: Natural = 0
    """Most negatives of a query in training, the first ones; 0: all."""
    label_column: str = ""
    """Column of labels: above 0, the passage answers the query; in evaluation, its grade."""
    loss: Literal["pointwise", "pairwise", "listwise"] = "listwise"
    """Loss of each passage by itself, against each other one, or against all."""
    dropout: Rate = 0.1
    """Dropout between pooler and score."""
    candidates: Count = 100
    """Passages of a collection (BEIR) that BM25 finds for a query, to be ranked in evaluation."""
    unknown_ids: UnknownIds = "refuse"
    """Judgements of a collection whose ids are unknown."""
    empty_text: labelled_texts.EmptyText = "refuse"
    """Rows with an empty text."""

    def __post_init__(self):
        super().__post_init__()
        columns = [self.text_column, self.text_pair_column, *self.negative_columns, *filter(None, [self.label_column])]
        if "" in columns or len(set(columns)) < len(columns):
            raise ValueError(f"config.options.text_column, text_pair_column, negative_columns, label_column: expected different columns, "
                             f"got {columns}")
        if self.label_column and self.negative_columns:
            raise ValueError("config.options.label_column: expected no negative_columns beside it: labels say which texts are negatives")

    @property
    def columns(self) -> SearchColumns:
        """The columns of a file for training."""
        return SearchColumns(text=self.text_column, text_pair=self.text_pair_column, negatives=self.negative_columns,
                             label=self.label_column, most_negatives=self.most_negatives)


class Task(TaskBase):
    """Rows [B,C,S]: `[CLS] query [SEP] passage [SEP]` for the positive and each negative."""

    Options = Options
    head = "regression"
    served_classes = (ServedReranker,)
    inspector = INSPECTOR

    def build_model(self):
        """Builds encoder, pooler and one vector."""
        return ChoiceClassifier.make(self.config.model, {"dropout": self.options.dropout}, recompute=self.config.training.recompute)

    def losses(self, outputs, batch):
        """The loss of `options` over the passages of each query; none for passages that are only ranked."""
        if "labels" not in batch:
            return {}
        present = tf.reduce_max(batch["input_mask"], axis=-1) > 0
        return {"loss": LOSSES[self.options.loss](outputs["logits"], batch["labels"], present, batch["example_weights"])}

    @property
    def counter_names(self):
        return ("accuracy",)

    def counters(self, outputs, batch):
        """The share of queries whose positive has the highest score."""
        if "labels" not in batch:
            return {}
        best = tf.gather(batch["labels"], tf.argmax(outputs["logits"], axis=-1), batch_dims=1)
        return {"accuracy": (tf.reduce_sum(best * batch["example_weights"]), tf.reduce_sum(batch["example_weights"]))}

    def predictions(self, outputs, batch):
        return {"score": outputs["logits"][:, 0]}

    def batch_spec(self, batch_size):
        """Rows at their full length, with a negative for each column of them."""
        passages = 1 + (self.options.most_negatives or max(len(self.options.negative_columns), 1))
        return self._row_spec(batch_size, passages) | {"labels": tf.TensorSpec((batch_size, passages), tf.float32)}

    def best_metric(self):
        """nDCG@10."""
        return "ndcg_at_10"

    def data(self, files):
        return {"train": files_of(files.path(files.train_file, FILES["train"])),
                "eval": files_of(files.path(files.eval_file, FILES["dev"]))}

    def input_columns(self):
        return {"text": (self.options.text_column,), "text_pair": (self.options.text_pair_column,)}

    def read(self, files, steps, model):
        """Reads queries with positives and negatives to train on, candidates to rank, and pairs to score.

        Raises ValueError for a query without a negative, and if nearly all pairs held out are training pairs.
        """
        options = self.options
        splits.check_eval_file(options, files.eval_file)
        eval_path = files.path(files.eval_file, FILES["dev"]) if steps.evaluate and not options.folds else ""
        train_path = files.training_path(FILES["train"]) if steps.train else files.path(files.train_file, FILES["train"])
        divided = steps.evaluate and not eval_path
        if steps.train:
            check_options(options, ("negative_columns", "label_column"), (train_path, eval_path))
        if steps.train and steps.evaluate:
            ranked = is_collection(eval_path or train_path)
            check_used(options, ["candidates"], "a collection (BEIR) to evaluate on", ranked)
        train = self.read_train(train_path) if steps.train or (divided and train_path) else None
        held_out = self._read_candidates(eval_path) if eval_path else None
        if train and held_out:
            labelled_texts.check_held_out(train, _answers(held_out, str(eval_path)), files.refuse_same)
        notes: tuple[str, ...] = ()
        if train and options.divides(divided):
            parts = splits.divide(options, train.text, [0] * len(train), divided, train.path)
            if divided and len(parts.held_out):
                kept = set(train.rows(parts.held_out).text)
                held_out = [one for one in self._read_candidates(train_path) if one.query in kept]
            train, notes = train.rows(parts.train), parts.notes
        predict_path = files.path(files.predict_file, TEST_FILES) if steps.predict else ""
        pair = SearchColumns(text=options.text_column, text_pair=options.text_pair_column)
        tests = self._read(predict_path, pair) if predict_path else None
        return Resolved(task=self, model=model or self.build_model(),
                        train=self._training_source(train, files) if train and steps.train else None,
                        training_rows=described_pairs(train) if train and steps.train else "",
                        held_out=Ranked(held_out, self._source_of_pairs(held_out, files)) if held_out else None,
                        tests=Scored(self._make_source([(text, (pair,)) for text, pair in tests.pairs()], {}, files)) if tests else None,
                        notes=notes)

    def _read(self, path: Source, columns: SearchColumns) -> LabelledTexts:
        options = self.options
        return read_rows(path, columns, options.empty_text, options, logging.warning)

    def read_train(self, path: Source) -> LabelledTexts:
        """Reads queries with a passage that answers and passages that do not. Raises ValueError for a query without the latter."""
        options = self.options
        if is_collection(path):
            rows = read_collection(str(path), options.unknown_ids, logging.warning, options).pairs(options.most_negatives)
        else:
            rows = self._read(path, options.columns)
        bad = [not negatives for negatives in rows.choices or [()] * len(rows)]
        if any(bad):
            raise ValueError(f"{path}: row {bad.index(True) + 1}: expected a passage that does not answer the query ({sum(bad)} such "
                             "rows); options.negative_columns or label_column names them, tools/mine_negatives.py finds some")
        return rows

    def _read_candidates(self, path: Source) -> list[Candidates]:
        """Reads the passages to rank: labelled ones, positives and negatives, or what BM25 finds in a collection."""
        options = self.options
        if not is_collection(path):
            columns = dataclasses.replace(options.columns, most_negatives=0)
            return read_candidates(path, columns, options.empty_text, options, logging.warning)
        collection = read_collection(str(path), options.unknown_ids, logging.warning, options)
        candidates = []
        numbers = nearest_by_words(collection.queries, collection.passages, options.candidates)[1].tolist()
        for query, ranking, grades in zip(collection.queries, numbers, collection.relevant):
            places = {place: grades[number] for place, number in enumerate(ranking) if number in grades}
            missed = [grade for number, grade in grades.items() if number not in ranking]
            candidates.append(Candidates(query, [collection.passages[number] for number in ranking], places, missed))
        return candidates

    def _training_source(self, data: LabelledTexts, files: DataFiles) -> ExampleSource:
        assert data.text_pair is not None and data.choices is not None
        rows = [(text, (positive, *negatives)) for text, positive, negatives in zip(data.text, data.text_pair, data.choices)]
        labels = np.zeros((len(rows), max(len(passages) for _, passages in rows)), np.float32)
        labels[:, 0] = 1.0
        return self._make_source(rows, {"labels": labels}, files, training=True)

    def _source_of_pairs(self, candidates: Sequence[Candidates], files: DataFiles) -> ExampleSource:
        """A row for each query and passage."""
        return self._make_source([(one.query, (passage,)) for one in candidates for passage in one.passages], {}, files)

    def _make_source(self, rows: Sequence[tuple[str, Sequence[str]]], extra: dict[str, np.ndarray], files: DataFiles,
                     training: bool = False) -> ExampleSource:
        arrays = make_features([query for query, passages in rows for _ in passages], [text for _, passages in rows for text in passages],
                               self.tokenizer, self.options.max_seq_length, files.cache_dir)
        return self.make_batches(ChoiceFeatures(TextFeatures(arrays), [len(passages) for _, passages in rows], extra), training)

    def served(self, model, options):
        return ServedReranker.make(self, model, options)


def _answers(candidates: Sequence[Candidates], path: str) -> LabelledTexts:
    """The queries with each of their answers."""
    pairs = [(one.query, one.passages[place]) for one in candidates for place in one.grades]
    return LabelledTexts(path, [query for query, _ in pairs], [passage for _, passage in pairs])


@dataclasses.dataclass(frozen=True)
class Ranked:
    """Candidates to rank; the source has a row for each passage of each query."""

    candidates: Sequence[Candidates]
    source: ExampleSource

    def evaluate(self, predictions: Predictions) -> dict[str, float]:
        """Computes nDCG@10, MRR@10, MAP and recall of the new order. Raises ValueError unless every passage has a score."""
        return measures.means(self._measured(self._rankings(predictions)))

    def examine(self, predictions: Predictions) -> list[Section]:
        """Returns the queries that fare worst."""
        rankings = self._rankings(predictions)
        answers = [each.passages[max(each.grades, key=lambda place: each.grades[place])] if each.grades else "(not found)"
                   for each in self.candidates]
        first = [each.passages[ranking[0]] for each, ranking in zip(self.candidates, rankings)]
        return [measures.worst_queries([each.query for each in self.candidates], self._measured(rankings), answers, first)]

    def _measured(self, rankings: Sequence[Sequence[int]]) -> list[dict[str, float]]:
        """Answers that are no candidates count as not found: they have negative numbers."""
        return measures.measure(rankings, [one.grades | {-1 - place: grade for place, grade in enumerate(one.missed)}
                                           for one in self.candidates])

    def _rankings(self, predictions: Predictions) -> list[list[int]]:
        """The places of each query's passages by falling scores; of equal scores, an answer stands last."""
        rows = self.source.in_order(predictions)
        if any(row is None for row in rows):
            raise ValueError("config.training.eval_steps: expected 0, because all passages of a query are ranked")
        scores = iter(float(row["score"]) for row in rows)  # type: ignore[index]
        each = [[next(scores) for _ in candidates.passages] for candidates in self.candidates]
        return [sorted(range(len(row)), key=lambda place: (-row[place], place in candidates.grades, place))
                for candidates, row in zip(self.candidates, each)]


@dataclasses.dataclass(frozen=True)
class Scored:
    """Pairs to score."""

    source: ExampleSource

    def write(self, predictions: Predictions, output_dir: str) -> list[str]:
        """Writes `predictions.tsv`: the score of each pair."""
        path = os.path.join(output_dir, "predictions.tsv")
        with written_whole(path) as file:
            writer = csv.writer(file, delimiter="\t", lineterminator="\n")
            writer.writerow(["index", "prediction"])
            writer.writerows([row, f"{answer['score']:.6f}"] for row, answer in enumerate(self.source.in_order(predictions)) if answer)
        return [path]
