"""Rows of search: an anchor, a text that answers it, and texts that do not; with scores of a teacher, if there are any.
"""

import dataclasses
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from official_bert import json_values
from official_bert.data import labelled_texts
from official_bert.data.labelled_texts import EmptyText, LabelledTexts
from official_bert.data.tables import Source, Table, TableOptions
from official_bert.typed_values import and_others

Warn = Callable[[str], None]


@dataclasses.dataclass(frozen=True, kw_only=True)
class SearchColumns:
    """The columns of a file of search. A cell of `negatives` and of `teacher` is one value, or a list of them (also as
    JSON text).
    """

    text: str
    text_pair: str
    negatives: Sequence[str] = ()
    teacher: Sequence[str] = ()  # its scores of the positive, then of each negative
    label: str = ""  # above 0: the second text answers the first
    most_negatives: int = 0  # of a row, the first ones; 0: all


def described_pairs(rows: LabelledTexts) -> str:
    """A line about rows to train on: pairs with scores, or with how many texts that do not answer the first one."""
    if rows.targets is not None and rows.targets.ndim == 1:
        return labelled_texts.described_rows(rows, ())
    negatives = sum(map(len, rows.choices or ()))
    return f"training rows: {len(rows)}, of {len({*rows.text})} different first texts, with {negatives} negatives"


def read_rows(path: Source, columns: SearchColumns, empty: EmptyText, how: TableOptions, warn: Warn) -> LabelledTexts:
    """Reads rows of an anchor (`text`), its positive (`text_pair`) and its negatives (`choices`, if there are columns
    of them).

    `targets` are the teacher's scores, float32 [N,1+M] for at most M negatives, filled up with 0. With labels, a row is
    made of each positive of a query and of all its negatives; queries without a positive are left out with a warning.

    Raises ValueError, naming file and line, for a negative that equals the positive or the anchor, for other than one
    score a text, and for labels of which none is positive.
    """
    table = _read_table(path, columns, empty, how, warn)
    if columns.label:
        pairs = [(query, answer, tuple(wrong)) for query, answers, wrong in _judged(table, columns, warn)
                 for answer in answers]
        queries, passages, wrong_texts = map(list, zip(*pairs))
        return LabelledTexts(str(path), queries, passages, None, wrong_texts if any(wrong_texts) else None)
    first, second = (labelled_texts.texts(table, name) for name in (columns.text, columns.text_pair))
    negatives = _negatives(table, columns, warn) if columns.negatives else None
    return LabelledTexts(str(path), first, second,
                         _teacher_scores(table, columns, negatives) if columns.teacher else None, negatives)


def _read_table(path: Source, columns: SearchColumns, empty: EmptyText, how: TableOptions, warn: Warn) -> Table:
    label = [columns.label] if columns.label else []
    table = how.read_table(path, [columns.text, columns.text_pair, *columns.negatives, *columns.teacher, *label])
    return labelled_texts.without_empty(table, (columns.text, columns.text_pair), empty, warn)


def _negatives(table: Table, columns: SearchColumns, warn: Warn) -> list[tuple[str, ...]]:
    """The negatives of each row, without those that answer the same anchor in another row."""
    first, second = table.columns[columns.text], table.columns[columns.text_pair]
    answers: dict[str, set[str]] = {}
    for anchor, positive in zip(first, second):
        answers.setdefault(anchor, set()).add(positive)
    negatives, dropped = [], ""
    for row, (anchor, positive) in enumerate(zip(first, second)):
        texts = [text for name in columns.negatives for text in _texts_of(table, row, name)]
        if equal := [text for text in texts if text in (positive, anchor)]:
            same = "positive" if equal[0] == positive else "anchor"
            raise ValueError(f"{table.place(row)}: expected negatives other than the {same}, got {equal[0]!r:.60}")
        if not columns.teacher:
            wrong_texts = list(dict.fromkeys(text for text in texts if text not in answers[anchor]))
            dropped = dropped or (table.place(row) if len(wrong_texts) < len(texts) else "")
            texts = wrong_texts
        negatives.append(tuple(texts[:columns.most_negatives or None]))
    if dropped:
        warn(
            f"{dropped}: negatives that stand there twice, or answer the same anchor in another row, are left out "
            f"here and in later rows"
        )
    return negatives


def _texts_of(table: Table, row: int, column: str) -> list[str]:
    """The texts of a cell. Raises ValueError for anything else, and for an empty text."""
    value = listed(table.columns[column][row])
    if any(not isinstance(text, str) or not text.strip() for text in value):
        raise ValueError(f"{table.place(row)}: column {column!r}: expected a text or a list of texts, got "
                         f"{str(table.columns[column][row])[:60]!r}")
    return value


def listed(value: Any) -> list[Any]:
    """Returns a cell as a list: a list, the JSON text of one, or a single value; null and "" have none."""
    if value is None or value == "":
        return []
    if isinstance(value, str) and value.lstrip().startswith("["):
        try:
            parsed = json_values.parse(value)
        except ValueError:
            return [value]
        return parsed if isinstance(parsed, list) else [value]
    return list(value) if isinstance(value, (list, tuple)) else [value]


def _teacher_scores(table: Table, columns: SearchColumns, negatives: Sequence[Sequence[str]] | None) -> np.ndarray:
    """The scores float32 [N,1+M] of the positive and of the negatives that are kept."""
    rows = []
    for row in range(len(table)):
        values = [value for name in columns.teacher for value in listed(table.columns[name][row])]
        count = 1 + (len(negatives[row]) if negatives else 0)
        try:
            scores = [float(value) for value in values]
        except (TypeError, ValueError, OverflowError):
            scores = []
        if len(scores) < count or not all(abs(score) <= labelled_texts.LARGEST_SCORE for score in scores):  # nor NaN
            raise ValueError(
                f"{table.place(row)}: columns {', '.join(columns.teacher)}: expected {count} numbers, one for the "
                f"positive "
                f"and one for each negative, got {str(values)[:60]}")
        rows.append(scores[:count])
    return np.array(list(zip(*itertools.zip_longest(*rows, fillvalue=0.0))), np.float32)


def _judged(table: Table, columns: SearchColumns, warn: Warn) -> Iterator[tuple[str, dict[str, list[int]], list[str]]]:
    """Yields each query that has a positive, the rows of each of its positives, and its negatives.

    Raises ValueError, naming the line, for a negative that is a positive of its query too, and if no label is positive.
    """
    labels = labelled_texts.scores(table, columns.label)
    positives: dict[str, dict[str, list[int]]] = {}  # by query and passage: the rows
    negatives: dict[str, dict[str, list[int]]] = {}
    second = labelled_texts.texts(table, columns.text_pair)
    for row, query in enumerate(labelled_texts.texts(table, columns.text)):
        (positives if labels[row] > 0 else negatives).setdefault(query, {}).setdefault(second[row], []).append(row)
    if alone := [next(iter(passages.values()))[0] for query, passages in negatives.items() if query not in positives]:
        warn(f"{table.place(min(alone))}: a query without a positive; left out{and_others(len(alone) - 1)}")
    if not positives:
        raise ValueError(
            f"{table.path}: column {columns.label!r}: expected labels above 0 for pairs that belong together, "
            "got none")
    for query, answers in positives.items():
        wrong = negatives.get(query, {})
        for passage in wrong:
            if passage in answers:
                raise ValueError(
                    f"{table.place(wrong[passage][0])}: expected negatives other than the positive in line "
                    f"{table.lines[answers[passage][-1]]}, got {passage!r:.60}")
        yield query, answers, list(wrong)[:columns.most_negatives or None]


@dataclasses.dataclass(frozen=True)
class Candidates:
    """A query, the passages to rank, and the grades of those that answer it, by their places; `missed` are grades of
    others.
    """

    query: str
    passages: Sequence[str]
    grades: dict[int, int]
    missed: Sequence[int] = ()


def read_candidates(path: Source, columns: SearchColumns, empty: EmptyText, how: TableOptions,
                    warn: Warn) -> list[Candidates]:
    """Reads the passages to rank for each query: labelled ones, or its positives and negatives. Labels are grades.

    Raises ValueError as `read_rows` does, and for a label that is no whole number.
    """
    passages: dict[str, dict[str, int]] = {}  # by query: the grade of each
    if columns.label:
        table = _read_table(path, columns, empty, how, warn)
        labels = labelled_texts.scores(table, columns.label)
        for query, answers, negatives in _judged(table, columns, warn):
            for row in itertools.chain.from_iterable(answers.values()):
                if labels[row] != int(labels[row]):
                    raise ValueError(f"{table.place(row)}: column {columns.label!r}: expected a whole number, got "
                                     f"{labels[row]:g}")
            grades = {answer: int(max(labels[rows])) for answer, rows in answers.items()}
            passages[query] = dict.fromkeys(negatives, 0) | grades
    else:
        pairs = read_rows(path, columns, empty, how, warn)
        for (query, answer), wrong in zip(pairs.pairs(), pairs.choices or [()] * len(pairs)):
            grades = passages.setdefault(query, {})
            grades |= dict.fromkeys([text for text in wrong if text not in grades], 0) | {answer: 1}
    return [Candidates(query, list(grades), {place: grade for place, grade in enumerate(grades.values()) if grade})
            for query, grades in passages.items()]
