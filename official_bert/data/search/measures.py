"""Measures of rankings, computed by trec_eval (`pytrec_eval`): nDCG@10, MRR@10, recall, MAP."""

from collections.abc import Mapping, Sequence

import numpy as np

from official_bert.reports.sections import Mistake, Section, mistakes_section

DEPTH = 100  # of the rankings that are measured
RECALLS = (1, 5, 10, 100)
FIRST = 10  # places that nDCG and MRR look at
NAMES = {f"ndcg_cut_{FIRST}": f"ndcg_at_{FIRST}", **{f"recall_{most}": f"recall_at_{most}" for most in RECALLS},
         f"map_cut_{DEPTH}": f"map_at_{DEPTH}"}
MEASURES = {f"ndcg_cut.{FIRST}", "recall." + ",".join(map(str, RECALLS)), f"map_cut.{DEPTH}"}


def measure(rankings: Sequence[Sequence[int]], relevant: Sequence[Mapping[int, int]]) -> list[dict[str, float]]:
    """Returns the measures of each query from its ranking, the numbers of the best passages in order, and the grades of its answers.

    A ranking counts as it stands: there are no ties. `ndcg_at_10` has linear gains, as trec_eval computes it. Raises ValueError where
    pytrec_eval is not installed.
    """
    try:
        import pytrec_eval
    except ImportError:  # there is no wheel for Linux on aarch64
        raise ValueError("measures of rankings: expected the package pytrec_eval-terrier (pip install pytrec_eval-terrier builds it with a "
                         "compiler)") from None
    judged = {str(query): {str(passage): int(grade) for passage, grade in grades.items()} for query, grades in enumerate(relevant)}
    runs = [{str(query): {str(passage): float(-place) for place, passage in enumerate(ranking[:depth])}
             for query, ranking in enumerate(rankings)} for depth in (DEPTH, FIRST)]
    whole = pytrec_eval.RelevanceEvaluator(judged, MEASURES).evaluate(runs[0])
    first = pytrec_eval.RelevanceEvaluator(judged, {"recip_rank"}).evaluate(runs[1])
    return [{name: whole.get(key, {}).get(theirs, 0.0) for theirs, name in NAMES.items()}
            | {f"mrr_at_{FIRST}": first.get(key, {}).get("recip_rank", 0.0)} for key in map(str, range(len(rankings)))]


def means(measured: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Returns the mean of each measure over the queries."""
    return {name: float(np.mean([row[name] for row in measured])) for name in measured[0]}


def worst_queries(queries: Sequence[str], measured: Sequence[dict[str, float]], answers: Sequence[str], first: Sequence[str]) -> Section:
    """The queries with the lowest nDCG@10: the answer that was wanted, and the text that stands first."""
    mistakes = [Mistake([query], answer, nearest, 1.0 - row["ndcg_at_10"])
                for query, row, answer, nearest in zip(queries, measured, answers, first) if row["ndcg_at_10"] < 1.0]
    return mistakes_section(mistakes, "1 - nDCG@10", name="worst_queries", title="The queries that fare worst")
