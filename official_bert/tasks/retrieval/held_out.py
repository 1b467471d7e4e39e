"""Pairs and collections to evaluate on: what their vectors measure, and the queries that fare worst."""

import csv
import dataclasses
import os
from collections.abc import Mapping, Sequence

import numpy as np

from official_bert.data.labelled_texts import LabelledTexts
from official_bert.data.search import measures, neighbours
from official_bert.data.search.collections import Collection
from official_bert.data.sources import ExampleSource
from official_bert.files import written_whole
from official_bert.reports.sections import Section
from official_bert.tasks.retrieval import metrics
from official_bert.training.task import Predictions


def number_texts(rows: Sequence[Sequence[str]], missing: int = -1) -> np.ndarray:
    """Numbers the texts of rows, int32 [N,T]: equal texts have equal numbers; rows with fewer texts are filled up with `missing`."""
    numbers: dict[str, int] = {}
    numbered = np.full((len(rows), max(map(len, rows))), missing, np.int32)
    for target, texts in zip(numbered, rows):
        target[:len(texts)] = [numbers.setdefault(text, len(numbers)) for text in texts]
    return numbered


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
        numbers = self._numbers(rows)
        return metrics.search(vectors, numbers) | measures.means(metrics.measured(vectors, numbers))

    def examine(self, predictions: Predictions) -> list[Section]:
        """Returns the queries that fare worst; nothing for pairs with scores."""
        rows, vectors = self._vectors(predictions)
        if self.data.targets is not None:
            return []
        numbers = self._numbers(rows)
        queries, nearest = metrics.nearest_rows(vectors, numbers)
        assert self.data.text_pair is not None
        return [measures.worst_queries([self.data.text[rows[row]] for row in queries], metrics.measured(vectors, numbers),
                              [self.data.text_pair[rows[row]] for row in queries], [self.data.text_pair[rows[row]] for row in nearest])]

    def _numbers(self, rows: np.ndarray) -> np.ndarray:
        """The numbers of both texts of rows."""
        assert self.data.text_pair is not None
        return number_texts([(self.data.text[row], self.data.text_pair[row]) for row in rows])

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
        answers = self.source.in_order(predictions)
        rows = np.array([number for number, row in enumerate(answers) if row is not None])
        return rows, np.stack([answers[row]["embedding"] for row in rows])  # type: ignore[index]


@dataclasses.dataclass(frozen=True)
class HeldOutCollection:
    """Queries that search all passages of a collection; the source has the queries, then the passages."""

    collection: Collection
    source: ExampleSource

    def evaluate(self, predictions: Predictions) -> dict[str, float]:
        """Computes nDCG@10, MRR, recall and MAP. Raises ValueError unless every text has a vector."""
        return measures.means(measures.measure(self._rankings(predictions), self.collection.relevant))

    def examine(self, predictions: Predictions) -> list[Section]:
        """Returns the queries that fare worst."""
        rankings, passages = self._rankings(predictions), self.collection.passages
        best = [max(grades, key=lambda number: (grades[number], -number)) for grades in self.collection.relevant]
        return [measures.worst_queries(self.collection.queries, measures.measure(rankings, self.collection.relevant),
                              [passages[number] for number in best], [passages[ranking[0]] for ranking in rankings])]

    def _rankings(self, predictions: Predictions) -> list[list[int]]:
        """The numbers of the nearest passages of each query."""
        return self._search(self._rows(predictions))

    def _rows(self, predictions: Predictions) -> list[Mapping[str, np.ndarray]]:
        rows = self.source.in_order(predictions)
        if any(row is None for row in rows):
            raise ValueError(f"config.training.eval_steps: expected 0, because all passages of {self.collection.path} are searched")
        return rows  # type: ignore[return-value]

    def _search(self, rows: Sequence[Mapping[str, np.ndarray]]) -> list[list[int]]:
        vectors, count = np.stack([row["embedding"][0] for row in rows]), len(self.collection.queries)
        return neighbours.nearest(vectors[:count], vectors[count:], measures.DEPTH)[1].tolist()
