"""Measures of rankings, as trec_eval computes them: nDCG@10, MRR@10, recall, MAP."""

from collections.abc import Mapping, Sequence

import numpy as np

from official_bert.reports.sections import Mistake, Section, mistakes_section

DEPTH = 100  # of the rankings that are measured
RECALLS = (1, 5, 10, 100)
FIRST = 10  # places that nDCG and MRR look at


def measure(rankings: Sequence[Sequence[int]], relevant: Sequence[Mapping[int, int]]) -> list[dict[str, float]]:
    """Returns the measures of each query from its ranking, the numbers of the best passages in order, and the grades of its answers.

    A ranking counts as it stands: there are no ties. `ndcg_at_10` has linear gains, as in trec_eval.
    """
    return [_measures(np.array([grades.get(passage, 0) for passage in ranking[:DEPTH]]),
                      np.array(sorted(grades.values(), reverse=True))) for ranking, grades in zip(rankings, relevant)]


def _measures(gains: np.ndarray, best_gains: np.ndarray) -> dict[str, float]:
    """Returns the measures of a query from the grades in its ranking, and from those of its answers, highest first."""
    ranks, count = 1 + np.flatnonzero(gains), max(1, len(best_gains))  # of the answers
    precisions = (1 + np.arange(len(ranks))) / ranks
    return {f"ndcg_at_{FIRST}": _gain(gains) / (_gain(best_gains) or 1.0),
            **{f"recall_at_{most}": float((ranks <= most).sum()) / count for most in RECALLS},
            f"map_at_{DEPTH}": float(precisions.sum()) / count,
            f"mrr_at_{FIRST}": float(max(1 / ranks[ranks <= FIRST], default=0.0))}


def _gain(gains: np.ndarray) -> float:
    """Returns the discounted gain of the first places."""
    return float(np.sum(gains[:FIRST] / np.log2(2 + np.arange(len(gains[:FIRST])))))


def means(measured: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Returns the mean of each measure over the queries."""
    return {name: float(np.mean([row[name] for row in measured])) for name in measured[0]}


def worst_queries(queries: Sequence[str], measured: Sequence[dict[str, float]], answers: Sequence[str], first: Sequence[str]) -> Section:
    """The queries with the lowest nDCG@10: the answer that was wanted, and the text that stands first."""
    mistakes = [Mistake([query], answer, nearest, 1.0 - row["ndcg_at_10"])
                for query, row, answer, nearest in zip(queries, measured, answers, first) if row["ndcg_at_10"] < 1.0]
    return mistakes_section(mistakes, "1 - nDCG@10", name="worst_queries", title="The queries that fare worst")
