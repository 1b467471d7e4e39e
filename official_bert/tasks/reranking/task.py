"""Reranking: one score for a query and a passage that are read together (a cross-encoder; Nogueira and Cho 2019).

It reorders the passages that a search has found.
"""

import dataclasses
import os
from collections.abc import Mapping, Sequence
from typing import Literal

import keras
import numpy as np
import tensorflow as tf
from absl import logging

from official_bert.data.batches.sources import ExampleSource
from official_bert.data.batches.text_features import make_choice_features
from official_bert.data.labelled import labelled_texts, splits
from official_bert.data.labelled.labelled_texts import LabelledTexts
from official_bert.data.labelled.splits import SplitOptions
from official_bert.data.rows import Source
from official_bert.data.tabular.tables import TableOptions
from official_bert.fields import Count, Natural, Rate, check_used
from official_bert.models.classifier import ChoiceClassifier
from official_bert.objectives.objective import Objective
from official_bert.objectives.relevance import Relevance
from official_bert.search.bm25 import nearest_by_words
from official_bert.search.collections import Collection, UnknownIds, is_collection
from official_bert.search.rows import Candidates, SearchColumns, read_candidates
from official_bert.tasks.answers import Answers, write_answers
from official_bert.tasks.data import DataFiles, Steps, row_spec
from official_bert.tasks.file_data import Use
from official_bert.tasks.ranking_data import RankingData, Rankings, require_negatives
from official_bert.tasks.task import TaskBase
from official_bert.training.held_out import HeldOut, Predictions

FOUND_NEGATIVES = 5  # of a query of a collection, unless options.most_negatives says how many


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

    def __post_init__(self) -> None:
        super().__post_init__()
        columns = [self.text_column, self.text_pair_column, *self.negative_columns, *filter(None, [self.label_column])]
        if "" in columns or len(set(columns)) < len(columns):
            raise ValueError(
                "config.options.text_column, text_pair_column, negative_columns, label_column: expected different "
                f"columns, got {columns}"
            )
        if self.label_column and self.negative_columns:
            raise ValueError(
                "config.options.label_column: expected no negative_columns with it: labels say which texts are "
                "negatives"
            )

    @property
    def training_columns(self) -> SearchColumns:
        """The columns of a file for training."""
        return SearchColumns(
            text=self.text_column,
            text_pair=self.text_pair_column,
            negatives=self.negative_columns,
            label=self.label_column,
            most_negatives=self.most_negatives,
        )


class RerankingData(RankingData):
    """Queries with passages: rows [B,C,S] for the positive and each negative."""

    of_tables = ("negative_columns", "label_column")

    def batch_spec(self, batch_size: int) -> dict[str, tf.TensorSpec]:
        """Returns the shapes of a batch at full length, with a negative per column of negatives."""
        passages = 1 + (self.options.most_negatives or max(len(self.options.negative_columns), 1))
        return row_spec(batch_size, passages, self.options.max_seq_length) | {
            "labels": tf.TensorSpec((batch_size, passages), tf.float32)
        }

    def check_files(self, train_path: Source, eval_path: Source, steps: Steps) -> None:
        """Also raises ValueError for a number of candidates if no search takes place."""
        super().check_files(train_path, eval_path, steps)
        if steps.evaluate:
            check_used(
                self.options,
                ["candidates"],
                "a collection (BEIR) to evaluate on",
                is_collection(eval_path or train_path),
            )

    def read_file(self, path: Source, use: Use) -> LabelledTexts | list[Candidates]:
        """Reads queries with passages that answer and passages that do not, candidates to rank, or pairs to score."""
        if use == "test":
            return self.read_pairs(path, labelled=False)
        if use == "dev":
            return self._read_candidates(path)
        rows = self._read_collection_rows(path) if is_collection(path) else self.read_with_negatives(path)
        require_negatives(
            rows,
            path,
            "a passage that does not answer the query",
            "; options.negative_columns or label_column names them, tools/mine_negatives.py finds some",
        )
        return rows

    def _read_collection_rows(self, path: Source) -> LabelledTexts:
        """Reads the pairs of a collection. Most collections judge no passage irrelevant: BM25 finds the negatives of
        such a query.
        """
        most = self.options.most_negatives
        collection = self.read_collection(path)
        if lacking := [query for query, judged in enumerate(collection.irrelevant) if not judged]:
            logging.warning(
                "%s: %d queries without a passage judged irrelevant: their negatives are the passages that BM25 ranks "
                "first and that do not answer them (at most %d)",
                path,
                len(lacking),
                most or FOUND_NEGATIVES,
            )
            rankings = self._search(collection)
            irrelevant = [
                judged or [passage for passage in ranking if passage not in grades][: most or FOUND_NEGATIVES]
                for judged, ranking, grades in zip(collection.irrelevant, rankings, collection.relevant)
            ]
            collection = dataclasses.replace(collection, irrelevant=irrelevant)
        return collection.pairs(most)

    def _search(self, collection: Collection) -> list[list[int]]:
        """Returns the candidates of each query that BM25 finds in a collection, best first."""
        count = self.options.candidates
        return collection.without_own(
            nearest_by_words(collection.queries, collection.passages, count + 1)[1].tolist(), count
        )

    def _read_candidates(self, path: Source) -> list[Candidates]:
        """Reads the passages to rank: labelled ones, positives and negatives, or what BM25 finds in a collection."""
        options = self.options
        if not is_collection(path):
            columns = dataclasses.replace(options.training_columns, most_negatives=0)
            return read_candidates(path, columns, options.empty_text, options, logging.warning)
        collection = self.read_collection(path)
        candidates = []
        for query, ranking, grades in zip(collection.queries, self._search(collection), collection.relevant):
            places = {place: grades[number] for place, number in enumerate(ranking) if number in grades}
            missed = [grade for number, grade in grades.items() if number not in ranking]
            candidates.append(Candidates(query, [collection.passages[number] for number in ranking], places, missed))
        return candidates

    def answers_of(self, held_out: list[Candidates], path: Source) -> LabelledTexts:
        pairs = [(one.query, one.passages[place]) for one in held_out for place in one.grades]
        return LabelledTexts(str(path), [query for query, _ in pairs], [passage for _, passage in pairs])

    def divide(self, train: LabelledTexts, hold_out: bool) -> splits.Parts:
        """Divides rows such that those of a query stay together."""
        return splits.divide(self.options, train.text, [0] * len(train), hold_out, train.path)

    def hold_out_rows(self, train: LabelledTexts, numbers: np.ndarray, files: DataFiles) -> list[Candidates]:
        """Returns the held-out queries with their candidates."""
        queries = set(train.rows(numbers).text)
        return [one for one in self._read_candidates(self.path(files, "train")) if one.query in queries]

    def make_train(
        self, train: LabelledTexts, files: DataFiles, model: keras.Model
    ) -> tuple[ExampleSource, Sequence[str]]:
        rows = [
            (text, (positive, *negatives))
            for text, positive, negatives in zip(train.text, train.text_pair or (), train.choices or ())
        ]
        labels = np.zeros((len(rows), max(len(passages) for _, passages in rows)), np.float32)
        labels[:, 0] = 1.0
        return self._make_source(rows, files, {"labels": labels}, training=True), ()

    def make_held_out(self, held_out: list[Candidates], files: DataFiles, model: keras.Model) -> HeldOut:
        """Returns evaluation batches with a row for each query and passage."""
        return Ranked(
            held_out,
            self._make_source([(one.query, (passage,)) for one in held_out for passage in one.passages], files),
        )

    def make_tests(self, tests: LabelledTexts, files: DataFiles, model: keras.Model) -> "Scored":
        return Scored(self._make_source([(text, (passage,)) for text, passage in tests.pairs()], files))

    def _make_source(
        self,
        rows: Sequence[tuple[str, Sequence[str]]],
        files: DataFiles,
        extra: Mapping[str, np.ndarray] | None = None,
        training: bool = False,
    ) -> ExampleSource:
        """Makes batches of queries with their passages."""
        features = make_choice_features(rows, self.tokenizer, self.options.max_seq_length, files.cache_dir, extra)
        return self.make_batches(features, training)


class RerankingAnswers(Answers):
    """Scores of passages, measured by their order."""

    def best_metric(self) -> str:
        """Returns `ndcg_at_10`."""
        return "ndcg_at_10"

    def input_columns(self) -> dict[str, tuple[str, ...]]:
        return {"text": (self.options.text_column,), "text_pair": (self.options.text_pair_column,)}


class Task(TaskBase):
    """Rows [B,C,S]: `[CLS] query [SEP] passage [SEP]` for the positive and each negative."""

    Options = Options
    head = "regression"
    serving = "official_bert.tasks.reranking.served:SCORES"
    data = property(RerankingData)
    answers = property(RerankingAnswers)

    def build_model(self) -> keras.Model:
        """Builds encoder, pooler and one vector."""
        return ChoiceClassifier.make(
            self.config.model, {"dropout": self.options.dropout}, recompute=self.config.training.recompute
        )

    @property
    def objective(self) -> Objective:
        return Relevance(self.options.loss)


class Ranked(Rankings):
    """Candidates to rank; the source has a row for each passage of each query."""

    def __init__(self, candidates: Sequence[Candidates], source: ExampleSource):
        self.candidates, self.source = candidates, source
        self.queries, self.passages = [one.query for one in candidates], [one.passages for one in candidates]
        # Answers that are no candidates count as not found.
        self.relevant = [
            one.grades | {-1 - place: grade for place, grade in enumerate(one.missed)} for one in candidates
        ]

    def rankings(self, predictions: Predictions) -> list[list[int]]:
        """Returns the indices of each query's passages by falling scores; among equal scores, answers come last."""
        scores = iter(float(row["score"]) for row in self.whole_rows(predictions, "a query are ranked"))
        each = [[next(scores) for _ in candidates.passages] for candidates in self.candidates]
        return [
            sorted(range(len(row)), key=lambda place: (-row[place], place in candidates.grades, place))
            for candidates, row in zip(self.candidates, each)
        ]


@dataclasses.dataclass(frozen=True)
class Scored:
    """Pairs to score."""

    source: ExampleSource

    def write(self, predictions: Predictions, output_dir: str) -> list[str]:
        """Writes `predictions.tsv`: the score of each pair."""
        rows = (
            [row, f"{answer['score']:.6f}"] for row, answer in enumerate(self.source.in_order(predictions)) if answer
        )
        return [write_answers(os.path.join(output_dir, "predictions.tsv"), rows)]
