"""Search by sparse vectors (SPLADE): a text becomes a weight for each word, mostly 0, so that an inverted index can
find it.

The loss of retrieval, on products, and a penalty that keeps weights few: the squared mean weight of each word (FLOPS,
Paria et al. 2020).
"""

import dataclasses
from collections.abc import Sequence

import keras
import numpy as np
import scipy.sparse
import tensorflow as tf

from official_bert.data.batches.sources import ExampleSource
from official_bert.data.labelled.labelled_texts import LabelledTexts
from official_bert.fields import Natural, NonNegative, Positive, check_used
from official_bert.models.bi_encoder import SparseEncoder
from official_bert.objectives.sparse_vectors import SparseVectors
from official_bert.search.collections import Collection
from official_bert.tasks.data import DataFiles, Steps
from official_bert.tasks.retrieval import options as retrieval_options
from official_bert.tasks.retrieval import task as retrieval
from official_bert.tasks.retrieval.held_out import HeldOutCollection
from official_bert.training.held_out import HeldOut, Predictions

QUERIES_AT_ONCE = 256


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options(retrieval_options.Options):
    """Those of retrieval, and the penalty."""

    temperature: Positive = 1.0
    """Divides the products."""
    query_penalty: NonNegative = 3e-4
    """Factor of the penalty on the weights of first texts."""
    passage_penalty: NonNegative = 1e-4
    """Factor of the penalty on the weights of second texts and negatives."""
    penalty_steps: Natural = 1000
    """Steps in which the factors rise from 0, as the square of the step; 0: they do not rise."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.train_on != "pairs":
            raise ValueError(f"config.options.train_on: sparse vectors are trained on pairs, got {self.train_on}")
        check_used(
            self,
            ["penalty_steps"],
            "a query_penalty or a passage_penalty above 0",
            self.query_penalty + self.passage_penalty > 0.0,
        )
        check_used(
            self,
            [
                "score_column",
                "matryoshka",
                "pooling",
                "include_prompt",
                "vector_layers",
                "dimensions",
                "normalize",
                "default_prompt",
                "texts_at_once",
                "score_range",
            ],
            "--task=retrieval",
            False,
        )

    @property
    def in_groups(self) -> bool:
        """The penalty is that of groups, whatever the loss."""
        return True


class RisingPenalty(ExampleSource):
    """Adds `penalty_share` [B], the share of the penalty, to each batch: it rises from 0 to 1 with the square of the
    step.
    """

    steps = 0

    def batch(self, number: int) -> dict[str, np.ndarray]:
        share = min(1.0, (number + 1) / self.steps) ** 2 if self.steps else 1.0
        return super().batch(number) | {"penalty_share": np.full(self.batch_size, share, np.float32)}


class SparseData(retrieval.RetrievalData):
    """The rows of retrieval, with the share of the penalty."""

    def batch_spec(self, batch_size: int) -> dict[str, tf.TensorSpec]:
        """Returns the shapes of a batch at full length, with the share of the penalty."""
        return super().batch_spec(batch_size) | {"penalty_share": tf.TensorSpec((batch_size,), tf.float32)}

    def check(self, steps: Steps) -> None:
        """Also raises ValueError for predictions."""
        if steps.predict:
            raise ValueError("--predict_file: expected none for task splade; run_predict gives the words of texts")
        super().check(steps)

    def make_train(
        self, train: LabelledTexts, files: DataFiles, model: keras.Model
    ) -> tuple[ExampleSource, Sequence[str]]:
        source, notes = super().make_train(train, files, model)
        rising = RisingPenalty(
            source.examples, source.batch_size, source.seed, source.shuffle, source.buckets, by_length=source.by_length
        )
        rising.steps = self.options.penalty_steps
        return rising, notes

    def make_held_out(self, held_out: LabelledTexts | Collection, files: DataFiles, model: keras.Model) -> HeldOut:
        """Returns evaluation batches; pairs form a small collection, in which each first text searches all second
        texts.
        """
        if isinstance(held_out, Collection):
            return super().make_held_out(held_out, files, model)
        queries, passages = (list(dict.fromkeys(texts)) for texts in (held_out.text, held_out.text_pair or ()))
        query_of, passage_of = ({text: number for number, text in enumerate(texts)} for texts in (queries, passages))
        relevant: list[dict[int, int]] = [{} for _ in queries]
        for query, passage in held_out.pairs():
            relevant[query_of[query]][passage_of[passage]] = 1
        collection = Collection(held_out.path, queries, passages, relevant, [[] for _ in queries])
        return super().make_held_out(collection, files, model)

    def _collection(self, collection: Collection, files: DataFiles) -> "Searched":
        return Searched(collection, super()._collection(collection, files).source)


class SparseAnswers(retrieval.RetrievalAnswers):
    """Vectors of words."""

    def best_metric(self) -> str:
        """Returns `ndcg_at_10`."""
        return "ndcg_at_10"


class Task(retrieval.Task):
    """A weight of each word for each text: rows [B,T,S] as in retrieval."""

    Options = Options
    serving = "official_bert.tasks.retrieval.served:WORDS"
    data = property(SparseData)
    answers = property(SparseAnswers)

    def build_model(self) -> keras.Model:
        """Builds an encoder with the head for words, whose weights are those of masked LM."""
        return SparseEncoder.make(
            self.config.model, {"cuts": not self.config.training.xla}, recompute=self.config.training.recompute
        )

    @property
    def objective(self) -> SparseVectors:
        options = self.options
        return SparseVectors(
            options.loss_name,
            options.group_size,
            options.temperature,
            options.margin,
            query_penalty=options.query_penalty,
            passage_penalty=options.passage_penalty,
        )


class Searched(HeldOutCollection):
    """Queries that search all passages of a collection by products of sparse vectors."""

    def evaluate(self, predictions: Predictions) -> dict[str, float]:
        """Computes the metrics and the mean number of words of a passage."""
        passages = self._vectors(predictions)[len(self.queries) :]
        return super().evaluate(predictions) | {"words": passages.nnz / passages.shape[0]}

    def _vectors(self, predictions: Predictions) -> scipy.sparse.csr_array:
        """The vectors of queries and passages, [texts,words]."""
        rows = self.rows(predictions)
        ids, weights = (np.stack([row[name][0] for row in rows]) for name in ("ids", "weights"))
        texts = np.repeat(np.arange(len(ids)), ids.shape[1])
        matrix = scipy.sparse.csr_array((weights.ravel(), (texts, ids.ravel())))
        matrix.eliminate_zeros()
        return matrix

    def nearest(self, predictions: Predictions, count: int) -> list[list[int]]:
        """Returns the numbers of the passages with the largest products with each query."""
        matrix, number, rankings = self._vectors(predictions), len(self.queries), []
        queries, passages = matrix[:number], matrix[number:].T
        for start in range(0, number, QUERIES_AT_ONCE):
            products = (queries[start : start + QUERIES_AT_ONCE] @ passages).toarray()
            rankings += np.argsort(-products, axis=1, kind="stable")[:, :count].tolist()
        return rankings
