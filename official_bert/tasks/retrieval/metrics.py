"""Metrics of embeddings: search for the right text among all (recall, reciprocal rank), and similarity (correlation
with scores).

N rows, D hidden size.
"""

import math
import warnings
from collections.abc import Sequence

import numpy as np
import scipy.stats

from official_bert.search import measures

FIRST = ("recall_at_1", "recall_at_5", "recall_at_10")  # in lists of metrics, before `mrr`
AT_ONCE = 1024  # queries


def search(vectors: np.ndarray, texts: np.ndarray) -> tuple[list[dict[str, float]], np.ndarray, list[int]]:
    """Searches the second text of each row among the second texts of all rows; returns, for each query in the order of
    the numbers of first texts, trec_eval's measures and `mrr`, its reciprocal rank at any depth; a row of the query;
    and the row of its nearest second text.

    vectors [N,2,D] of length 1; `texts` [N,2] are numbers, equal for equal texts. A first text that stands in several
    rows is one query with several right answers, each distinct second text is searched once, and the query itself is no
    candidate. Among equal similarities, wrong texts rank first, so that constant vectors score nothing.
    """
    queries, query_rows, query_of = np.unique(texts[:, 0], return_index=True, return_inverse=True)
    text_numbers, text_rows, text_of = np.unique(texts[:, 1], return_index=True, return_inverse=True)
    right: list[set[int]] = [set() for _ in queries]
    for query, text in zip(query_of, text_of):
        right[query].add(int(text))
    ranks, nearest = [], []
    for start in range(0, len(queries), AT_ONCE):
        similar = vectors[query_rows[start : start + AT_ONCE], 0] @ vectors[text_rows, 1].T
        for query, row in enumerate(similar, start):
            right_texts, wrong = sorted(right[query]), text_numbers != queries[query]
            nearest.append(text_rows[np.where(wrong, row, -np.inf).argmax()])
            wrong[right_texts] = False
            wrong_scores = np.sort(row[wrong])
            best = np.sort(row[right_texts])[::-1]
            nearer = len(wrong_scores) - np.searchsorted(wrong_scores, best, side="left")
            ranks.append(np.arange(1, len(right_texts) + 1) + nearer)
    return _measure(ranks), query_rows, nearest


def _measure(ranks_of_queries: Sequence[np.ndarray]) -> list[dict[str, float]]:
    """The measures of each query, from the ranks of its right texts, which begin at 1, best first."""
    rankings, relevant = [], []
    for ranks in ranks_of_queries:
        right = {int(rank) - 1: place for place, rank in enumerate(ranks)}
        depth = min(int(ranks[-1]), measures.DEPTH)
        # negative numbers stand for wrong texts
        rankings.append([right.get(place, -1 - place) for place in range(depth)])
        relevant.append(dict.fromkeys(range(len(ranks)), 1))
    return [
        {name: row[name] for name in FIRST} | {"mrr": 1.0 / ranks[0]} | row
        for row, ranks in zip(measures.measure(rankings, relevant), ranks_of_queries)
    ]


def similarity(vectors: np.ndarray, scores: np.ndarray) -> dict[str, float]:
    """Returns `spearman` and `pearson` correlations of both texts' cosines with scores [N]; NaN if one side is
    constant, as with a single row.

    vectors [N,2,D].
    """
    if len(scores) < 2:
        return {"spearman": math.nan, "pearson": math.nan}
    cosines = np.einsum("nd,nd->n", vectors[:, 0], vectors[:, 1])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of constant sides
        correlations = {
            "spearman": scipy.stats.spearmanr(scores, cosines)[0],
            "pearson": scipy.stats.pearsonr(scores, cosines)[0],
        }
    return {name: float(value) for name, value in correlations.items()}
