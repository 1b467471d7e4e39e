"""The report on an evaluation of answers: scores by the length of the answer and by the threshold for no answer, the
worst answers.
"""

import math
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from official_bert.reports import pictures
from official_bert.reports.comparable import ComparableAnswers
from official_bert.reports.sections import Mistake, Section, mistakes_section, table_section
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
    (11, math.inf, "more than 10 words"),
)
THRESHOLDS = 41  # of the curve
NO_ANSWER = "(no answer)"
IN_WORDS = {"exact_match": "exact match", "f1": "F1"}
Scores = Mapping[str, np.ndarray]  # exact match and F1 of each question


def examine(articles: Sequence[Mapping], decoded: Mapping[str, Decoded], version_2: bool) -> Iterator[Section]:
    """Yields report sections about the answered questions, which are all of `articles`; scores are from 0 to 1."""
    answered, scores = _answered(articles, decoded, version_2)
    yield _by_length([row for row, *_ in answered], scores)
    if version_2:
        yield _by_threshold(articles, decoded)
    yield mistakes_section(
        [
            Mistake(
                [row["question"], context],
                _gold(row),
                answer.prediction or NO_ANSWER,
                float(answer.nbest[0].probability) if answer.nbest else 0.0,
            )
            for (row, context, answer), f1 in zip(answered, scores["f1"])
            if f1 == 0.0
        ],
        "probability",
        title="The most confident answers that share no word with the right one",
    )


def comparable(articles: Sequence[Mapping], decoded: Mapping[str, Decoded], version_2: bool) -> ComparableAnswers:
    """Returns the answers to all questions of `articles` for a comparison with another model's; scores: 0 to 1."""
    answered, scores = _answered(articles, decoded, version_2)
    return ComparableAnswers(
        questions=[f"{row['id']}: {row['question']}" for row, *_ in answered],
        gold=[_gold(row) for row, *_ in answered],
        answers=[answer.prediction or NO_ANSWER for *_, answer in answered],
        measure=lambda rows: _means(scores, rows),
        right=scores["exact_match"] == 1.0,
    )


def _answered(
    articles: Sequence[Mapping], decoded: Mapping[str, Decoded], version_2: bool
) -> tuple[list[tuple[Mapping, str, Decoded]], Scores]:
    """Each question with its context and answer, and the scores of the answers."""
    rows = [(row, paragraph.get("context", ""), decoded[row["id"]]) for _, paragraph, row in questions_in(articles)]
    return rows, _scores(articles, {key: value.prediction for key, value in decoded.items()}, version_2)


def _scores(articles: Sequence[Mapping], texts: Mapping[str, str], version_2: bool) -> Scores:
    scores = metrics.question_scores(articles, texts, version_2)
    return {name: np.array(list(by_question.values())) for name, by_question in zip(IN_WORDS, scores)}


def _means(scores: Scores, rows: np.ndarray) -> dict[str, float]:
    return {name: float(values[rows].mean()) for name, values in scores.items()}


def _gold(question: Mapping) -> str:
    """The different gold answers in one text."""
    return " / ".join(dict.fromkeys(metrics.gold_answers(question))) or NO_ANSWER


def _by_length(questions: Sequence[Mapping], scores: Scores) -> Section:
    """Scores by the words of the shortest right answer, those of 2018's basic split: spaces alone would make one of a
    Chinese sentence.
    """
    split = BasicTokenizer(do_lower_case=False).tokenize
    lengths = np.array([min((len(split(text)) for text in metrics.gold_answers(row)), default=0) for row in questions])
    values = {}
    for least, most, name in LENGTHS:
        if len(rows := np.flatnonzero((lengths >= least) & (lengths <= most))):
            values[name] = {"questions": len(rows), **_means(scores, rows)}
    bars = {name: {shown: 100.0 * row[score] for score, shown in IN_WORDS.items()} for name, row in values.items()}
    return table_section(
        name="answer_length",
        title="By the length of the right answer",
        values=values,
        on_screen=True,
        note="Words are those of the basic split: what stands between spaces, each punctuation mark, each Chinese "
        "ideograph.",
        header=("right answer", "questions", *IN_WORDS.values()),
        pictures=[pictures.bars_picture(bars, "percent", "Exact match and F1 by the length of the right answer")],
    )


def _by_threshold(articles: Sequence[Mapping], decoded: Mapping[str, Decoded]) -> Section:
    """Scores of all questions for thresholds from the lowest to the highest odds of no answer: above it, no answer is
    given.
    """
    best = _scores(articles, {key: value.best_text for key, value in decoded.items()}, True)
    nothing = _scores(articles, dict.fromkeys(decoded, ""), True)
    odds = np.array([decoded[row["id"]].null_odds for row in metrics.questions_of(articles)])
    values = []
    for threshold in np.unique(np.quantile(odds, np.linspace(0.0, 1.0, THRESHOLDS))):
        means = {score: float(np.where(odds > threshold, nothing[score], best[score]).mean()) for score in IN_WORDS}
        values.append({"threshold": float(threshold), **means})
    curves = {shown: {row["threshold"]: 100.0 * row[score] for row in values} for score, shown in IN_WORDS.items()}
    return Section(
        name="null_threshold",
        title="By the threshold for no answer",
        values=values,
        note="No answer is given if its score lies above that of the best answer by more than the threshold.",
        pictures=[pictures.lines_picture(curves, "null_score_diff_threshold", "percent", "Scores by threshold")],
    )
