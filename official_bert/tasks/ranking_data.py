"""Data to rank passages for a query: rows of a query, a passage that answers it, and passages that do not."""

import abc
import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Self

import numpy as np
from absl import logging

from official_bert.data.batches.sources import ExampleSource
from official_bert.data.labelled import labelled_texts
from official_bert.data.labelled.labelled_texts import EmptyText, LabelledTexts
from official_bert.data.rows import Source
from official_bert.data.tabular import likely_tables, tables
from official_bert.reports.sections import Section
from official_bert.search import collections, measures
from official_bert.search.collections import Collection, check_options, files_of, is_collection
from official_bert.search.rows import SearchColumns, described_pairs, read_rows
from official_bert.tasks.data import DataFiles, Steps
from official_bert.tasks.file_data import FileData, TaskRows
from official_bert.text.accents import casing_warnings
from official_bert.training.held_out import Predictions

NOT_FOUND = "(not found)"  # in place of a passage


class RankingData(FileData):
    """Queries and passages in tables, or a collection (BEIR); `options` are `TableOptions` with `training_columns`."""

    file_names = {
        name: (*(f"{name}{suffix}" for suffix in tables.SUFFIXES), f"qrels/{name}.tsv") for name in ("train", "dev")
    } | {"test": tuple(f"test{suffix}" for suffix in tables.SUFFIXES)}
    of_tables: ClassVar[Sequence[str]] = ()  # options that are not read of a collection

    def sources(self, files: DataFiles) -> dict[str, list[Source]]:
        """Returns the files of collections, or tables."""
        return {use: files_of(path) for use, (path,) in super().sources(files).items()}

    def read_pairs(self, path: Source, empty: EmptyText | None = None, labelled: bool = True) -> LabelledTexts:
        """Reads pairs of texts without labels; from a file to answer (not `labelled`), also rejected ones."""
        columns = SearchColumns(text=self.options.text_column, text_pair=self.options.text_pair_column)
        rows = read_rows(path, columns, empty or self.options.empty_text, self.options, logging.warning, labelled)
        return dataclasses.replace(rows, choices=None)  # of a published form

    def read_collection(self, path: Source) -> Collection:
        """Reads a collection by the path of its judgements."""
        return collections.read_collection(str(path), self.options.unknown_ids, logging.warning, self.options)

    def read_with_negatives(self, path: Source) -> LabelledTexts:
        """Reads the rows to train on, of a collection or of a table."""
        options = self.options
        if is_collection(path):
            return self.read_collection(path).pairs(options.most_negatives)
        likely_tables.check_grades(options, path, self.config.options)
        return read_rows(path, options.training_columns, options.empty_text, options, logging.warning)

    def read_rows(self, files: DataFiles, steps: Steps) -> tuple[Self, TaskRows]:
        """Reads the rows. Also raises ValueError for options that neither the training file nor the evaluation file
        uses.
        """
        if steps.train:
            self.check_files(self.training_path(files), self.eval_path(files) if steps.evaluate else "", steps)
        return super().read_rows(files, steps)

    def check_files(self, train_path: Source, eval_path: Source, steps: Steps) -> None:
        """Raises ValueError for options that no file of a training uses."""
        check_options(self.options, self.of_tables, (train_path, eval_path))

    def check_rows(self, rows: TaskRows, files: DataFiles, steps: Steps) -> TaskRows:
        if rows.train and rows.held_out:
            answers = self.answers_of(rows.held_out, self.path(files, "dev"))
            labelled_texts.check_held_out(rows.train, answers, files.refuse_same)
        texts = itertools.chain.from_iterable(rows.train.pairs()) if rows.train else ()
        return dataclasses.replace(rows, notes=tuple(casing_warnings(self.tokenizer, texts)))

    @abc.abstractmethod
    def answers_of(self, held_out: Any, path: Source) -> LabelledTexts:
        """Returns the queries to evaluate on, read from a file, with each of their answers."""

    def described(self, train: LabelledTexts) -> str:
        return described_pairs(train)


class Rankings(abc.ABC):
    """Queries that rank passages, measured by nDCG@10, MRR@10, MAP and recall; reports the worst queries."""

    source: ExampleSource
    queries: Sequence[str]
    passages: Sequence[Sequence[str]]  # that each query ranks
    # the grades of each query's answers, by number; those that it does not rank are below 0
    relevant: Sequence[Mapping[int, int]]

    @abc.abstractmethod
    def rankings(self, predictions: Predictions) -> list[list[int]]:
        """Returns the numbers of each query's passages, best first. Raises ValueError unless every passage has a
        prediction.
        """

    def evaluate(self, predictions: Predictions) -> dict[str, float]:
        """Computes nDCG@10, MRR@10, MAP and recall."""
        return measures.means(measures.measure(self.rankings(predictions), self.relevant))

    def examine(self, predictions: Predictions) -> list[Section]:
        """Returns report sections about the queries with the worst rankings."""
        rankings = self.rankings(predictions)
        answers = [
            next(
                (
                    passages[number]
                    for number in sorted(grades, key=lambda number: (-grades[number], number))
                    if number >= 0
                ),
                NOT_FOUND,
            )
            for passages, grades in zip(self.passages, self.relevant)
        ]
        nearest = [passages[ranking[0]] if ranking else NOT_FOUND for passages, ranking in zip(self.passages, rankings)]
        return [measures.worst_queries(self.queries, measures.measure(rankings, self.relevant), answers, nearest)]

    def whole_rows(self, predictions: Predictions, passages: str) -> list[Mapping[str, np.ndarray]]:
        """Returns the predictions of all rows. Raises ValueError if some are missing."""
        rows = [row for row in self.source.in_order(predictions) if row is not None]
        if len(rows) < len(self.source.examples):
            raise ValueError(f"config.training.eval_steps: expected 0, because all passages of {passages}")
        return rows


def require_negatives(rows: LabelledTexts, path: Source, expected: str, remedy: str = "") -> None:
    """Raises ValueError, with the `expected` content, for a row without negatives."""
    lacking = [not negatives for negatives in rows.choices or [()] * len(rows)]
    if any(lacking):
        raise ValueError(
            f"{path}: row {lacking.index(True) + 1}: expected {expected} ({sum(lacking)} such rows){remedy}"
        )
