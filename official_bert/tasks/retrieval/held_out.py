"""Evaluates pairs and collections by their vectors, and reports the worst queries."""

import dataclasses
import os
from collections.abc import Mapping, Sequence

import numpy as np

from official_bert.data.batches.sources import ExampleSource
from official_bert.data.labelled.labelled_texts import LabelledTexts
from official_bert.reports.sections import Section
from official_bert.search import measures, neighbours
from official_bert.search.collections import Collection
from official_bert.tasks.answers import write_answers
from official_bert.tasks.ranking_data import Rankings
from official_bert.tasks.retrieval import metrics
from official_bert.training.held_out import Predictions


def number_texts(rows: Sequence[Sequence[str]], missing: int = -1) -> np.ndarray:
    """Numbers the texts of rows, int32 [N,T]: equal texts have equal numbers; rows with fewer texts are filled up with
    `missing`.
    """
    numbers: dict[str, int] = {}
    numbered = np.full((len(rows), max(map(len, rows))), missing, np.int32)
    for target, texts in zip(numbered, rows):
        target[: len(texts)] = [numbers.setdefault(text, len(numbers)) for text in texts]
    return numbered


@dataclasses.dataclass(frozen=True)
class Pairs:
    """Pairs to evaluate on or to compare, by their vectors."""

    data: LabelledTexts
    source: ExampleSource

    def evaluate(self, predictions: Predictions) -> dict[str, float]:
        """Computes the correlation with the scores, or the metrics of search."""
        rows, vectors = self._vectors(predictions)
        if self.data.targets is not None:
            return metrics.similarity(vectors, self.data.targets[rows])
        measured, *_ = metrics.search(vectors, self._numbers(rows))
        return measures.means(measured)

    def examine(self, predictions: Predictions) -> list[Section]:
        """Returns report sections about the worst queries; none for pairs with scores."""
        rows, vectors = self._vectors(predictions)
        if self.data.targets is not None:
            return []
        measured, queries, nearest = metrics.search(vectors, self._numbers(rows))
        assert self.data.text_pair is not None
        return [
            measures.worst_queries(
                [self.data.text[rows[row]] for row in queries],
                measured,
                [self.data.text_pair[rows[row]] for row in queries],
                [self.data.text_pair[rows[row]] for row in nearest],
            )
        ]

    def _numbers(self, rows: np.ndarray) -> np.ndarray:
        """The numbers of both texts of rows."""
        assert self.data.text_pair is not None
        return number_texts([(self.data.text[row], self.data.text_pair[row]) for row in rows])

    def write(self, predictions: Predictions, output_dir: str) -> list[str]:
        """Writes `predictions.tsv`: the cosine of the two texts of each row."""
        rows, vectors = self._vectors(predictions)
        cosines = ([row, f"{np.dot(*both):.6f}"] for row, both in zip(rows, vectors))
        return [write_answers(os.path.join(output_dir, "predictions.tsv"), cosines)]

    def _vectors(self, predictions: Predictions) -> tuple[np.ndarray, np.ndarray]:
        """The numbers of the predicted rows, in order, and their vectors [N,2,D]."""
        answers = self.source.in_order(predictions)
        rows = np.array([number for number, row in enumerate(answers) if row is not None])
        return rows, np.stack([answers[row]["embedding"] for row in rows])  # type: ignore[index]


class HeldOutCollection(Rankings):
    """Queries that search all passages of a collection; the source has the queries, then the passages."""

    def __init__(self, collection: Collection, source: ExampleSource):
        self.collection, self.source, self.queries, self.relevant = (
            collection,
            source,
            collection.queries,
            collection.relevant,
        )
        self.passages = [collection.passages] * len(collection.queries)

    def rankings(self, predictions: Predictions) -> list[list[int]]:
        """Returns the numbers of each query's nearest passages, except the passage with the query's own id."""
        return self.collection.without_own(self.nearest(predictions, measures.DEPTH + 1), measures.DEPTH)

    def nearest(self, predictions: Predictions, count: int) -> list[list[int]]:
        """Returns the numbers of the `count` nearest passages of each query."""
        vectors, queries = np.stack([row["embedding"][0] for row in self.rows(predictions)]), len(self.queries)
        return neighbours.nearest(vectors[:queries], vectors[queries:], count)[1].tolist()

    def evaluate(self, predictions: Predictions) -> dict[str, float]:
        """Computes the metrics and `mrr`, which selects the best checkpoint, over the measured ranks."""
        rankings = self.rankings(predictions)
        return measures.means(measures.measure(rankings, self.relevant)) | {
            "mrr": measures.reciprocal_rank(rankings, self.relevant)
        }

    def rows(self, predictions: Predictions) -> list[Mapping[str, np.ndarray]]:
        """Returns the predictions of all texts. Raises ValueError if some are missing."""
        return self.whole_rows(predictions, f"{self.collection.path} are searched")
