"""The report on an evaluation of answers: scores by the length of the answer and by the threshold for no answer, the
worst answers.
"""

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from official_bert.reports import pictures
from official_bert.reports.comparable import ComparableAnswers
from official_bert.reports.sections import Mistake, Section, mistakes_section
from official_bert.tasks.squad import metrics
from official_bert.tasks.squad.decoding import Decoded
from official_bert.tasks.squad.reading import questions_in
from official_bert.text.tokenization import BasicTokenizer

LENGTHS = (
    (0, 0, "no answer"),
    (1, 1, "1 word"),
    (2, 2, "2 words"),
    (3, 5, "3 to 5 words"),
    (6, 10, "6 to 10 words"),
    (11, None, "more than 10 words"),
)
THRESHOLDS = 41  # of the curve


def examine(articles: Sequence[Mapping], decoded: Mapping[str, Decoded], version_2: bool) -> Iterator[Section]:
    """Yields report sections about the answered questions, which are all of `articles`; scores are from 0 to 1."""
    exact, f1 = metrics.question_scores(articles, {key: value.prediction for key, value in decoded.items()}, version_2)
    questions = {row["id"]: row for row in metrics.questions_of(articles) if row["id"] in decoded}
    contexts = {row["id"]: paragraph.get("context", "") for _, paragraph, row in questions_in(articles)}
    yield _by_length(questions, exact, f1)
    if version_2:
        yield _by_threshold(articles, decoded)
    yield mistakes_section(
        [
            Mistake(
                [row["question"], contexts[key]],
                _gold(row),
                decoded[key].prediction or "(no answer)",
                float(decoded[key].nbest[0].probability) if decoded[key].nbest else 0.0,
            )
            for key, row in questions.items()
            if f1[key] == 0.0
        ],
        "probability",
        title="The most confident answers that share no word with the right one",
    )


def comparable(articles: Sequence[Mapping], decoded: Mapping[str, Decoded], version_2: bool) -> ComparableAnswers:
    """Returns the answers to all questions of `articles` for a comparison with another model's; scores: 0 to 1."""
    by_question = metrics.question_scores(
        articles, {key: value.prediction for key, value in decoded.items()}, version_2
    )
    rows = [row for row in metrics.questions_of(articles) if row["id"] in decoded]
    exact, f1 = (np.array([scores[row["id"]] for row in rows]) for scores in by_question)
    return ComparableAnswers(
        questions=[f"{row['id']}: {row['question']}" for row in rows],
        gold=[_gold(row) for row in rows],
        answers=[decoded[row["id"]].prediction or "(no answer)" for row in rows],
        measure=lambda numbers: {"exact_match": float(exact[numbers].mean()), "f1": float(f1[numbers].mean())},
        right=exact == 1.0,
    )


def _gold(question: Mapping) -> str:
    """The different gold answers in one text."""
    return " / ".join(dict.fromkeys(metrics.gold_answers(question))) or "(no answer)"


def _by_length(questions: Mapping[str, Mapping], exact: Mapping[str, float], f1: Mapping[str, float]) -> Section:
    """Scores by the words of the shortest right answer, those of 2018's basic split: spaces alone would make one of a
    Chinese sentence.
    """
    split = BasicTokenizer(do_lower_case=False).tokenize
    lengths = {
        key: min((len(split(text)) for text in metrics.gold_answers(row)), default=0) for key, row in questions.items()
    }
    values = {}
    for least, most, name in LENGTHS:
        if keys := [key for key, length in lengths.items() if length >= least and (most is None or length <= most)]:
            values[name] = {
                "questions": len(keys),
                "exact_match": float(np.mean([exact[key] for key in keys])),
                "f1": float(np.mean([f1[key] for key in keys])),
            }
    bars = {name: {"exact match": 100.0 * row["exact_match"], "F1": 100.0 * row["f1"]} for name, row in values.items()}
    return Section(
        name="answer_length",
        title="By the length of the right answer",
        values=values,
        on_screen=True,
        note="Words are those of the basic split: what stands between spaces, each punctuation mark, each Chinese "
        "ideograph.",
        header=("right answer", "questions", "exact match", "F1"),
        rows=[[name, *row.values()] for name, row in values.items()],
        pictures=[pictures.bars_picture(bars, "percent", "Exact match and F1 by the length of the right answer")],
    )


def _by_threshold(articles: Sequence[Mapping], decoded: Mapping[str, Decoded]) -> Section:
    """Scores of all questions for thresholds from the lowest to the highest odds of no answer: above it, no answer is
    given.
    """
    odds = np.array([value.null_odds for value in decoded.values()])
    curves: dict[str, dict[float, float]] = {"exact match": {}, "F1": {}}
    for threshold in np.unique(np.quantile(odds, np.linspace(0.0, 1.0, THRESHOLDS))):
        answers = {key: "" if value.null_odds > threshold else value.best_text for key, value in decoded.items()}
        for name, scores in zip(curves, metrics.question_scores(articles, answers, True)):
            curves[name][float(threshold)] = float(np.mean(list(scores.values())))
    values = [
        {"threshold": threshold, "exact_match": exact, "f1": curves["F1"][threshold]}
        for threshold, exact in curves["exact match"].items()
    ]
    in_percent = {
        name: {threshold: 100.0 * score for threshold, score in points.items()} for name, points in curves.items()
    }
    return Section(
        name="null_threshold",
        title="By the threshold for no answer",
        values=values,
        note="No answer is given if its score lies above that of the best answer by more than the threshold.",
        pictures=[pictures.lines_picture(in_percent, "null_score_diff_threshold", "percent", "Scores by threshold")],
    )
