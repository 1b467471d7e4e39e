"""What a table of labelled texts shows by itself: its dialect, whether its first line is a header, its columns."""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from official_bert.data.rows import Source
from official_bert.data.tables import RowReader, TableOptions, at_key
from official_bert.data.tabular.companions import labels_in_lines
from official_bert.data.tabular.formats import column_numbers
from official_bert.data.tabular.likely_columns import MOST, likely_columns, names_columns
from official_bert.fields import OptionsNeededError, changed_fields

MAY_LACK_NAMES = ("tsv", "csv", "xlsx")  # formats whose first line may be a row
UNNAMED = ("fasttext", "two_files")  # those whose columns have the names that are asked for
Columns = Mapping[str, Sequence[str]]


def likely_options(options: Any, source: Source, scores: bool) -> Any:
    """Returns the options, `TableOptions` with `text_column` and `label_column`, that read a table as it is meant.

    Columns that the table lacks, under the default names, are those that look so; labels are numbers if they are
    `scores`. Raises OptionsNeededError, with the options of each way, if several look so.
    """
    names = [options.text_column, *(options.label_columns or [options.label_column])]
    options = options.dialect_of(source, names)
    if isinstance(source, str) and (labels_in_lines(source) or options.format_of(source, names) in UNNAMED):
        return options
    reader = options.open_rows(source, names, skip_broken=True)
    text, label = (_known(options, key, reader) for key in ("text_column", "label_column"))
    if text and label:
        is_headless = {*names} <= {*column_numbers(len(reader.names))} - {*reader.names}
        return dataclasses.replace(options, header=False) if is_headless else options
    options = options.dialect_of(source)
    reader = options.open_rows(source, skip_broken=True)
    readings = []
    for header, columns in _with_header(options, reader):
        others = {
            name: values
            for name, values in columns.items()
            if name not in (options.text_pair_column, *options.label_columns)
        }
        readings += [
            dataclasses.replace(options, header=header, text_column=likely_text, label_column=likely_label)
            for likely_text, likely_label in likely_columns(others, text, label, scores)
        ]
    if len(readings) > 1:
        raise OptionsNeededError(
            f"{source}: several columns may be the text and the label",
            [changed_fields(options, reading) for reading in _with_pair(readings, reader.names)[:MOST]],
        )
    return readings[0] if readings else options


def _known(options: Any, key: str, reader: RowReader) -> str:
    """The column that an option names, if the first row of a table has it or the user has named it; else ""."""
    column = getattr(options, key)
    if column != type(options).__dataclass_fields__[key].default or (key == "label_column" and options.label_columns):
        return column
    try:
        at_key(dict.fromkeys(reader.names), column)
    except KeyError:
        return ""
    return column


def _with_header(options: TableOptions, reader: RowReader) -> Iterator[tuple[bool, Columns]]:
    """Yields whether the first line names the columns, and these; both ways if it may and may not."""
    rows = [row for _, row in reader.rows]
    names = list(dict.fromkeys([*reader.names, *(name for row in rows for name in row)]))
    columns = {name: [str("" if (value := row.get(name)) is None else value) for row in rows] for name in names}
    may_be_row = options.header and reader.form in MAY_LACK_NAMES
    is_header = names_columns(names, [*columns.values()]) if may_be_row else True
    if is_header is not False:
        yield options.header, columns
    if not is_header:
        numbered = zip(column_numbers(len(names)), columns.items())
        yield False, {number: [name, *values] for number, (name, values) in numbered}


def _with_pair(readings: Sequence[Any], names: Sequence[str]) -> list[Any]:
    """Puts the pair of both texts behind two readings that differ in the text alone."""
    texts = sorted({reading.text_column for reading in readings}, key=[*names, ""].index)
    if len(texts) == len(readings) == 2 and not readings[0].text_pair_column:
        return [*readings, dataclasses.replace(readings[0], text_column=texts[0], text_pair_column=texts[1])]
    return list(readings)
