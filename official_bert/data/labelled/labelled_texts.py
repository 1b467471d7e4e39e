"""Texts, or pairs of texts, with a label, several labels or a score each; checked row by row."""

import dataclasses
import functools
import itertools
import math
import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal

import numpy as np

from official_bert.data.rows import Source
from official_bert.data.tabular.tables import Table, TableOptions
from official_bert.fields import OptionsNeededError
from official_bert.typed_values import and_others

GOLD = "gold_label"
UNACCEPTED = "people rejected or skipped"
ROUNDED = 0.02  # probabilities in a file may miss 1 by so much
SAME_SHARE = 0.9  # of held-out rows that are training rows: from here on the held-out data count as training data
EmptyText = Literal["refuse", "skip", "keep"]
MissingLabel = Literal["refuse", "skip", "keep"]
NO_LABEL = ("", "nan", "null", "<na>")  # in any case: how empty cells and missing values are written
# Labels too, if they are frequent; also as workbooks write errors, MySQL (`\\N`) and Windows missing values.
OFTEN_LABELS = "na n/a n.a. #n/a #na k.a. ? - -- . none nil -nan 1.#qnan \\n #value! #ref! #div/0! #name?"
ABSENT = frozenset((*NO_LABEL, *OFTEN_LABELS.split()))
RARE = 0.1  # of the rows: up to here, another spelling than those of NO_LABEL is a missing value
MOST_NAMED = 20  # labels whose numbers of rows are described
LARGEST_SCORE = float(np.finfo(np.float32).max)
LIST_AS_TEXT = re.compile(r"\[.*\]", re.DOTALL)
TRUTH = {"0": 0.0, "1": 1.0, "false": 0.0, "true": 1.0, "no": 0.0, "yes": 1.0}
WITH_COMMA = re.compile(r"[+-]?(\d{1,3}(\.\d{3})+|\d+)(,\d+)?")
WHOLE = re.compile(r"([+-]?\d+)\.0+")
PER_ROW = ("text", "text_pair", "targets", "choices", "label_shares")  # fields with a value for each row, unless None


@dataclasses.dataclass(frozen=True)
class LabelledTexts:
    """Rows of a data set. N rows, K labels.

    `targets` are numbers of labels int32 [N], a matrix of 0 and 1 float32 [N,K], scores float32 [N], or None without
    labels.
    """

    path: str
    text: list[str]
    text_pair: list[str] | None = None
    targets: np.ndarray | None = None
    choices: list[tuple[str, ...]] | None = None  # C second texts for each row, one of which is right
    unaccepted: int = 0  # rows of the file that people rejected or skipped
    note: str = ""  # a line about how they were read
    label_shares: np.ndarray | None = None  # a probability for each label, float32 [N,K]; `targets` are the likeliest

    def __len__(self) -> int:
        return len(self.text)

    @property
    def left_out(self) -> str:
        """Counts the rows that people rejected or skipped; "" for none."""
        return f"{self.unaccepted} rows that {UNACCEPTED} left out" if self.unaccepted else ""

    def rows(self, keep: np.ndarray) -> "LabelledTexts":
        """Returns only some of the rows."""
        chosen: dict[str, Any] = {
            name: values[keep] if isinstance(values, np.ndarray) else [values[row] for row in keep]
            for name in PER_ROW
            if (values := getattr(self, name)) is not None
        }
        return dataclasses.replace(self, **chosen)

    def pairs(self) -> Iterator[tuple[str, Any]]:
        """Yields both texts of each row; the second is "" if there is only one."""
        return zip(self.text, self.text_pair or self.choices or [""] * len(self.text))


@dataclasses.dataclass(frozen=True)
class TextSet:
    """A set of rows to evaluate on or to answer."""

    name: str  # suffix of its metrics' names, or name of the file of its answers
    data: LabelledTexts


def joined(sets: Sequence[TextSet]) -> LabelledTexts:
    """Joins the rows of all sets; without targets if one set has none."""
    values = {name: [getattr(text_set.data, name) for text_set in sets] for name in PER_ROW}
    rows: dict[str, Any] = {
        name: np.concatenate(parts) if isinstance(parts[0], np.ndarray) else list(itertools.chain.from_iterable(parts))
        for name, parts in values.items()
        if all(part is not None for part in parts)
    }
    return LabelledTexts(", ".join(text_set.data.path for text_set in sets), **rows)


def described_counts(counts: Mapping[str, object]) -> str:
    """Returns names with their counts in a line, at most `MOST_NAMED` of them: `no 2, yes 1`."""
    return described_names([f"{name} {count}" for name, count in counts.items()])


def described_names(names: Sequence[str]) -> str:
    """Returns names in a line, at most `MOST_NAMED` of them, and how many more there are."""
    return ", ".join(names[:MOST_NAMED]) + (f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else "")


def label_counts(targets: np.ndarray, size: int) -> np.ndarray:
    """Returns the number of rows of each label, of numbers [N] or a matrix [N,K]."""
    return targets.sum(axis=0) if targets.ndim == 2 else np.bincount(targets, minlength=size)


def described_rows(rows: LabelledTexts, labels: Sequence[str]) -> str:
    """Returns a line about training rows: the number of rows for each label (or choice number), or the range of the
    scores.
    """
    targets = rows.targets
    assert targets is not None
    left_out = f"; {rows.left_out}" if rows.left_out else ""
    if targets.dtype.kind == "f" and targets.ndim == 1:
        return f"training rows: {len(targets)}, scores from {targets.min():g} to {targets.max():g}{left_out}"
    names = labels or [f"{number}:" for number in range(max(map(len, rows.choices or ()), default=0))]
    counts = label_counts(targets, len(names))
    what = "by the number of the right choice" if rows.choices else "of the labels"
    return f"training rows: {len(targets)}, {what} {described_counts(dict(zip(names, map(int, counts))))}{left_out}"


def texts(table: Table, column: str) -> list[str]:
    """Returns a column as texts. Raises ValueError for JSON values of another type."""
    for row, value in enumerate(table.columns[column]):
        if not isinstance(value, str):
            raise ValueError(f"{table.place(row)}: column {column!r}: expected text, got {str(value)[:60]!r}")
    return table.columns[column]


def without_empty(table: Table, columns: Sequence[str], empty: EmptyText, warn: Callable[[str], None]) -> Table:
    """Returns the table after handling rows with an empty text, or null, in one of `columns`.

    `refuse` raises ValueError for the first one; `skip` leaves them out and `keep` keeps them, null as an empty text,
    with a warning.
    """
    original = table.columns
    filled = {name: ["" if text is None else text for text in original[name]] for name in columns}
    table = dataclasses.replace(table, columns=original | filled)
    empty_cells = [
        (row, column) for column in columns for row, text in enumerate(texts(table, column)) if not text.strip()
    ]
    if not empty_cells:
        return table
    row, column = empty_cells[0]
    got = "got 'None'" if original[column][row] is None else "it is empty"
    first = f"{table.place(row)}: column {column!r}: expected text, {got}"
    if empty == "refuse":
        raise ValueError(f"{first} ({len(empty_cells)} such in this file); options.empty_text=skip leaves them out")
    warn(f"{first}; {'left out' if empty == 'skip' else 'kept'}{and_others(len(empty_cells) - 1)}")
    return table.without({row for row, _ in empty_cells}) if empty == "skip" else table


def read_table(
    how: TableOptions, path: Source, columns: Sequence[str], warn: Callable[[str], None], label: str | None
) -> Table:
    """Reads columns of a file as `TableOptions.read_table` does; rows that people rejected or skipped are left out with
    a warning.
    """
    table = how.read_table(path, columns, label=label)
    if table.unaccepted:
        warn(f"{path}: {table.unaccepted} rows that {UNACCEPTED} left out")
    return table


def without_agreement(table: Table, labels: Sequence[str], warn: Callable[[str], None]) -> Table:
    """Drops rows whose gold_label is `-` (SNLI, MultiNLI: the annotators did not agree), with a warning.

    Raises ValueError if no row is left. If `labels` contains `-`, it is an ordinary label, as in every other column.
    """
    undecided = [row for row, value in enumerate(table.columns[GOLD]) if "-" not in labels and value == "-"]
    if not undecided:
        return table
    if len(undecided) == len(table):
        raise ValueError(f"{table.path}: no row with a label in column {GOLD!r}, only '-'")
    warn(
        f"{table.place(undecided[0])}: column {GOLD!r}: '-', because the annotators disagreed; ignored"
        f"{and_others(len(undecided) - 1)}"
    )
    return table.without({*undecided})


def _frequent_spellings(table: Table, columns: Sequence[str], missing: MissingLabel) -> set[str]:
    """The spellings of missing values that are labels, in lower case."""
    cells = (value for name in columns for value in table.columns[name] if value is not None)
    spellings = Counter(label_text(value).lower() for value in cells)
    often = {text for text, count in spellings.items() if count > RARE * len(table)}
    return often.intersection(OFTEN_LABELS.split() if missing == "refuse" else ["none"]) | (
        {"-"} if "+" in spellings else set()
    )


def without_missing(
    table: Table,
    columns: Sequence[str],
    missing: MissingLabel,
    warn: Callable[[str], None],
    labels: Sequence[str] = (),
    separator: str = "",
) -> Table:
    """Returns the table after handling missing labels in one of `columns`: an empty cell, null or NaN, also within a
    list, unless `labels` contains that text.

    Other spellings of `ABSENT` are labels if more than a tenth of the rows have them (with `skip`, `none` alone), and
    `-` beside `+`. With a `separator` a cell has several labels, and an empty one means that none of them holds.
    `refuse` raises OptionsNeededError for the first row, `skip` leaves all out with a warning. With `keep`, texts such
    as `null` and `nan` are labels, and of several labels a missing value means that none holds; others are refused.
    """

    frequent = functools.cache(functools.partial(_frequent_spellings, table, columns, missing))

    def absent(value: Any) -> bool:
        text = label_text(value)
        if value is None or text.lower() not in ABSENT:
            return value is None
        kept = missing == "keep" and isinstance(value, str) and bool(text)
        return not (kept or text in labels or text.lower() in frequent())

    def lacks(value: Any) -> bool:
        if separator and isinstance(value, str) and (value.strip() or not value):
            return any(map(absent, filter(str.strip, value.split(separator))))
        if isinstance(value, list):
            return any(absent(part) for part in value if not (separator and part == ""))
        return absent(value)

    if missing == "keep" and separator:
        filled = {
            name: [[] if not isinstance(value, list) and absent(value) else value for value in table.columns[name]]
            for name in columns
        }
        table = dataclasses.replace(table, columns=table.columns | filled)
    missing_cells = [
        (row, column) for column in columns for row, value in enumerate(table.columns[column]) if lacks(value)
    ]
    if not missing_cells:
        return table
    row, column = missing_cells[0]
    first = f"{table.place(row)}: column {column!r}: expected a label, got {table.columns[column][row]!r}"
    unlabelled = {row for row, _ in missing_cells}
    if missing != "skip":
        is_text = isinstance(value := table.columns[column][row], str) and bool(value.strip())
        keeps = ", keep reads it as a label" if is_text and missing == "refuse" else ""
        counts = Counter(repr(table.columns[name][line]) for line, name in missing_cells)
        raise OptionsNeededError(
            f"{first} ({len(unlabelled)} such rows in this file, {described_counts(counts)}; options.missing_label: "
            f"skip leaves them out{keeps})",
            [{"missing_label": way} for way in ("skip", "keep")[: 1 + bool(keeps)]],
        )
    if len(unlabelled) == len(table):
        raise ValueError(f"{table.path}: no row with a label in column {column!r}")
    warn(f"{first}; left out{and_others(len(unlabelled) - 1)}")
    return table.without(unlabelled)


def check_cells(table: Table, column: str, several: bool) -> None:
    """Raises ValueError, naming the line, for a list in the place of a label, unless it holds `several`, for a JSON
    object, a set, bytes.

    If there are several, also raises it for a list printed without commas, as NumPy prints one.
    """
    for row, value in enumerate(table.columns[column]):
        if several and any({*"'\""} & {*label} for label in _in_list(value)):
            raise ValueError(
                f"{table.place(row)}: column {column!r}: expected labels with separators, got the text of a list "
                f"without them, {value!r:.60}; JSON lines and Parquet hold lists"
            )
        if any(
            isinstance(part, (list, dict, set, bytes))
            for part in (value if several and isinstance(value, list) else [value])
        ):
            expected = "a list of labels" if several else "one label (options.kind: multi_label takes lists)"
            raise ValueError(f"{table.place(row)}: column {column!r}: expected {expected}, got {value!r}")


def label_text(value: Any) -> str:
    """Returns a label as text: JSON may have a number or a boolean."""
    return str(value).lower() if isinstance(value, (bool, np.bool_)) else str(value).strip()


def find_labels(values: Sequence[Any]) -> tuple[str, ...]:
    """Returns the different labels, in numerical order if all are whole numbers, else in alphabetical order.

    `1` and `1.0` are one label, `01` and `+1` are others. Raises ValueError for labels that look alike, see
    `check_forms`.
    """
    labels = {label_text(value) for value in values}
    check_forms(labels, "labels")
    spellings = Counter(map(_whole, labels))
    try:
        return tuple(sorted(spellings, key=lambda label: (int(label), label)))
    except ValueError:
        return tuple(sorted({whole if spellings[whole := _whole(label)] > 1 else label for label in labels}))


def warn_of_spellings(labels: Iterable[str], where: str, warn: Callable[[str], None]) -> None:
    """Warns of labels that differ only in case or spaces."""
    spellings: dict[str, str] = {}
    for label in labels:
        if (other := spellings.setdefault("".join(label.casefold().split()), label)) != label:
            warn(f"{where}: {other!r} and {label!r} are two labels, which differ by case or spaces only")


def check_forms(labels: Iterable[str], where: str) -> None:
    """Raises ValueError, naming `where`, for two labels that differ only in Unicode normalisation (NFC and NFD) and so
    look alike.
    """
    forms: dict[str, str] = {}
    for label in sorted(labels):
        if (other := forms.setdefault(unicodedata.normalize("NFC", label), label)) != label:
            raise ValueError(
                f"{where}: {other!r} ({other!a}) and {label!r} ({label!a}) are the same characters in two forms of "
                "Unicode; expected one of them throughout, such as NFC"
            )


def _other_form(label: Any, labels: Sequence[str]) -> str:
    """Returns a hint if one of `labels` is a label in another form of Unicode."""
    normal = unicodedata.normalize("NFC", label_text(label))
    same = next((known for known in labels if unicodedata.normalize("NFC", known) == normal), None)
    return "" if same is None else f" ({label_text(label)!a}, another form of Unicode than {same!a})"


def _whole(label: str) -> str:
    """A whole number without decimals: `1` for `1.0`."""
    match = WHOLE.fullmatch(label)
    return match[1] if match else label


def numbers_of(labels: Sequence[str]) -> Callable[[Any], int]:
    """Returns a function that maps a value in a file to its label's number, or to -1 if unknown; 1.0 maps to label 1,
    unless both are labels.
    """
    exact = {label: number for number, label in enumerate(labels)}
    whole = {_whole(label): number for number, label in enumerate(labels)}

    def number(value: Any) -> int:
        text = label_text(value)
        return exact.get(text, whole.get(_whole(text), -1))

    return number


def label_ids(table: Table, column: str, labels: Sequence[str], headless: bool = False) -> np.ndarray:
    """Returns the number of each row's label, int32 [N]. Raises ValueError, naming the line, for an unknown label."""
    ids = list(map(numbers_of(labels), table.columns[column]))
    if -1 in ids:
        row = ids.index(-1)
        got = (
            f"{table.place(row)}: column {column!r}: expected one of {list(labels)}, got {table.columns[column][row]!r}"
        )
        got += _other_form(table.columns[column][row], labels)
        raise ValueError(
            got + (" (is this line a header? this file has none)" if headless and table.lines[row] == 1 else "")
        )
    return np.array(ids, np.int32)


def split_labels(value: Any, separator: str) -> list[str]:
    """Splits the labels of a row: a JSON list, its text, or text with separators; "" has none."""
    parts = value if isinstance(value, list) else _in_list(value) or label_text(value).split(separator)
    return [label for part in parts if (label := label_text(part))]


def _in_list(value: Any) -> list[str]:
    """The labels in the text of a list, as pandas writes one into CSV; [] of anything else."""
    is_list = isinstance(value, str) and LIST_AS_TEXT.fullmatch(value.strip())
    parts = value.strip()[1:-1].split(",") if is_list else []
    return [re.sub(r"""^(['"])(.*)\1$""", r"\2", part.strip(), flags=re.DOTALL) for part in parts]


def label_matrix(table: Table, column: str, labels: Sequence[str], separator: str) -> np.ndarray:
    """Returns each row's labels as 0 and 1, float32 [N,K], from one column of several labels. Raises ValueError for
    unknown ones.
    """
    number_of = numbers_of(labels)
    matrix = np.zeros((len(table), len(labels)), np.float32)
    for row, value in enumerate(table.columns[column]):
        for label in split_labels(value, separator):
            if (number := number_of(label)) < 0:
                raise ValueError(
                    f"{table.place(row)}: column {column!r}: expected labels of {list(labels)}, got {label!r}"
                    f"{_other_form(label, labels)}"
                )
            matrix[row, number] = 1.0
    return matrix


def label_columns(table: Table, labels: Sequence[str]) -> np.ndarray:
    """Returns each row's labels as 0 and 1, float32 [N,K], from a column for each label. Raises ValueError for other
    values.
    """
    matrix = np.zeros((len(table), len(labels)), np.float32)
    for number, label in enumerate(labels):
        for row, value in enumerate(table.columns[label]):
            if (text := _whole(label_text(value).lower())) not in TRUTH:
                raise ValueError(f"{table.place(row)}: column {label!r}: expected 0 or 1, got {value!r}")
            matrix[row, number] = TRUTH[text]
    return matrix


def as_number(value: Any, decimal: str = ".") -> float:
    """Returns the number in a cell, with `decimal` as its decimal mark. Raises ValueError for anything else."""
    if decimal == "," and isinstance(value, str):
        if not WITH_COMMA.fullmatch(value.strip()):
            raise ValueError(value)
        value = value.replace(".", "").replace(",", ".")
    return float(value)


def scores(table: Table, column: str, low: float = -math.inf, high: float = math.inf, decimal: str = ".") -> np.ndarray:
    """Returns scores float32 [N]. Raises ValueError, naming the line, for a cell that is no number or is outside `low`
    to `high`.
    """
    column_scores = np.zeros(len(table), np.float32)
    for row, value in enumerate(table.columns[column]):
        try:
            score = as_number(value, decimal)
        except (TypeError, ValueError, OverflowError):
            raise ValueError(f"{table.place(row)}: column {column!r}: expected a number, got {value!r:.60}") from None
        if not (abs(score) <= LARGEST_SCORE and low <= score <= high):
            expected = "a finite number" if math.isinf(high) else f"a number from {low:g} to {high:g}"
            raise ValueError(f"{table.place(row)}: column {column!r}: expected {expected}, got {value!r}")
        column_scores[row] = score
    return column_scores


def label_shares(table: Table, columns: Sequence[str], decimal: str = ".") -> np.ndarray:
    """Returns the probability of each label in columns of these names, float32 [N,K].

    Raises ValueError, naming the line, for a cell that is no probability, and for rows that do not add up to 1.
    """
    shares = np.stack([scores(table, column, 0.0, 1.0, decimal) for column in columns], axis=-1)
    sums = shares.sum(axis=-1, keepdims=True)
    for row in np.flatnonzero(abs(sums[:, 0] - 1.0) > ROUNDED):
        raise ValueError(
            f"{table.place(row)}: columns {described_names(columns)}: expected probabilities that add up to 1, got "
            f"{float(sums[row, 0]):g}"
        )
    return shares / sums


def check_held_out(train: LabelledTexts, held_out: LabelledTexts, refuse: Callable[[str], None]) -> None:
    """Calls `refuse` with a message if nearly all held-out rows are also training rows: they would measure
    memorisation.
    """
    seen = set(train.pairs())
    same = sum(pair in seen for pair in held_out.pairs())
    if same >= SAME_SHARE * len(held_out):
        refuse(
            f"{held_out.path}: expected held-out data, but {same} of its {len(held_out)} rows are in the training "
            f"data {train.path} too"
        )
