"""Exact match and F1 of SQuAD 1.1 and 2.0 by the official evaluators, and the threshold for no answer."""

from collections.abc import Mapping, Sequence

from official.nlp.tools import squad_evaluate_v1_1, squad_evaluate_v2_0

from official_bert.tasks.squad.decoding import Decoded


def evaluate(articles: Sequence[Mapping], decoded: Mapping[str, Decoded], version_2: bool) -> dict[str, float]:
    """`exact_match` and `f1` in percent, as the official script of the version gives them.

    With version 2 also both over the questions with and without an answer (`has_answer_f1`, `no_answer_f1` ...), and the best
    that another threshold would give, with it: `best_exact_match`, `best_exact_match_threshold`, `best_f1`,
    `best_f1_threshold`.

    Raises ValueError where a question has no gold answer at all (a test set), or a version 2 file is read as version 1.
    """
    predictions = {key: value.prediction for key, value in decoded.items()}
    if not version_2:
        _check_answers(articles)
        found = squad_evaluate_v1_1.evaluate(articles, predictions)
        return {"exact_match": 100.0 * found["exact_match"], "f1": 100.0 * found["final_f1"]}
    found = squad_evaluate_v2_0.evaluate(articles, predictions)
    metrics = {"exact_match": found["exact"], "f1": found["f1"]}
    for ours, theirs in (("has_answer", "HasAns"), ("no_answer", "NoAns")):
        if f"{theirs}_total" in found:
            metrics |= {f"{ours}_exact_match": found[f"{theirs}_exact"], f"{ours}_f1": found[f"{theirs}_f1"]}
    for name, (best, threshold) in best_thresholds(articles, decoded).items():
        metrics |= {f"best_{name}": best, f"best_{name}_threshold": threshold}
    return metrics


def _check_answers(articles: Sequence[Mapping]) -> None:
    for article in articles:
        for paragraph in article["paragraphs"]:
            for row in paragraph["qas"]:
                if not row.get("answers"):
                    raise ValueError(f"question {row['id']!r}: expected gold answers to evaluate against, got none; a file with "
                                     "questions that have none is read with version_2_with_negative")


def has_gold_answers(articles: Sequence[Mapping]) -> bool:
    """Whether the file says what is right, so that there is something to evaluate: a test set may not."""
    return any("answers" in row for article in articles for paragraph in article["paragraphs"] for row in paragraph["qas"])


def best_thresholds(articles: Sequence[Mapping], decoded: Mapping[str, Decoded]) -> dict[str, tuple[float, float]]:
    """`exact_match` and `f1` as (best in percent, threshold that gives it).

    As the official script finds it, but from each question's best real answer, so that the threshold with which the answers
    were decoded plays no part.
    """
    texts = {key: value.best_text for key, value in decoded.items()}
    exact, f1 = squad_evaluate_v2_0._get_raw_scores(articles, texts)
    answerable = squad_evaluate_v2_0._make_qid_to_has_ans(articles)
    odds = {key: value.null_odds for key, value in decoded.items()}
    return {"exact_match": best_threshold(exact, odds, answerable), "f1": best_threshold(f1, odds, answerable)}


def best_threshold(scores: Mapping[str, float], odds: Mapping[str, float],
                   answerable: Mapping[str, bool]) -> tuple[float, float]:
    """(best mean score in percent, the largest of the best thresholds): an answer is given where odds <= threshold.

    `scores` are what each question's real answer earns; no answer earns 1 where there is none, else 0. A threshold is always a
    number: where it is best never to answer, it lies below all odds.
    """
    order = sorted(scores, key=lambda key: odds[key])
    total = float(sum(not answerable[key] for key in order))
    best, threshold = total, min(odds.values(), default=0.0) - 1.0
    for number, key in enumerate(order):
        total += scores[key] if answerable[key] else -1.0
        together = number + 1 < len(order) and odds[order[number + 1]] == odds[key]  # no threshold parts equal odds
        if total > best and not together:
            best, threshold = total, odds[key]
    return 100.0 * best / max(len(order), 1), threshold
