"""Metrics of embeddings: search for the right text among all (recall, reciprocal rank), and similarity (correlation
with scores).

N rows, D hidden size.
"""

import math
import warnings

import numpy as np
import scipy.stats

from official_bert.search import measures

BEST = (1, 5, 10)  # of recall
AT_ONCE = 1024  # queries


def search(vectors: np.ndarray, texts: np.ndarray) -> dict[str, float]:
    """Searches the second text of each row among the second texts of all rows: `recall_at_1`, `_5`, `_10` and `mrr`,
    means over queries.

    vectors [N,2,D] of length 1; `texts` [N,2] are numbers, equal for equal texts. A first text that stands in several
    rows is one query with several right answers, each distinct second text is searched once, and the query itself is no
    candidate. Among equal similarities, wrong texts rank first, so that constant vectors score nothing.
    """
    ranks = _ranks(vectors, texts)
    measured = {f"recall_at_{best}": float(np.mean([np.mean(rank <= best) for rank in ranks])) for best in BEST}
    return measured | {"mrr": float(np.mean([1.0 / rank[0] for rank in ranks]))}


def _ranks(vectors: np.ndarray, texts: np.ndarray) -> list[np.ndarray]:
    """The ranks, from 1, of each query's right texts, best first."""
    queries, query_rows, query_of = np.unique(texts[:, 0], return_index=True, return_inverse=True)
    text_numbers, text_rows, text_of = np.unique(texts[:, 1], return_index=True, return_inverse=True)
    right: list[set[int]] = [set() for _ in queries]
    for query, text in zip(query_of, text_of):
        right[query].add(int(text))
    ranks = []
    for start in range(0, len(queries), AT_ONCE):
        similar = vectors[query_rows[start : start + AT_ONCE], 0] @ vectors[text_rows, 1].T
        for query, row in enumerate(similar, start):
            right_texts = sorted(right[query])
            wrong = np.ones(len(text_numbers), bool)
            wrong[right_texts] = False
            wrong &= text_numbers != queries[query]
            wrong_scores = np.sort(row[wrong])
            best = np.sort(row[right_texts])[::-1]
            nearer = len(wrong_scores) - np.searchsorted(wrong_scores, best, side="left")
            ranks.append(np.arange(1, len(right_texts) + 1) + nearer)
    return ranks


def measured(vectors: np.ndarray, texts: np.ndarray) -> list[dict[str, float]]:
    """Returns trec_eval's measures for each query of `search`, in the order of the numbers of first texts."""
    rankings, relevant = [], []
    for ranks in _ranks(vectors, texts):
        right = {int(rank) - 1: place for place, rank in enumerate(ranks)}
        depth = min(int(ranks[-1]), measures.DEPTH)
        # negative numbers stand for wrong texts
        rankings.append([right.get(place, -1 - place) for place in range(depth)])
        relevant.append(dict.fromkeys(range(len(ranks)), 1))
    return measures.measure(rankings, relevant)


def nearest_rows(vectors: np.ndarray, texts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns a row number for each query of `search`, in the same order, and the row of its nearest second text."""
    queries, rows = np.unique(texts[:, 0], return_index=True)
    seconds, second_rows = np.unique(texts[:, 1], return_index=True)
    nearest = []
    for start in range(0, len(queries), AT_ONCE):
        part = rows[start : start + AT_ONCE]
        similar = vectors[part, 0] @ vectors[second_rows, 1].T
        similar[seconds == queries[start : start + AT_ONCE, None]] = -np.inf
        nearest.append(similar.argmax(axis=1))
    return rows, second_rows[np.concatenate(nearest)]


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
