"""The report on an evaluation of texts: classes, probabilities, scores, and the worst mistakes with their texts.

N rows, K labels.
"""

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import scipy.special

from official_bert.data.labelled.labelled_texts import LabelledTexts, TextSet
from official_bert.reports import pictures, statistics
from official_bert.reports.calibrated import calibrated_sections, calibration_section
from official_bert.reports.calibration import tune
from official_bert.reports.comparable import ComparableAnswers
from official_bert.reports.sections import Mistake, Section, mistakes_section

__all__ = ["comparable", "examine", "tune"]
Answer = Callable[[np.ndarray], Mapping[str, Any]]  # of a row's logits [K], as `TextClassification.answer`


def examine(
    head: str,
    labels: Sequence[str],
    answer: Answer,
    text_set: TextSet,
    rows: Sequence[int] | np.ndarray,
    logits: np.ndarray,
    temperature: float = 1.0,
    below: float = 0.0,
) -> list[Section]:
    """Returns report sections about the evaluated rows of a set, from their logits [N,K]; names end with the set's
    name. `temperature` is that of the probabilities, answers abstain `below` one of them.
    """
    assert text_set.data.targets is not None
    gold = text_set.data.targets[rows]
    texts = [_texts(text_set.data, row) for row in rows]
    probabilities = scipy.special.softmax(np.asarray(logits, np.float64) / temperature, axis=-1)
    calibrated = calibrated_sections(gold, logits, temperature, below)
    if head == "regression":
        sections = _of_scores(gold, np.asarray(logits[:, 0], np.float64), texts)
    elif head == "multi_label":
        sections = _of_several_labels(gold.astype(int), labels, [answer(row) for row in logits], texts)
    elif head == "choice":
        sections = _of_choices(gold, probabilities, calibrated, texts)
    else:
        sections = _of_one_label(gold, labels, probabilities, calibrated, texts)
    return [
        dataclasses.replace(
            section, name=f"{section.name}{text_set.name}", title=f"{section.title}{text_set.name.replace('_', ' ')}"
        )
        for section in sections
    ]


def comparable(task: Any, answer: TextSet, rows: Sequence[int] | np.ndarray, logits: np.ndarray) -> ComparableAnswers:
    """Returns the answers to the rows of a set that were evaluated, from their logits [N,K], for a comparison with
    another model's.

    `task` is a `TextClassification`.
    """
    assert answer.data.targets is not None
    targets, head = answer.data.targets[rows], task.head
    labels = () if head in ("regression", "choice") else task.answers.classes.labels
    answered = [task.answers.answer(row) for row in logits]
    if head == "multi_label":
        answers = [_several(row["labels"]) for row in answered]
        gold = [_several([label for label, has in zip(labels, row) if has]) for row in targets]
    elif head == "regression":
        answers, gold = [f"{row['score']:.4f}" for row in answered], [f"{score:g}" for score in targets]
    elif head == "choice":
        answers, gold = [str(row["choice"]) for row in answered], [str(choice) for choice in targets]
    else:
        answers, gold = [row["label"] for row in answered], [labels[number] for number in targets]

    def measure(numbers: np.ndarray) -> dict[str, float]:
        measured = task.answers.measure(targets[numbers], logits[numbers])
        # not the thresholds, which may be tuned on these rows
        return {name: measured[name] for name in task.answers.metrics}

    names = labels or [str(number) for number in range(logits.shape[-1])]
    shares = [dict(zip(names, row["probabilities"])) for row in answered] if head != "regression" else []
    right = None if head == "regression" else np.array([answer == other for answer, other in zip(answers, gold)])
    return ComparableAnswers(
        questions=[" | ".join(_texts(answer.data, row)) for row in rows],
        gold=gold,
        answers=answers,
        measure=measure,
        right=right,
        probabilities=shares,
    )


def _several(labels: Sequence[str]) -> str:
    """Several labels in one text, in an order that does not depend on the probabilities."""
    return ", ".join(sorted(labels)) or "(none)"


def _texts(data: LabelledTexts, row: int) -> list[str]:
    """The texts of a row; of a choice model the text before the choices."""
    return (
        [data.text[row]]
        + ([data.text_pair[row]] if data.text_pair else [])
        + (list(data.choices[row]) if data.choices else [])
    )


def _of_one_label(
    gold: np.ndarray,
    labels: Sequence[str],
    probabilities: np.ndarray,
    calibrated: Iterator[Section],
    texts: Sequence[Sequence[str]],
) -> Iterator[Section]:
    predicted = probabilities.argmax(axis=-1)
    scores = statistics.class_scores(gold, predicted, labels)
    areas = {label: statistics.roc_auc(gold == number, probabilities[:, number]) for number, label in enumerate(labels)}
    yield _classes(scores, areas)
    matrix = statistics.confusion(gold, predicted, len(labels))
    pairs = statistics.most_confused(matrix, labels)
    yield Section(
        name="confusion",
        title="Confusions",
        values={"labels": list(labels), "matrix": matrix.tolist(), "most": pairs},
        header=("wanted", "got", "rows"),
        rows=[[pair["wanted"], pair["got"], pair["rows"]] for pair in pairs],
        pictures=[pictures.confusion_picture(matrix, labels)] if len(labels) <= pictures.MOST_LABELS else (),
        note=f"There is no picture of more than {pictures.MOST_LABELS} labels."
        if len(labels) > pictures.MOST_LABELS
        else "",
    )
    confidence = probabilities[np.arange(len(gold)), predicted]
    yield from calibrated
    yield from _roc(
        {
            label: (gold == number, probabilities[:, number])
            for number, label in enumerate(labels)
            if len(labels) > 2 or number == 1
        }
    )
    yield mistakes_section(
        [
            Mistake(texts[row], labels[gold[row]], labels[predicted[row]], float(confidence[row]))
            for row in np.flatnonzero(predicted != gold)
        ],
        "probability",
    )


def _of_several_labels(
    gold: np.ndarray, labels: Sequence[str], answers: Sequence[Mapping[str, Any]], texts: Sequence[Sequence[str]]
) -> Iterator[Section]:
    probabilities = np.array([answer["probabilities"] for answer in answers])
    predicted = np.array([[label in answer["labels"] for label in labels] for answer in answers], int)
    areas = {
        label: statistics.roc_auc(gold[:, number], probabilities[:, number]) for number, label in enumerate(labels)
    }
    yield _classes(statistics.class_scores(gold, predicted, labels), areas)
    yield calibration_section(
        np.where(predicted, probabilities, 1.0 - probabilities).ravel(),
        (predicted == gold).ravel(),
        "Each label of each row counts as one answer: that it holds, or that it does not.",
    )
    yield from _roc({label: (gold[:, number], probabilities[:, number]) for number, label in enumerate(labels)})

    def named(row: np.ndarray) -> str:
        return ", ".join(label for label, holds in zip(labels, row) if holds) or "(none)"

    distance = np.where(predicted == gold, 0.0, np.where(predicted, probabilities, 1.0 - probabilities)).max(axis=1)
    yield mistakes_section(
        [
            Mistake(texts[row], named(gold[row]), named(predicted[row]), float(distance[row]))
            for row in np.flatnonzero((predicted != gold).any(axis=1))
        ],
        "probability",
    )


def _of_choices(
    gold: np.ndarray, probabilities: np.ndarray, calibrated: Iterator[Section], texts: Sequence[Sequence[str]]
) -> Iterator[Section]:
    predicted = probabilities.argmax(axis=-1)
    confidence = probabilities[np.arange(len(gold)), predicted]
    yield from calibrated
    yield mistakes_section(
        [
            Mistake(texts[row][:1], texts[row][1 + gold[row]], texts[row][1 + predicted[row]], float(confidence[row]))
            for row in np.flatnonzero(predicted != gold)
        ],
        "probability",
    )


def _of_scores(gold: np.ndarray, predicted: np.ndarray, texts: Sequence[Sequence[str]]) -> Iterator[Section]:
    errors = predicted - gold
    values = {
        "mean_error": float(errors.mean()),
        "mean_absolute_error": float(np.abs(errors).mean()),
        "largest_absolute_error": float(np.abs(errors).max()),
    }
    yield Section(
        name="scores",
        title="Answers and right scores",
        values=values,
        header=("", "value"),
        rows=[[name, value] for name, value in values.items()],
        on_screen=True,
        pictures=[pictures.scatter_picture(gold, predicted)],
    )
    yield mistakes_section(
        [
            Mistake(texts[row], f"{gold[row]:.4g}", f"{predicted[row]:.4g}", float(abs(errors[row])))
            for row in range(len(gold))
        ],
        "absolute error",
        title="The largest errors",
    )


def _classes(scores: Mapping[str, Mapping[str, float]], areas: Mapping[str, float | None]) -> Section:
    values = {label: {**score, "roc_auc": areas[label]} for label, score in scores.items()}
    return Section(
        name="classes",
        title="Classes",
        values=values,
        on_screen=True,
        header=("label", "precision", "recall", "F1", "support", "ROC AUC"),
        rows=[[label, *score.values()] for label, score in values.items()],
        note="" if any(area is not None for area in areas.values()) else "No ROC: all rows have one label.",
    )


def _roc(curves: Mapping[str, tuple[np.ndarray, np.ndarray]]) -> Iterator[Section]:
    """The ROC curve of each label that some rows have and others lack; nothing without such a label."""
    drawn = {
        label: statistics.roc_curve(gold, scores)
        for label, (gold, scores) in curves.items()
        if 0 < np.sum(gold) < len(gold)
    }
    if drawn:
        areas = {label: statistics.roc_auc(*curves[label]) for label in drawn}
        first = (
            f" The picture has the first {pictures.MOST_LABELS} labels." if len(drawn) > pictures.MOST_LABELS else ""
        )
        yield Section(
            name="roc",
            title="ROC",
            values=areas,
            pictures=[pictures.roc_picture(drawn)],
            note=f"Each label against all others.{first}" if len(curves) > 1 else "",
        )
