"""Computes nDCG@10, MRR@10, recall and MAP with trec_eval (`pytrec_eval`), or with `ranx` where that has no wheel."""

from collections.abc import Mapping, Sequence

import numpy as np

from official_bert.reports.sections import Mistake, Section, mistakes_section

DEPTH = 100  # of the rankings that are measured
RECALLS = (1, 5, 10, 100)
FIRST = 10  # places that nDCG and MRR look at
NAMES = {
    f"ndcg_cut_{FIRST}": f"ndcg_at_{FIRST}",
    **{f"recall_{most}": f"recall_at_{most}" for most in RECALLS},
    f"map_cut_{DEPTH}": f"map_at_{DEPTH}",
}
MEASURES = {f"ndcg_cut.{FIRST}", "recall." + ",".join(map(str, RECALLS)), f"map_cut.{DEPTH}"}
Judgements = dict[str, dict[str, int]]
Runs = dict[str, dict[str, float]]


def measure(rankings: Sequence[Sequence[int]], relevant: Sequence[Mapping[int, int]]) -> list[dict[str, float]]:
    """Returns the measures of each query. `rankings` has the numbers of its best passages in order, `relevant` the
    grades of its answers.

    The order of a ranking counts, so there are no ties. `ndcg_at_10` has linear gains, as in trec_eval. Raises
    ValueError if neither package is installed.
    """
    judged = {
        str(query): {str(passage): int(grade) for passage, grade in grades.items()}
        for query, grades in enumerate(relevant)
    }
    ranked = {
        str(query): {str(passage): float(-place) for place, passage in enumerate(ranking[:DEPTH])}
        for query, ranking in enumerate(rankings)
    }
    try:
        scores = _by_trec_eval(judged, ranked)
    except ImportError:  # on Linux for aarch64
        scores = _by_ranx(judged, ranked)
    return [scores[query] for query in ranked]


def _by_trec_eval(judged: Judgements, ranked: Runs) -> dict[str, dict[str, float]]:
    import pytrec_eval

    first = {
        query: {passage: score for passage, score in scores.items() if score > -FIRST}
        for query, scores in ranked.items()
    }
    whole = pytrec_eval.RelevanceEvaluator(judged, MEASURES).evaluate(ranked)
    of_first = pytrec_eval.RelevanceEvaluator(judged, {"recip_rank"}).evaluate(first)
    return {
        query: {name: whole.get(query, {}).get(theirs, 0.0) for theirs, name in NAMES.items()}
        | {f"mrr_at_{FIRST}": of_first.get(query, {}).get("recip_rank", 0.0)}
        for query in ranked
    }


def _by_ranx(judged: Judgements, ranked: Runs) -> dict[str, dict[str, float]]:
    try:
        import ranx
    except ImportError:
        raise ValueError(
            "measures of rankings: expected the package pytrec_eval-terrier, or ranx: pip install ranx"
        ) from None
    names = {name.replace("_at_", "@"): name for name in (*NAMES.values(), f"mrr_at_{FIRST}")}
    run = ranx.Run.from_dict(ranked)
    ranx.evaluate(ranx.Qrels.from_dict(judged), run, list(names), make_comparable=True)
    return {query: {name: float(run.scores[theirs][query]) for theirs, name in names.items()} for query in ranked}


def reciprocal_rank(rankings: Sequence[Sequence[int]], relevant: Sequence[Mapping[int, int]]) -> float:
    """Returns the mean of 1 / rank of the first answer; a query whose ranking has no answer counts as 0."""
    first = [
        next((place for place, passage in enumerate(ranking, 1) if passage in grades), np.inf)
        for ranking, grades in zip(rankings, relevant)
    ]
    return float(np.mean(1.0 / np.array(first, float)))


def means(measured: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Returns the mean of each measure over the queries."""
    return {name: float(np.mean([row[name] for row in measured])) for name in measured[0]}


def worst_queries(
    queries: Sequence[str], measured: Sequence[dict[str, float]], answers: Sequence[str], first: Sequence[str]
) -> Section:
    """Returns the section of a report with the queries of lowest nDCG@10, their answers, and the texts that were ranked
    first.
    """
    mistakes = [
        Mistake([query], answer, nearest, 1.0 - row["ndcg_at_10"])
        for query, row, answer, nearest in zip(queries, measured, answers, first)
        if row["ndcg_at_10"] < 1.0
    ]
    return mistakes_section(mistakes, "1 - nDCG@10", name="worst_queries", title="The queries with the worst rankings")
