"""What each kind of task reports, against small evaluations worked out by hand."""

import types

import numpy as np
import pytest
from made_finetuning import make_config

from official_bert.data.labelled.labelled_texts import LabelledTexts, TextSet
from official_bert.models.interchange.classes import Classes
from official_bert.objectives.calibration import Calibration
from official_bert.tasks.answers import Examined
from official_bert.tasks.data import DataFiles
from official_bert.tasks.loading import load_task
from official_bert.tasks.squad import examination as questions
from official_bert.tasks.squad import metrics
from official_bert.tasks.squad.decoding import Answer, Decoded
from official_bert.tasks.tagging import examination as tags
from official_bert.tasks.texts import examination as texts


def task_of(head, labels=(), answer=None):
    """Makes what an examination of texts asks a task for."""
    answers = types.SimpleNamespace(classes=Classes(tuple(labels)), answer=answer, calibration=Calibration())
    return types.SimpleNamespace(head=head, answers=answers)


def by_name(sections):
    return {section.name: section for section in sections}


def test_one_label(tmp_path):
    rows = TextSet(
        "_other",
        LabelledTexts("dev.csv", ["good", "bad", "fine", "left out"], ["1", "2", "3", "4"], np.array([1, 0, 1, 0])),
    )
    logits = np.log([[0.2, 0.8], [0.1, 0.9], [0.6, 0.4]])
    found = by_name(texts.examine(task_of("classifier", ["no", "yes"]), rows, [0, 1, 2], logits))
    assert list(found) == ["classes_other", "confusion_other", "calibration_other", "roc_other", "mistakes_other"]
    assert found["classes_other"].values["yes"] == {
        "precision": 0.5,
        "recall": 0.5,
        "f1": 0.5,
        "support": 2,
        "roc_auc": 0.0,
    }
    assert found["confusion_other"].values["matrix"] == [[0, 1], [1, 1]]
    # One bin each: 0.8 right, 0.9 wrong, 0.6 wrong.
    assert found["calibration_other"].values["expected_calibration_error"] == pytest.approx((0.2 + 0.9 + 0.6) / 3)
    assert [
        (one["texts"], one["wanted"], one["got"], round(one["by"], 6)) for one in found["mistakes_other"].values
    ] == [(["bad", "2"], "no", "yes", 0.9), (["fine", "3"], "yes", "no", 0.6)]


def test_several_labels_and_scores_and_choices():
    rows = TextSet("", LabelledTexts("dev", ["a", "b"], None, np.array([[1, 0], [0, 0]], np.float32)))
    answers = iter(({"labels": ["x"], "probabilities": [0.9, 0.2]}, {"labels": ["y"], "probabilities": [0.4, 0.7]}))
    found = by_name(
        texts.examine(task_of("multi_label", ["x", "y"], lambda _: next(answers)), rows, [0, 1], np.zeros((2, 2)))
    )
    assert found["classes"].values["x"] == {"precision": 1.0, "recall": 1.0, "f1": 1.0, "support": 1, "roc_auc": 1.0}
    assert found["classes"].values["y"]["roc_auc"] is None and list(found["roc"].values) == ["x"]
    assert found["mistakes"].values == [{"texts": ["b"], "wanted": "(none)", "got": "y", "by": 0.7}]
    rows = TextSet("", LabelledTexts("dev", ["a", "b", "c"], None, np.array([1.0, 2.0, 3.0], np.float32)))
    found = by_name(texts.examine(task_of("regression"), rows, [0, 1, 2], np.array([[1.5], [2.0], [1.0]])))
    assert found["scores"].values == {
        "mean_error": -0.5,
        "mean_absolute_error": pytest.approx(2.5 / 3),
        "largest_absolute_error": 2.0,
    }
    assert found["mistakes"].values[0] == {"texts": ["c"], "wanted": "3", "got": "1", "by": 2.0}
    rows = TextSet("", LabelledTexts("dev", ["He"], None, np.array([1]), [("ran", "sat", "ate")]))
    found = by_name(texts.examine(task_of("choice"), rows, [0], np.log([[0.7, 0.2, 0.1]])))
    assert found["mistakes"].values == [{"texts": ["He"], "wanted": "sat", "got": "ran", "by": pytest.approx(0.7)}]


def test_all_rows_of_one_label_have_no_roc():
    rows = TextSet("", LabelledTexts("dev", ["a"], None, np.array([0])))
    found = by_name(texts.examine(task_of("classifier", ["no", "yes"]), rows, [0], np.array([[1.0, 0.0]])))
    assert "roc" not in found and found["classes"].values["no"]["roc_auc"] is None and found["mistakes"].values == []


def test_entities():
    sentences = [
        (("Anna", "Lee", "in", "Brno"), ("B-PER", "I-PER", "O", "B-LOC"), ("B-PER", "O", "O", "B-ORG")),
        (("it", "rains"), ("O", "O"), ("B-LOC", "O")),
        (("Brno",), ("B-LOC",), ("B-LOC",)),
        (("Oslo",), ("B-LOC",), ("O",)),
    ]
    found = by_name(tags.examine(sentences, plain=False))
    assert found["classes"].values["LOC"] == {
        "precision": 0.5,
        "recall": pytest.approx(1 / 3),
        "f1": pytest.approx(0.4),
        "support": 3,
    }
    assert found["classes"].values["ORG"] == {"precision": 0.0, "recall": 0.0, "f1": 0.0, "support": 0}
    assert {(one["wanted"], one["got"]): one["times"] for one in found["confusion"].values} == {
        ("PER", "[PER]"): 1,
        ("LOC", "ORG"): 1,
        ("(nothing)", "LOC"): 1,
        ("LOC", "(nothing)"): 1,
    }
    assert found["mistakes"].values[0] == {
        "texts": ["Anna Lee in Brno"],
        "wanted": "Anna Lee PER, Brno LOC",
        "got": "Anna PER, Brno ORG",
        "by": 2.0,
    }


def test_plain_tags():
    found = by_name(tags.examine([(("we", "sing"), ("PRON", "VERB"), ("PRON", "NOUN"))], plain=True))
    assert found["classes"].values["PRON"]["f1"] == 1.0 and found["classes"].values["VERB"]["recall"] == 0.0
    assert found["confusion"].values == [{"wanted": "VERB", "got": "NOUN", "times": 1}]


def decoded(text, odds=0.0, best=None, probability=0.5):
    return Decoded(text, (Answer(text, probability, 0.0, 0.0),), odds, text if best is None else best)


def test_the_length_of_an_answer_without_spaces_is_that_of_its_basic_split():
    texts = {"chinese": "布尔诺市", "mixed": "1984年", "english": "Brno"}
    articles = [
        {
            "paragraphs": [
                {
                    "context": "",
                    "qas": [
                        {"id": key, "question": "?", "answers": [{"text": text, "answer_start": 0}]}
                        for key, text in texts.items()
                    ],
                }
            ]
        }
    ]
    found = by_name(questions.examine(articles, {key: decoded(text) for key, text in texts.items()}, version_2=False))
    assert {name: row["questions"] for name, row in found["answer_length"].values.items()} == {
        "1 word": 1,
        "2 words": 1,
        "3 to 5 words": 1,
    }


def test_questions():
    def question(key, *answers):
        return {"id": key, "question": f"{key}?", "answers": [{"text": text, "answer_start": 0} for text in answers]}

    articles = [
        {
            "paragraphs": [
                {
                    "context": "all of it",
                    "qas": [
                        question("one", "Brno", "the city of Brno"),
                        question("three", "in the year 1984"),
                        question("none"),
                    ],
                }
            ]
        }
    ]
    answers = {
        "one": decoded("Brno", -5.0),
        "three": decoded("1984", -1.0),
        "none": decoded("Oslo", 1.0, probability=0.9),
    }
    found = by_name(questions.examine(articles, answers, version_2=True))
    assert found["answer_length"].values == {
        "no answer": {"questions": 1, "exact_match": 0.0, "f1": 0.0},
        "1 word": {"questions": 1, "exact_match": 1.0, "f1": 1.0},
        "3 to 5 words": {"questions": 1, "exact_match": 0.0, "f1": pytest.approx(0.5)},
    }  # 1984 of "in year 1984"
    by_threshold = {row["threshold"]: row["f1"] for row in found["null_threshold"].values}
    assert by_threshold[-1.0] == pytest.approx((1 + 0.5 + 1) / 3) and by_threshold[1.0] == pytest.approx(0.5)
    official = metrics.squad_metrics(articles, answers, version_2=True)
    assert official["f1"] == pytest.approx(by_threshold[1.0])
    assert found["mistakes"].values == [
        {"texts": ["none?", "all of it"], "wanted": "(no answer)", "got": "Oslo", "by": 0.9}
    ]
    articles[0]["paragraphs"][0]["qas"][2] = {"id": "none", "question": "none?", "is_impossible": True}
    again = by_name(questions.examine(articles, answers, version_2=True))
    assert {name: section.values for name, section in again.items()} == {
        name: section.values for name, section in found.items()
    }


@pytest.mark.parametrize("threshold", ["0.5", "tuned", "tuned_per_label"])
def test_several_labels_are_those_of_the_tuned_thresholds(threshold):
    labelled = LabelledTexts("dev", ["a", "b", "c"], None, np.array([[1, 0], [1, 1], [0, 0]], np.float32))
    task = load_task(
        make_config(
            "classification",
            options={
                "kind": "multi_label",
                "labels": ["x", "y"],
                "threshold": float(threshold) if threshold == "0.5" else threshold,
            },
        )
    )
    sets = task.data.make_held_out([TextSet("", labelled)], DataFiles(), None)
    assert isinstance(sets, Examined) and not isinstance(object(), Examined)
    # At 0.5 nothing is given; a tuned threshold between 0.1 and 0.3 gives every label rightly.
    rows = [{"logits": np.log(np.array(row) / (1 - np.array(row)))} for row in ([0.3, 0.1], [0.4, 0.35], [0.1, 0.05])]
    found = by_name(sets.examine([rows[index] for index in np.concatenate(sets.source.plan(0))]))
    assert found["classes"].values["x"]["recall"] == (0.0 if threshold == "0.5" else 1.0)
    assert len(found["mistakes"].values) == (2 if threshold == "0.5" else 0)
