"""Infers how to read a table of labelled texts that does not declare it.

A reading is used if it is the only plausible one; otherwise an error lists all plausible readings.

A reading chooses the sheet, the first line of the table, whether this line is a header, the columns, and the kind of
labels. Options given by the user are fixed.
"""

import dataclasses
import itertools
from collections import Counter
from collections.abc import Container, Iterator, Mapping, Sequence
from typing import Any

from official_bert.data.rows import Source
from official_bert.data.tabular.companions import labels_in_lines
from official_bert.data.tabular.formats import sheet_names
from official_bert.data.tabular.likely_columns import (
    MARGIN,
    Column,
    Reading,
    header_signs,
    label_readings,
    text_readings,
)
from official_bert.data.tabular.tables import ANSWER, ANSWERS, TableOptions
from official_bert.fields import OptionsNeededError, changed_fields

MAY_LACK_NAMES = ("tsv", "csv", "xlsx")  # formats whose first line may be a row
UNNAMED = ("fasttext", "two_files")  # those whose columns have the names that are asked for
ROWS, CHARACTERS = 2000, 1 << 21  # at the beginning of a table, that tell its columns
FIRST = 20  # lines, among which the table begins
MOST = 4  # readings that are named
SHOWN_ROWS, SHOWN = 3, 60  # rows, and characters of a cell, in a message


@dataclasses.dataclass(frozen=True)
class Sample:
    """The first rows of a table, with column names that may themselves be a row."""

    names: Sequence[str]
    columns: Sequence[Sequence[str]]
    form: str | None


def likely_options(options: Any, source: Source, given: Container[str]) -> Any:
    """Returns the most plausible options, `TableOptions` of labelled texts, for a table; `given` names those that the
    user chose.

    Raises OptionsNeededError, with the options of each reading, if several are plausible, and for another kind of
    labels.
    """
    wanted = [options.text_column, *(options.label_columns or [options.label_column])]
    how = options.dialect_of(source, wanted)
    if isinstance(source, str) and (labels_in_lines(source) or how.format_of(source, wanted) in UNNAMED):
        return how
    if not {*wanted} <= {*how.open_rows(source, wanted, skip_broken=True).names}:
        how = options.dialect_of(source)
    readings, rows = _readings(options, how, source, given)
    plausible = [reading for reading in readings if reading.score > readings[0].score - MARGIN]
    if not plausible:
        return how
    best = plausible[0].values
    if len(plausible) == 1 and "kind" not in best:
        return dataclasses.replace(how, **best)
    problem = "several columns may be the text and the label"
    if len(plausible) == 1:
        what = "scores" if best["kind"] == "regression" else "several labels of a text"
        problem = f"column {best['label_column']!r} seems to hold {what}"
    raise OptionsNeededError(
        f"{source}: {problem}",
        [changed_fields(options, how) | dict(reading.values) for reading in plausible[:MOST]],
        rows,
    )


def _readings(options: Any, how: Any, source: Source, given: Container[str]) -> tuple[list[Reading], Sequence[str]]:
    """The likely readings of a table, the likeliest first, and its first rows for a message."""
    keys = [key for key in ("text_column", "text_pair_column", "label_column") if key in given]
    chosen = {*filter(None, (getattr(options, key) for key in keys)), *options.label_columns}
    readings: list[Reading] = []
    rows: Sequence[str] = ()
    for layout in _layouts(how, source):
        form = layout.format_of(source) if isinstance(source, str) else None
        for header, signs, names, cells in _with_header(
            layout, source, "header" in given, chosen, options.label_column
        ):
            if form in MAY_LACK_NAMES and not chosen <= {*names}:
                continue
            columns = [Column(*column) for column in zip(names, cells) if names.count(column[0]) == 1]
            fixed = changed_fields(how, layout) | ({} if header is None else {"header": header})
            found = _of_columns(options, columns, given)
            readings += [Reading(reading.score + signs, {**fixed, **reading.values}) for reading in found]
            rows = rows or _shown(names, cells) if found else rows
    return sorted(readings, key=lambda reading: -reading.score), rows


def _of_columns(options: Any, columns: Sequence[Column], given: Container[str]) -> list[Reading]:
    """The likely readings of columns as text and label."""
    columns = [column for column in columns if column.name != ANSWER or not column.kinds <= {*ANSWERS}]  # Prodigy's
    kind = options.kind if "kind" in given else ""
    known = options.label_column if "label_column" in given else ""
    text = options.text_column if "text_column" in given else ""
    pair = options.text_pair_column if "text_pair_column" in given else None
    if options.label_columns:
        labels = [Reading(0, {"label_columns": options.label_columns})]
    else:
        others = [column for column in columns if column.name not in (text, pair)]
        labels = label_readings(others, known, kind)
    return [
        Reading(label.score + texts.score, {**texts.values, **label.values})
        for label in labels
        for texts in text_readings([column for column in columns if column.name != pair], label.values, text, pair)
    ]


def _layouts(options: Any, source: Source) -> Iterator[Any]:
    """Yields the options for each sheet of a workbook that has rows, and for the line at which a table begins."""
    form = options.format_of(source) if isinstance(source, str) else None
    names = sheet_names(str(source)) if form == "xlsx" and not options.sheet else [""]
    for name in names:
        layout = dataclasses.replace(options, sheet=name) if len(names) > 1 else options
        if form not in MAY_LACK_NAMES or options.header_row > 1:
            yield layout
            continue
        _, cells = layout._cells(source, form, (), ["c1"])
        first = list(itertools.islice(((line, sum(map(bool, row))) for line, row in cells if any(row)), FIRST))
        if len(first) > 1:
            begin = _begin(first)
            yield dataclasses.replace(layout, header_row=first[begin][0]) if begin else layout


def _begin(lines: Sequence[tuple[int, int]]) -> int:
    """The place of the first line of a table among lines with their numbers of cells: the first of the usual width.

    The line above it counts if it is no title: names of columns may lack some.
    """
    width = Counter(count for _, count in lines).most_common(1)[0][0]
    whole = next(place for place, (_, count) in enumerate(lines) if count >= width)
    above = whole and lines[whole - 1][1] > width / 2 and lines[whole - 1][0] == lines[whole][0] - 1
    return whole - bool(above)


def sample_of(options: TableOptions, source: Source, label: str = "") -> Sample:
    """Returns the first rows of a table; if columns had a single value there, and the column `label` not several, also
    later rows with other values.
    """
    reader = options.open_rows(source, skip_broken=True)
    unread = (row for _, row in reader.rows)
    rows = _first_rows(unread)
    single = _single_values(rows[1:])  # the first one may be names
    named = next((name for name, value in rows[0].items() if value == label), label) if rows else ""
    if named in single or (single and named not in rows[0]):
        rows += _rows_with_others(unread, single)
    in_all = reader.form in MAY_LACK_NAMES
    names = [name for name in reader.names if in_all or all(name in row for row in rows)]
    cells = [[_as_text(row.get(name)) for row in rows] for name in names]
    return Sample(names, cells, reader.form)


def _first_rows(unread: Iterator[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    rows, characters = [], 0
    for row in unread:
        rows.append(row)
        characters += sum(len(cell) for cell in row.values() if isinstance(cell, str))
        if len(rows) >= ROWS or characters >= CHARACTERS:
            break
    return rows


def _single_values(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The columns that have the same value in all rows, with this value."""
    last = rows[-1] if rows else {}
    return {name: value for name, value in last.items() if all(row.get(name) == value for row in rows)}


def _rows_with_others(unread: Iterator[Mapping[str, Any]], single: dict[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Yields rows with another value than the single one of a column, until each of these columns has one."""
    while single and (row := next(unread, None)) is not None:
        if changed := [name for name in single if row.get(name, "") != single[name]]:
            yield row
            single = {name: value for name, value in single.items() if name not in changed}


def check_no_header(options: Any, source: str) -> None:
    """Raises OptionsNeededError if a file read without a header has one in its first line."""
    sample = sample_of(options, source)
    first = {name: cells[0] for name, cells in zip(sample.names, sample.columns)}
    if sample.form in MAY_LACK_NAMES and len(sample.columns[0]) > 1 and header_signs(sample.columns) > 2:
        chosen = {key: getattr(options, key, "") for key in ("text_column", "text_pair_column")}
        names = {key: first[name] for key, name in chosen.items() if name in first}
        raise OptionsNeededError(f"{source}:1: expected a row, got names of columns", [{"header": True, **names}])


def _as_text(value: Any) -> str:
    return "" if value is None or isinstance(value, dict) else str(value).strip()


def _with_header(
    options: TableOptions, source: Source, is_given: bool, chosen: set[str], label: str
) -> Iterator[tuple[bool | None, float, Sequence[str], Sequence[Sequence[str]]]]:
    """Yields whether the first line names the columns (None: without doubt), what speaks for it, names and cells; both
    ways if it may and may not.
    """
    form = options.format_of(source) if options.header and not is_given and isinstance(source, str) else None
    if form not in MAY_LACK_NAMES:
        sample = sample_of(options, source, label)
        yield None, 0, sample.names, sample.columns
        return
    sample = sample_of(dataclasses.replace(options, header=False), source, label)
    first = [column[0] for column in sample.columns]
    signs = header_signs(sample.columns)
    if chosen:
        signs = 2 if chosen <= {*first} else -2
    if signs > -2:
        yield (None if signs > 1 else True), min(signs, 0) / 4, first, [column[1:] for column in sample.columns]
    if signs < 2:
        yield False, 0, sample.names, sample.columns


def check_grades(options: Any, source: Source, given: Container[str]) -> None:
    """Raises OptionsNeededError for text pairs with a column of 0 and 1, or of grades, that no option names."""
    named = [options.text_column, options.text_pair_column, *options.negative_columns]
    named += list(getattr(options, "teacher_columns", [])) + [getattr(options, "score_column", "")]
    if options.label_column or any(name in given for name in ("label_column", "negative_columns", "train_on")):
        return
    sample = sample_of(options.dialect_of(source, named[:2]), source)
    columns = [Column(name, cells) for name, cells in zip(sample.names, sample.columns) if name not in named]
    texts: list[Mapping[str, Any]] = [{}]
    grades = [column.name for column in columns if column.may_be_grades]
    if not {*named[:2]} <= {*sample.names}:
        found = sorted(text_readings(columns, {}, "", None), key=lambda reading: -reading.score)
        texts = [reading.values for reading in found if "text_pair_column" in reading.values][: MOST // 2]
    elif not grades:
        _check_no_words(source, columns)
    labels = [{"label_column": name} for name in [*grades[: MOST // max(len(texts), 1) - 1], ""]] if grades else [{}]
    if readings := [reading for text in texts for label in labels if (reading := {**text, **label})]:
        problem = f"column {grades[0]!r} may say which texts belong together" if grades else "which are the texts?"
        raise OptionsNeededError(f"{source}: {problem}", readings, _shown(sample.names, sample.columns))


def _check_no_words(source: Source, columns: Sequence[Column]) -> None:
    """Raises ValueError for a column of words that seem to be the labels of pairs."""
    words = [column for column in columns if column.repeats and (column.hint > 2 or column.tells_pairs)]
    if words:
        raise ValueError(
            f"{source}: column {words[0].name!r}: expected 0 and 1, or grades, of pairs of texts, got "
            f'{min(words[0].kinds)!r:.40}; options.label_column="" trains all pairs as texts that belong together'
        )


def _shown(names: Sequence[str], columns: Sequence[Sequence[str]]) -> list[str]:
    rows = [names, *itertools.islice(zip(*columns), SHOWN_ROWS)]
    return [" | ".join(str(cell)[:SHOWN] for cell in row) for row in rows]
