"""Exact match, F1 and thresholds, by hand and against the official search."""

import random

import pytest

from official_bert.tasks.squad import metrics
from official_bert.tasks.squad.decoding import Answer, Decoded


def articles_of(questions):
    return [
        {
            "paragraphs": [
                {
                    "context": "",
                    "qas": [
                        {"id": key, "question": "?", "answers": [{"text": text} for text in texts]}
                        for key, texts in questions.items()
                    ],
                }
            ]
        }
    ]


def decoded(prediction, odds=0.0, best=None):
    return Decoded(prediction, (Answer(prediction, 1.0, 0.0, 0.0),), odds, prediction if best is None else best)


def test_version_1_takes_the_best_of_several_gold_answers_without_articles_case_and_punctuation():
    articles = articles_of({"a": ["the Cat.", "dog"], "b": ["a red ferry boat"], "c": ["never"]})
    measured = metrics.squad_metrics(
        articles, {"a": decoded("cat"), "b": decoded("red boat house"), "c": decoded("ever")}, False
    )
    # b: 2 words of 3 in common, of 3 gold ones: F1 2/3
    assert measured == pytest.approx({"exact_match": 1 / 3, "f1": (1 + 2 / 3) / 3})


def test_version_2_counts_no_answer_as_right_where_there_is_none():
    articles = articles_of({"a": ["cat"], "b": [], "c": []})
    measured = metrics.squad_metrics(
        articles, {"a": decoded("cat", -5.0), "b": decoded("", 3.0, "dog"), "c": decoded("fish", -1.0)}, True
    )
    assert measured["exact_match"] == pytest.approx(2 / 3)
    assert (measured["has_answer_f1"], measured["no_answer_f1"]) == (1.0, 0.5)
    assert (measured["best_f1"], measured["best_f1_threshold"]) == (1.0, -5.0)


WORDS = ["the", "a", "an", "cat", "Cat.", "dog", "...", "-", "été", "ÉTÉ", "boat", "\u00a0", "the-cat", "北京", "1,000"]


def random_questions(draw, most_answers):
    """Returns gold answers and predictions of 30 questions, with articles, punctuation and text that normalises to
    nothing.
    """

    def text():
        return " ".join(draw.choices(WORDS, k=draw.randint(1, 4)))

    questions = {str(index): [text() for _ in range(draw.randint(*most_answers))] for index in range(30)}
    predictions = {key: draw.choice([*texts, text(), ""]) for key, texts in questions.items()}
    return questions, predictions


def test_scores_of_version_1_equal_the_official_script():
    official = pytest.importorskip("official.nlp.tools.squad_evaluate_v1_1")
    for seed in range(50):
        questions, predictions = random_questions(random.Random(seed), (1, 3))
        # a question that got no prediction counts as wrong
        predictions.pop("3")
        articles = articles_of(questions)
        wanted = official.evaluate(articles, predictions)
        measured = metrics.squad_metrics(articles, {key: decoded(text) for key, text in predictions.items()}, False)
        assert measured == pytest.approx({"exact_match": wanted["exact_match"], "f1": wanted["final_f1"]}, rel=1e-12)


def test_scores_of_version_2_equal_the_official_script():
    official = pytest.importorskip("official.nlp.tools.squad_evaluate_v2_0")
    for seed in range(50):
        questions, predictions = random_questions(random.Random(seed), (0, 3))
        predictions.pop("3")
        articles = articles_of(questions)
        wanted = official.evaluate(articles, predictions)
        measured = metrics.squad_metrics(articles, {key: decoded(text) for key, text in predictions.items()}, True)
        names = {
            "exact_match": "exact",
            "f1": "f1",
            "has_answer_exact_match": "HasAns_exact",
            "has_answer_f1": "HasAns_f1",
            "no_answer_exact_match": "NoAns_exact",
            "no_answer_f1": "NoAns_f1",
        }
        expected = {ours: wanted[theirs] / 100.0 for ours, theirs in names.items()}
        assert {name: measured[name] for name in names} == pytest.approx(expected, rel=1e-12)


def test_best_threshold_equals_the_official_search_where_it_finds_anything():
    squad_evaluate_v2_0 = pytest.importorskip("official.nlp.tools.squad_evaluate_v2_0")
    draw = random.Random(0)
    for _ in range(50):
        keys = [str(index) for index in range(20)]
        answerable = {key: draw.random() < 0.6 for key in keys}
        scores = {key: draw.random() if answerable[key] else 0.0 for key in keys}
        odds = {key: draw.gauss(0 if answerable[key] else 1, 1) for key in keys}
        official = squad_evaluate_v2_0._find_best_thresh(dict.fromkeys(keys, "text"), scores, odds, answerable)
        best, threshold = metrics.best_threshold(scores, odds, answerable)
        assert best == pytest.approx(official[0] / 100.0)
        mean = sum(scores[key] if odds[key] <= threshold else not answerable[key] for key in keys) / len(keys)
        assert mean == pytest.approx(best)


def test_a_threshold_is_one_that_can_be_applied_when_odds_are_equal():
    best, threshold = metrics.best_threshold({"a": 1.0, "b": 0.0}, {"a": 1.0, "b": 1.0}, {"a": True, "b": False})
    assert best == 0.5 and threshold == 0.0


def test_a_question_without_gold_answer_is_named_in_version_1():
    with pytest.raises(ValueError, match=r"question 'b'.*gold answers.*version_2_with_negative"):
        metrics.squad_metrics(articles_of({"a": ["x"], "b": []}), {"a": decoded("x"), "b": decoded("y")}, False)


def test_an_impossible_question_of_version_2_needs_no_answers():
    articles = articles_of({"a": ["cat"], "b": [], "c": []})
    answers = {"a": decoded("cat", -5.0), "b": decoded("", 3.0, "dog"), "c": decoded("fish", -1.0)}
    wanted = metrics.squad_metrics(articles, answers, True)
    for row in articles[0]["paragraphs"][0]["qas"][1:]:
        del row["answers"]
        row["is_impossible"] = True
    assert metrics.squad_metrics(articles, answers, True) == wanted and wanted["no_answer_f1"] == 0.5
    del articles[0]["paragraphs"][0]["qas"][2]["is_impossible"]
    with pytest.raises(
        ValueError, match=r"dev\.json: question 'c': expected gold answers .*, got none; .* is_impossible: true"
    ):
        metrics.check_answers(articles, True, "dev.json")


def test_empty_answers_are_gold_answers_in_version_2_only():
    articles = articles_of({"a": [], "b": []})
    assert metrics.has_gold_answers(articles, True) and not metrics.has_gold_answers(articles, False)
    assert metrics.has_gold_answers(articles_of({"a": [], "b": ["x"]}), False)
