"""How a table of labelled texts is meant, if it does not say so.

One reading is taken if no other is plausible; else all that are plausible are named.

A reading is a choice of the sheet, of the line at which the table begins, of whether this names the columns, of the
columns, and of the kind of the labels. What the user has given is fixed.
"""

import dataclasses
import itertools
from collections import Counter
from collections.abc import Container, Iterator, Sequence
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
from official_bert.data.tabular.tables import ANSWERS, TableOptions
from official_bert.fields import OptionsNeededError, changed_fields

MAY_LACK_NAMES = ("tsv", "csv", "xlsx")  # formats whose first line may be a row
UNNAMED = ("fasttext", "two_files")  # those whose columns have the names that are asked for
ROWS, CHARACTERS = 2000, 1 << 21  # at the beginning of a table, that tell its columns
FIRST = 20  # lines, among which the table begins
MOST = 4  # readings that are named
SHOWN_ROWS, SHOWN = 3, 60  # rows, and characters of a cell, in a message


@dataclasses.dataclass(frozen=True)
class Sample:
    """The first rows of a table with names of columns, which may be a row themselves."""

    names: Sequence[str]
    columns: Sequence[Sequence[str]]
    form: str | None


def likely_options(options: Any, source: Source, given: Container[str]) -> Any:
    """Returns the options, `TableOptions` of labelled texts, that read a table as it is meant; `given` are the names of
    those that the user has chosen.

    Raises OptionsNeededError, with the options of each way, if several are plausible, and for another kind of labels.
    """
    wanted = [options.text_column, *(options.label_columns or [options.label_column])]
    how = options.dialect_of(source, wanted)
    if isinstance(source, str) and (labels_in_lines(source) or how.format_of(source, wanted) in UNNAMED):
        return how
    if not {*wanted} <= {*how.open_rows(source, wanted, skip_broken=True).names}:
        how = options.dialect_of(source)
    keys = [key for key in ("text_column", "text_pair_column", "label_column") if key in given]
    chosen = {*filter(None, (getattr(options, key) for key in keys)), *options.label_columns}
    readings: list[Reading] = []
    rows: list[Sequence[str]] = []
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
            rows = rows or [names, *itertools.islice(zip(*cells), SHOWN_ROWS)] if found else rows
    readings.sort(key=lambda reading: -reading.score)
    plausible = [reading for reading in readings if reading.score > readings[0].score - MARGIN]
    if not plausible:
        return how
    if len(plausible) == 1 and "kind" not in plausible[0].values:
        return dataclasses.replace(how, **plausible[0].values)
    label = plausible[0].values.get("label_column", "")
    what = "scores" if plausible[0].values.get("kind") == "regression" else "several labels of a text"
    problem = "several columns may be the text and the label"
    problem = problem if len(plausible) > 1 else f"{label or 'several columns'!r} seems to hold {what}"
    raise OptionsNeededError(
        f"{source}: {problem}",
        [changed_fields(options, how) | dict(reading.values) for reading in plausible[:MOST]],
        [" | ".join(str(cell)[:SHOWN] for cell in row) for row in rows],
    )


def _of_columns(options: Any, columns: Sequence[Column], given: Container[str]) -> list[Reading]:
    """The likely readings of columns as text and label."""
    columns = [column for column in columns if not column.kinds <= {*ANSWERS}]  # neither texts nor labels
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
    for number, name in enumerate(names):
        layout = dataclasses.replace(options, sheet=name) if number else options
        if form not in MAY_LACK_NAMES or options.header_row > 1:
            yield layout
            continue
        _, cells = layout._cells(source, form, (), ["c1"])
        first = list(itertools.islice(((line, sum(map(bool, row))) for line, row in cells if any(row)), FIRST))
        width = Counter(count for _, count in first).most_common(1)[0][0] if first else 0
        begin = next(line for line, count in first if count > width / 2) if first else 1
        if len(first) > 1:
            is_first = not first or begin == first[0][0]
            yield layout if is_first else dataclasses.replace(layout, header_row=begin)


def sample_of(options: TableOptions, source: Source, label: str = "") -> Sample:
    """Reads the first rows of a table, and of the later ones those with other values in columns that had a single one,
    unless the column `label` has several.
    """
    reader = options.open_rows(source, skip_broken=True)
    rows, characters = [], 0
    for _, row in reader.rows:
        rows.append(row)
        characters += sum(len(cell) for cell in row.values() if isinstance(cell, str))
        if len(rows) >= ROWS or characters >= CHARACTERS:
            break
    later = rows[1:]  # the first one may be names
    single = (
        {name: value for name, value in rows[-1].items() if all(row.get(name) == value for row in later)}
        if later
        else {}
    )
    named = next((name for name, value in rows[0].items() if value == label), label) if rows else ""
    for _, row in reader.rows if named in single or (single and named not in rows[0]) else ():
        if changed := [name for name in single if row.get(name, "") != single[name]]:
            rows.append(row)
            single = {name: value for name, value in single.items() if name not in changed}
            if not single:
                break
    in_all = reader.form in MAY_LACK_NAMES
    names = [name for name in reader.names if in_all or all(name in row for row in rows)]
    cells = [[_as_text(row.get(name)) for row in rows] for name in names]
    return Sample(names, cells, reader.form)


def check_no_header(options: Any, source: str) -> None:
    """Raises OptionsNeededError if the first line of a file, whose columns have numbers, names them."""
    sample = sample_of(options, source)
    first = {name: cells[0] for name, cells in zip(sample.names, sample.columns)}
    signs = header_signs(list(first.values()), [Column("", cells[1:]) for cells in sample.columns])
    if sample.form in MAY_LACK_NAMES and len(sample.columns[0]) > 1 and signs > 2:
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
    signs = header_signs(first, [Column("", column[1:]) for column in sample.columns])
    if chosen:
        signs = 2 if chosen <= {*first} else -2
    if signs > -2:
        yield (None if signs > 1 else True), min(signs, 0) / 4, first, [column[1:] for column in sample.columns]
    if signs < 2:
        yield False, 0, sample.names, sample.columns


def check_grades(options: Any, source: Source, given: Container[str]) -> None:
    """Raises OptionsNeededError for pairs of texts beside a column of 0 and 1, or of grades, that no option names."""
    named = [options.text_column, options.text_pair_column, *options.negative_columns]
    named += list(getattr(options, "teacher_columns", [])) + [getattr(options, "score_column", "")]
    if options.label_column or any(name in given for name in ("label_column", "negative_columns", "train_on")):
        return
    sample = sample_of(options.dialect_of(source, named[:2]), source)
    columns = [Column(name, cells) for name, cells in zip(sample.names, sample.columns) if name not in named]
    grades = [
        column.name
        for column in columns
        if column.kinds <= {"True", "False"}
        or (column.numbers[0] and column.are_classes() and not min(column.numbers[0]))
        if len(column.kinds) > 1 and column.hint >= 0
    ]
    if grades and {*named[:2]} <= {*sample.names}:
        raise OptionsNeededError(
            f"{source}: column {grades[0]!r} may say which texts belong together",
            [{"label_column": name} for name in [*grades[: MOST - 1], ""]],
            [" | ".join(row) for row in itertools.islice(zip(*sample.columns), SHOWN_ROWS)],
        )
