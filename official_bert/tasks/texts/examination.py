"""The report on an evaluation of texts: classes, probabilities, scores, and the worst mistakes with their texts.

N rows, K labels.
"""

import dataclasses
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import scipy.special

from official_bert.data.labelled.labelled_texts import LabelledTexts, TextSet
from official_bert.reports import pictures, statistics
from official_bert.reports.calibrated import calibrated_sections, calibration_section
from official_bert.reports.calibration import tune
from official_bert.reports.comparable import ComparableAnswers
from official_bert.reports.sections import Mistake, Section, mistakes_section, table_section
from official_bert.reports.statistics import Pairs

__all__ = ["comparable", "examine", "tune"]
MOST_CONFUSED = 10  # pairs of labels


def examine(task: Any, text_set: TextSet, rows: Sequence[int] | np.ndarray, logits: np.ndarray) -> list[Section]:
    """Returns report sections about the evaluated rows of a set, from their logits [N,K]; names end with the set's
    name.

    `task` is a `TextClassification`.
    """
    assert text_set.data.targets is not None
    gold = text_set.data.targets[rows]
    texts = [_texts(text_set.data, row) for row in rows]
    answers, labels = task.answers, task.answers.classes.labels
    if task.head == "regression":
        sections = _of_scores(gold, np.asarray(logits[:, 0], np.float64), texts)
    elif task.head == "multi_label":
        sections = _of_several_labels(gold.astype(bool), labels, list(map(answers.answer, logits)), texts)
    else:
        calibrated = calibrated_sections(gold, logits, *answers.calibration)
        probabilities = scipy.special.softmax(np.asarray(logits, np.float64) / answers.calibration.temperature, axis=-1)
        sections = _of_one_answer(gold, probabilities, calibrated, texts, () if task.head == "choice" else labels)
    return [
        dataclasses.replace(
            section, name=f"{section.name}{text_set.name}", title=f"{section.title}{text_set.name.replace('_', ' ')}"
        )
        for section in sections
    ]


def comparable(task: Any, text_set: TextSet, rows: Sequence[int] | np.ndarray, logits: np.ndarray) -> ComparableAnswers:
    """Returns the answers to the rows of a set that were evaluated, from their logits [N,K], for a comparison with
    another model's.

    `task` is a `TextClassification`.
    """
    assert text_set.data.targets is not None
    targets, head = text_set.data.targets[rows], task.head
    labels = () if head in ("regression", "choice") else task.answers.classes.labels
    answered = [task.answers.answer(row) for row in logits]
    answers, gold = _as_texts(head, labels, answered, targets)

    def measure(numbers: np.ndarray) -> dict[str, float]:
        measured = task.answers.measure(targets[numbers], logits[numbers])
        # not the thresholds, which may be tuned on these rows
        return {name: measured[name] for name in task.answers.metrics}

    names = labels or [str(number) for number in range(logits.shape[-1])]
    shares = [dict(zip(names, row["probabilities"])) for row in answered] if head != "regression" else []
    right = None if head == "regression" else np.array([answer == other for answer, other in zip(answers, gold)])
    return ComparableAnswers(
        questions=[" | ".join(_texts(text_set.data, row)) for row in rows],
        gold=gold,
        answers=answers,
        measure=measure,
        right=right,
        probabilities=shares,
    )


def _as_texts(
    head: str, labels: Sequence[str], answered: Sequence[Mapping[str, Any]], targets: np.ndarray
) -> tuple[list[str], list[str]]:
    """Returns answers and right answers as texts, several labels in an order that does not depend on probabilities."""
    if head == "multi_label":
        right = ([label for label, has in zip(labels, row) if has] for row in targets)
        return [_named(sorted(row["labels"])) for row in answered], [_named(sorted(row)) for row in right]
    if head == "regression":
        return [f"{row['score']:.4f}" for row in answered], [f"{score:g}" for score in targets]
    if head == "choice":
        return [str(row["choice"]) for row in answered], [str(choice) for choice in targets]
    return [row["label"] for row in answered], [labels[number] for number in targets]


def _named(labels: Iterable[str]) -> str:
    return ", ".join(filter(None, labels)) or "(none)"


def _texts(data: LabelledTexts, row: int) -> list[str]:
    """The texts of a row; of a choice model the text before the choices."""
    return (
        [data.text[row]]
        + ([data.text_pair[row]] if data.text_pair else [])
        + (list(data.choices[row]) if data.choices else [])
    )


def _of_one_answer(
    gold: np.ndarray,
    probabilities: np.ndarray,
    calibrated: Iterable[Section],
    texts: Sequence[Sequence[str]],
    labels: Sequence[str],
) -> Iterator[Section]:
    """Without `labels`, a row's answers are choices: its own texts, behind the first one."""
    predicted = probabilities.argmax(axis=-1)
    if labels:
        # in the order of labels, which equally frequent confusions keep
        pairs = Pairs((labels[right], labels[answer]) for right, answer in sorted(zip(gold, predicted)))
        columns = dict(zip(labels, zip(gold == np.arange(len(labels))[:, None], probabilities.T)))
        drawn = labels if len(labels) > 2 else labels[1:]  # the curve of one of two labels says all
        yield from _of_labels(pairs, columns, itertools.chain([_confusion(pairs, labels)], calibrated), drawn)
    else:
        yield from calibrated
    yield mistakes_section(
        [
            Mistake(row if labels else row[:1], names[right], names[answer], float(confidence))
            for row, right, answer, confidence in zip(texts, gold, predicted, probabilities.max(axis=-1))
            if right != answer
            for names in [labels or row[1:]]
        ],
        "probability",
    )


def _of_several_labels(
    gold: np.ndarray, labels: Sequence[str], answers: Sequence[Mapping[str, Any]], texts: Sequence[Sequence[str]]
) -> Iterator[Section]:
    probabilities = np.array([answer["probabilities"] for answer in answers])
    predicted = np.array([[label in answer["labels"] for label in labels] for answer in answers])
    wrong, confidence = predicted != gold, np.where(predicted, probabilities, 1.0 - probabilities)
    calibration = calibration_section(
        confidence.ravel(),
        ~wrong.ravel(),
        "Each label of each row counts as one answer: that it holds, or that it does not.",
    )
    right, got = (np.where(holds, np.array(labels, object), "") for holds in (gold, predicted))
    columns = dict(zip(labels, zip(gold.T, probabilities.T)))
    yield from _of_labels(Pairs(zip(right.flat, got.flat)), columns, [calibration], labels)
    yield mistakes_section(
        [
            Mistake(texts[row], _named(right[row]), _named(got[row]), float(confidence[row, wrong[row]].max()))
            for row in np.flatnonzero(wrong.any(axis=1))
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
    yield table_section(
        name="scores",
        title="Answers and right scores",
        values=values,
        header=("", "value"),
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


def _of_labels(
    pairs: Pairs,
    columns: Mapping[str, tuple[np.ndarray, np.ndarray]],
    before_roc: Iterable[Section],
    drawn: Sequence[str],
) -> Iterator[Section]:
    """The scores of each label, the sections `before_roc`, and the ROC curve of each label to be `drawn` that some rows
    have and others lack; `columns` say which rows have a label, and its probabilities.
    """
    areas = {label: statistics.roc_auc(*column) for label, column in columns.items()}
    scores = statistics.class_scores(pairs, list(columns))
    yield table_section(
        name="classes",
        title="Classes",
        values={label: {**score, "roc_auc": areas[label]} for label, score in scores.items()},
        on_screen=True,
        header=("label", *statistics.SCORES, "ROC AUC"),
        note="No ROC: all rows have one label." if set(areas.values()) == {None} else "",
    )
    yield from before_roc
    if curves := {label: statistics.roc_curve(*columns[label]) for label in drawn if areas[label] is not None}:
        first = (
            f" The picture has the first {pictures.MOST_LABELS} labels." if len(curves) > pictures.MOST_LABELS else ""
        )
        yield Section(
            name="roc",
            title="ROC",
            values={label: areas[label] for label in curves},
            pictures=[pictures.roc_picture(curves)],
            note=f"Each label against all others.{first}" if len(drawn) > 1 else "",
        )


def _confusion(pairs: Pairs, labels: Sequence[str]) -> Section:
    matrix = np.array([[pairs[right, answer] for answer in labels] for right in labels])
    most = statistics.most_confused(pairs, MOST_CONFUSED, "rows")
    is_drawn = len(labels) <= pictures.MOST_LABELS
    return Section(
        name="confusion",
        title="Confusions",
        values={"labels": list(labels), "matrix": matrix.tolist(), "most": most},
        header=("wanted", "got", "rows"),
        rows=[list(pair.values()) for pair in most],
        pictures=[pictures.confusion_picture(matrix, labels)] if is_drawn else (),
        note="" if is_drawn else f"There is no picture of more than {pictures.MOST_LABELS} labels.",
    )
