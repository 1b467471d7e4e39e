"""Exact match and F1 of SQuAD 1.1 and 2.0, as the official scripts of each version count them, and the threshold for no
answer.
"""

import collections
import re
import string
from collections.abc import Callable, Iterator, Mapping, Sequence

from official_bert.tasks.squad.decoding import Decoded
from official_bert.tasks.squad.reading import questions_in

ARTICLES = re.compile(r"\b(a|an|the)\b")
PUNCTUATION = str.maketrans("", "", string.punctuation)


def squad_metrics(articles: Sequence[Mapping], decoded: Mapping[str, Decoded], version_2: bool) -> dict[str, float]:
    """Returns `exact_match` and `f1`, from 0 to 1, as the official script of the version counts them (it prints
    percent).

    With version 2 also both over the questions with and without an answer (`has_answer_f1`, `no_answer_f1` ...), and
    the best values that another threshold gives, with that threshold: `best_exact_match`, `best_exact_match_threshold`,
    `best_f1`, `best_f1_threshold`.

    Raises ValueError as `check_answers` does.
    """
    predictions = {key: value.prediction for key, value in decoded.items()}
    check_answers(articles, version_2)
    if not version_2:
        return mean_scores(articles, predictions)
    exact, f1 = question_scores(articles, predictions, version_2=True)
    answerable = _answerable(articles)
    metrics = {"exact_match": _mean(exact, exact), "f1": _mean(f1, f1)}
    for name, has_answer in (("has_answer", True), ("no_answer", False)):
        if keys := [key for key in exact if answerable[key] == has_answer]:
            metrics |= {f"{name}_exact_match": _mean(exact, keys), f"{name}_f1": _mean(f1, keys)}
    for name, (best, threshold) in best_thresholds(articles, decoded).items():
        metrics |= {f"best_{name}": best, f"best_{name}_threshold": threshold}
    return metrics


def normalize(text: str) -> str:
    """Returns `text` in lower case, without ASCII punctuation, English articles and extra white space."""
    return " ".join(ARTICLES.sub(" ", text.lower().translate(PUNCTUATION)).split())


def token_f1(prediction: str, gold: str) -> float:
    """Returns F1 of the words that two normalised answers share; two empty answers agree (1)."""
    predicted, expected = prediction.split(), gold.split()
    if not predicted or not expected:
        return float(predicted == expected)
    shared = (collections.Counter(predicted) & collections.Counter(expected)).total()
    if not shared:
        return 0.0
    precision, recall = shared / len(predicted), shared / len(expected)
    return (2 * precision * recall) / (precision + recall)


def mean_scores(
    articles: Sequence[Mapping], predictions: Mapping[str, str], normalizes: Callable[[str], str] = normalize
) -> dict[str, float]:
    """Returns `exact_match` and `f1` as version 1 counts them: every question counts, even without a prediction."""
    total = float(sum(1 for _ in questions_of(articles)))
    exact, f1 = question_scores(articles, predictions, version_2=False, normalizes=normalizes)
    return {"exact_match": sum(exact.values()) / total, "f1": sum(f1.values()) / total}


def question_scores(
    articles: Sequence[Mapping],
    predictions: Mapping[str, str],
    version_2: bool,
    normalizes: Callable[[str], str] = normalize,
) -> tuple[dict[str, float], dict[str, float]]:
    """Returns exact match and F1, from 0 to 1, of each question with a prediction.

    Version 1: an answer that normalises to nothing earns no F1. Version 2: without a gold answer, "" is the right one.
    """
    exact, f1 = {}, {}
    for row in questions_of(articles):
        if row["id"] in predictions:
            predicted = normalizes(predictions[row["id"]])
            golds = [normalizes(text) for text in gold_answers(row)]
            golds = [gold for gold in golds if gold] or [""] if version_2 else golds
            exact[row["id"]] = float(predicted in golds)
            f1[row["id"]] = max(token_f1(predicted, gold) for gold in golds) if predicted or version_2 else 0.0
    return exact, f1


def _mean(scores: Mapping[str, float], keys: Sequence[str] | Mapping) -> float:
    return sum(scores[key] for key in keys) / len(keys)


def questions_of(articles: Sequence[Mapping]) -> Iterator[Mapping]:
    """Yields the questions of articles, in order."""
    return (row for _, _, row in questions_in(articles))


def gold_answers(row: Mapping) -> list[str]:
    """Returns the gold answers to a question; an impossible one needs no `answers`."""
    return [answer["text"] for answer in row.get("answers", ())]


def _answerable(articles: Sequence[Mapping]) -> dict[str, bool]:
    return {row["id"]: bool(gold_answers(row)) for row in questions_of(articles)}


def check_answers(articles: Sequence[Mapping], version_2: bool, where: str = "articles") -> None:
    """Raises ValueError for a question without gold answers; in version 2 they may be [], or missing if it
    `is_impossible`.
    """
    for row in questions_of(articles):
        if not (row.get("answers") or (version_2 and ("answers" in row or row.get("is_impossible")))):
            hint = (
                "a question that has none says so: is_impossible: true"
                if version_2
                else "a file with questions that have none is read with version_2_with_negative"
            )
            raise ValueError(
                f"{where}: question {row['id']!r}: expected gold answers to evaluate against, got none; {hint}"
            )


def has_gold_answers(articles: Sequence[Mapping], version_2: bool) -> bool:
    """Returns whether the file has gold answers. A test set may have none; empty ones are answers in version 2 only."""
    return any("answers" in row if version_2 else row.get("answers") for row in questions_of(articles))


def best_thresholds(articles: Sequence[Mapping], decoded: Mapping[str, Decoded]) -> dict[str, tuple[float, float]]:
    """Returns `exact_match` and `f1` as (best, threshold that gives it).

    This is the official script's search, but over each question's best non-null answer, so that the threshold used in
    decoding has no influence.
    """
    texts = {key: value.best_text for key, value in decoded.items()}
    exact, f1 = question_scores(articles, texts, version_2=True)
    answerable = _answerable(articles)
    odds = {key: value.null_odds for key, value in decoded.items()}
    return {"exact_match": best_threshold(exact, odds, answerable), "f1": best_threshold(f1, odds, answerable)}


def best_threshold(
    scores: Mapping[str, float], odds: Mapping[str, float], answerable: Mapping[str, bool]
) -> tuple[float, float]:
    """Returns (best mean score, the largest of the best thresholds); an answer is given if odds <= threshold.

    `scores` has the score of each question's non-null answer; no answer scores 1 if the question has none, else 0. The
    threshold is always finite: if it is best never to answer, it lies below all odds.
    """
    order = sorted(scores, key=lambda key: odds[key])
    total = float(sum(not answerable[key] for key in order))
    best, threshold = total, min(odds.values(), default=0.0) - 1.0
    for number, key in enumerate(order):
        total += scores[key] if answerable[key] else -1.0
        together = number + 1 < len(order) and odds[order[number + 1]] == odds[key]  # no threshold parts equal odds
        if total > best and not together:
            best, threshold = total, odds[key]
    return best / max(len(order), 1), threshold
