"""Reads rows of search: an anchor, a text that answers it, texts that do not, and perhaps a teacher's scores."""

import dataclasses
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from official_bert import json_values
from official_bert.data.labelled import labelled_texts
from official_bert.data.labelled.labelled_texts import EmptyText, LabelledTexts
from official_bert.data.rows import Source
from official_bert.data.tabular.tables import Table, TableOptions, first_object, has_key
from official_bert.typed_values import and_others

Warn = Callable[[str], None]


@dataclasses.dataclass(frozen=True, kw_only=True)
class SearchColumns:
    """The columns of a search file. A cell of `negatives` and `teacher` has one value or a list (also as JSON text)."""

    text: str
    text_pair: str
    negatives: Sequence[str] = ()
    teacher: Sequence[str] = ()  # its scores of the positive, then of each negative
    label: str = ""  # above 0: the second text answers the first
    most_negatives: int = 0  # of a row, the first ones; 0: all


def described_pairs(rows: LabelledTexts) -> str:
    """Returns a line about the training rows: pairs with scores, or the number of rows, anchors and negatives."""
    if rows.targets is not None and rows.targets.ndim == 1:
        return labelled_texts.described_rows(rows, ())
    negatives = sum(map(len, rows.choices or ()))
    line = f"training rows: {len(rows)}, of {len({*rows.text})} different first texts, with {negatives} negatives"
    return "; ".join(filter(None, [line, rows.left_out]))


# Published rows of a query, its positives and its negatives: of FlagEmbedding, Tevatron and DPR.
FORMS = (
    SearchColumns(text="query", text_pair="pos", negatives=("neg",)),
    SearchColumns(text="query", text_pair="positive_passages", negatives=("negative_passages",)),
    SearchColumns(text="question", text_pair="positive_ctxs", negatives=("hard_negative_ctxs", "negative_ctxs")),
)


def read_rows(
    path: Source, columns: SearchColumns, empty: EmptyText, how: TableOptions, warn: Warn, labelled: bool = True
) -> LabelledTexts:
    """Reads rows of an anchor (`text`), its positive (`text_pair`) and its negatives (`choices`, if there are such
    columns).

    A published form (`FORMS`) needs no column names. Each of several positives becomes a row. `targets` are the
    teacher's scores, float32 [N,1+M] for at most M negatives, padded with 0. With a label column, each positive of a
    query becomes a row with all negatives of the query, and queries without a positive are left out with a warning.
    `labelled` leaves out rows that annotators rejected in a labelling tool.

    Raises ValueError that names file and line for a negative that equals the positive or the anchor, for a number of
    scores that differs from the number of texts, and for labels of which none is positive.
    """
    columns = _of_form(path, columns, how)
    table = _read_table(path, columns, empty, how, warn, labelled)
    scores = None
    if columns.label:
        pairs = [
            (query, answer, tuple(wrong))
            for query, answers, wrong in _judged(table, columns, warn)
            for answer in answers
        ]
        first, second, wrong_texts = map(list, zip(*pairs))
        negatives = wrong_texts if any(wrong_texts) else None
    else:
        first, second = (labelled_texts.texts(table, name) for name in (columns.text, columns.text_pair))
        negatives = _negatives(table, columns, warn) if columns.negatives else None
        scores = _teacher_scores(table, columns, negatives) if columns.teacher else None
    return LabelledTexts(str(path), first, second, scores, negatives, table.unaccepted)


def _of_form(path: Source, columns: SearchColumns, how: TableOptions) -> SearchColumns:
    """Returns the columns of a published form if the file has these and not the given ones; else the given ones."""
    row = first_object(path, how)
    own = (columns.text, columns.text_pair)
    if not row or own[0] == own[1] or all(has_key(row, name) for name in own):
        return columns
    form = next((form for form in FORMS if {form.text, form.text_pair} <= {*row}), columns)
    negatives = columns.negatives or tuple(name for name in form.negatives if name in row)
    return dataclasses.replace(columns, text=form.text, text_pair=form.text_pair, negatives=negatives)


def _read_table(
    path: Source, columns: SearchColumns, empty: EmptyText, how: TableOptions, warn: Warn, labelled: bool
) -> Table:
    label = [columns.label] if columns.label else []
    names = [columns.text, columns.text_pair, *columns.negatives, *columns.teacher, *label]
    table = labelled_texts.read_table(how, path, names, warn, columns.label if labelled else None)
    table = _a_row_each(table, columns, warn)
    return labelled_texts.without_empty(table, (columns.text, columns.text_pair), empty, warn)


def _a_row_each(table: Table, columns: SearchColumns, warn: Warn) -> Table:
    """Makes a row for each positive of a list. Queries without a positive are left out with a warning.

    Raises ValueError that names the line unless the teacher's first column has a score for each of several positives.
    """
    cells = table.columns[columns.text_pair]
    if not any(isinstance(cell, (list, Mapping)) for cell in cells):
        return table
    each = [_passages(table, row, columns.text_pair) for row in range(len(table))]
    if without := [row for row, passages in enumerate(each) if not passages]:
        warn(f"{table.place(without[0])}: a query without a positive; left out{and_others(len(without) - 1)}")
    rows = table.rows(row for row, passages in enumerate(each) for _ in passages)
    if not len(rows):
        raise ValueError(f"{table.path}: expected queries with positives in column {columns.text_pair!r}, got none")
    changed = {columns.text_pair: [passage for passages in each for passage in passages]}
    if columns.teacher:
        changed[columns.teacher[0]] = [
            score for row, passages in enumerate(each) for score in _scores_each(table, row, columns, len(passages))
        ]
    return dataclasses.replace(rows, columns=rows.columns | changed)


def _scores_each(table: Table, row: int, columns: SearchColumns, count: int) -> Sequence[Any]:
    """Returns the teacher's scores of a row's positives, one for each."""
    cell = table.columns[columns.teacher[0]][row]
    if count < 2:
        return [cell] * count
    if len(columns.teacher) < 2 or len(listed(cell)) != count:
        raise ValueError(
            f"{table.place(row)}: column {columns.teacher[0]!r}: expected only the scores of the {count} positives, "
            f"before a column with those of the negatives, got {str(cell)[:60]!r}"
        )
    return listed(cell)


def _negatives(table: Table, columns: SearchColumns, warn: Warn) -> list[tuple[str, ...]]:
    """Returns the negatives of each row, without texts that answer the same anchor in another row."""
    first, second = table.columns[columns.text], table.columns[columns.text_pair]
    answers: dict[str, set[str]] = {}
    for anchor, positive in zip(first, second):
        answers.setdefault(anchor, set()).add(positive)
    negatives, dropped = [], ""
    for row, (anchor, positive) in enumerate(zip(first, second)):
        texts = [text for name in columns.negatives for text in _passages(table, row, name)]
        if equal := [text for text in texts if text in (positive, anchor)]:
            same = "positive" if equal[0] == positive else "anchor"
            raise ValueError(f"{table.place(row)}: expected negatives other than the {same}, got {equal[0]!r:.60}")
        if not columns.teacher:
            wrong_texts = list(dict.fromkeys(text for text in texts if text not in answers[anchor]))
            dropped = dropped or (table.place(row) if len(wrong_texts) < len(texts) else "")
            texts = wrong_texts
        negatives.append(tuple(texts[: columns.most_negatives or None]))
    if dropped:
        warn(
            f"{dropped}: repeated negatives, and negatives that answer the same anchor in another row, are ignored in "
            "this row and later ones"
        )
    return negatives


def _passages(table: Table, row: int, column: str) -> list[str]:
    """Returns the texts of a cell. The text of an object comes after its title, if it has one.

    Raises ValueError for other values and for an empty text.
    """
    cell = table.columns[column][row]
    passages = [
        f"{value.get('title') or ''} {value.get('text') or ''}".strip() if isinstance(value, Mapping) else value
        for value in listed(cell)
    ]
    if any(not isinstance(text, str) or not text.strip() for text in passages):
        raise ValueError(
            f"{table.place(row)}: column {column!r}: expected a text or a list of texts, got {str(cell)[:60]!r}"
        )
    return passages


def listed(value: Any) -> list[Any]:
    """Returns a cell as a list: from a list, the JSON text of a list, or a single value; [] for null and ""."""
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
    """Returns the scores of the positive and of the negatives that are kept, float32 [N,1+M]."""
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
                f"positive and one for each negative, got {str(values)[:60]}"
            )
        rows.append(scores[:count])
    return np.array(list(zip(*itertools.zip_longest(*rows, fillvalue=0.0))), np.float32)


def _grades(table: Table, label: str) -> np.ndarray:
    """Returns the labels as numbers, float32 [N]; they may be true, false, yes and no."""
    cells = [labelled_texts.TRUTH.get(str(value).strip().lower(), value) for value in table.columns[label]]
    return labelled_texts.scores(dataclasses.replace(table, columns={label: cells}), label)


def _judged(table: Table, columns: SearchColumns, warn: Warn) -> Iterator[tuple[str, dict[str, list[int]], list[str]]]:
    """Yields each query that has a positive, the row numbers of each of its positives, and its negatives.

    Raises ValueError that names the line for a negative that is also a positive of its query, and if no label is
    positive.
    """
    labels = _grades(table, columns.label)
    positives: dict[str, dict[str, list[int]]] = {}  # by query and passage: the rows
    negatives: dict[str, dict[str, list[int]]] = {}
    second = labelled_texts.texts(table, columns.text_pair)
    for row, query in enumerate(labelled_texts.texts(table, columns.text)):
        (positives if labels[row] > 0 else negatives).setdefault(query, {}).setdefault(second[row], []).append(row)
    if alone := [next(iter(passages.values()))[0] for query, passages in negatives.items() if query not in positives]:
        warn(f"{table.place(min(alone))}: a query without a positive; left out{and_others(len(alone) - 1)}")
    if not positives:
        raise ValueError(
            f"{table.path}: column {columns.label!r}: expected labels above 0 for pairs that belong together, got none"
        )
    for query, answers in positives.items():
        wrong = negatives.get(query, {})
        for passage in wrong:
            if passage in answers:
                raise ValueError(
                    f"{table.place(wrong[passage][0])}: expected negatives other than the positive in line "
                    f"{table.lines[answers[passage][-1]]}, got {passage!r:.60}"
                )
        yield query, answers, list(wrong)[: columns.most_negatives or None]


@dataclasses.dataclass(frozen=True)
class Candidates:
    """A query, the passages to rank, and the grades of its answers by their places; `missed` has the grades of answers
    that are not among the passages.
    """

    query: str
    passages: Sequence[str]
    grades: dict[int, int]
    missed: Sequence[int] = ()


def read_candidates(
    path: Source, columns: SearchColumns, empty: EmptyText, how: TableOptions, warn: Warn
) -> list[Candidates]:
    """Reads the passages to rank for each query: labelled ones, or its positives and negatives. Labels are grades.

    Raises ValueError as `read_rows` does, and for a label that is no integer.
    """
    passages: dict[str, dict[str, int]] = {}  # by query: the grade of each
    if columns.label:
        table = _read_table(path, columns, empty, how, warn, labelled=True)
        labels = _grades(table, columns.label)
        for query, answers, negatives in _judged(table, columns, warn):
            for row in itertools.chain.from_iterable(answers.values()):
                if labels[row] != int(labels[row]):
                    raise ValueError(
                        f"{table.place(row)}: column {columns.label!r}: expected a whole number, got {labels[row]:g}"
                    )
            grades = {answer: int(max(labels[rows])) for answer, rows in answers.items()}
            passages[query] = dict.fromkeys(negatives, 0) | grades
    else:
        pairs = read_rows(path, columns, empty, how, warn)
        for (query, answer), wrong in zip(pairs.pairs(), pairs.choices or [()] * len(pairs)):
            grades = passages.setdefault(query, {})
            grades |= dict.fromkeys([text for text in wrong if text not in grades], 0) | {answer: 1}
    return [
        Candidates(query, list(grades), {place: grade for place, grade in enumerate(grades.values()) if grade})
        for query, grades in passages.items()
    ]
