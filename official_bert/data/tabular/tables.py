"""The one reader of rows: files of any form, and rows in memory, as dictionaries with declared columns.

Files are TSV, CSV, JSON (an object a line, a list of objects, or an object with such a list under `data`), Parquet,
workbooks, fastText, and texts beside labels; with or without a BOM, packed or not. The content tells JSON apart,
because JSON lines often have the name of a document. Training, evaluation, prediction and the tools read by
`TableOptions.open_rows`, or by `read_table`, which collects columns.
"""

import dataclasses
import functools
import itertools
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal, Self

from absl import logging

from official_bert.data.rows import Rows, Source, place
from official_bert.data.tabular.companions import labels_beside, labels_in_lines
from official_bert.data.tabular.dialects import USUAL, likely_dialect
from official_bert.data.tabular.encodings import encoding_of, text_lines
from official_bert.data.tabular.formats import (
    FASTTEXT,
    cells_of,
    check_names_once,
    column_numbers,
    first_lines,
    kind_by_content,
    lines_together,
    neighbours,
    parquet_objects,
    without_end,
)
from official_bert.data.tabular.formats import shown as shown
from official_bert.data.tabular.formats import spelled as spelled
from official_bert.data.tabular.json_rows import begins_json, checked_object
from official_bert.data.tabular.json_rows import json_values as json_values
from official_bert.fields import Constraint, Count, as_flags, changed_fields
from official_bert.limits import MOST_COLUMNS, require_at_most
from official_bert.storage.files import is_file, is_folder
from official_bert.storage.suffixes import suffix_of

Format = Literal["auto", "tsv", "csv", "jsonl", "parquet", "xlsx", "fasttext", "two_files"]
SUFFIXES: dict[str, Format] = {
    ".tsv": "tsv",
    ".txt": "tsv",
    ".csv": "csv",
    ".jsonl": "jsonl",
    ".json": "jsonl",
    ".parquet": "parquet",
}
OBJECTS = ("jsonl", "parquet")  # formats whose rows have keys
ANSWER, ANSWERS = "answer", ("accept", "reject", "ignore")  # Prodigy's, to a row that it shows
HEADLESS = " (a file without names of columns: options.header=false, its columns are c1, c2, ...)"
_warn_once = functools.cache(logging.warning)  # a file is opened several times by a command


NumberedCells = Iterator[tuple[int, Sequence[Any]]]
# With the line, from 1, at which each row begins; in memory with its number, from 0.
NumberedRows = Iterator[tuple[int, Mapping[str, Any]]]


@dataclasses.dataclass(frozen=True)
class Table:
    """The declared columns of a file, and the line of each row."""

    path: Source
    columns: dict[str, list[Any]]  # strings; in JSON and Parquet any value
    lines: list[int]  # 1-based line at which each row begins; of rows in memory their number from 0
    broken: list[str]  # one sentence for each row that was left out
    unaccepted: int = 0  # rows that people rejected or skipped: left out too

    def __len__(self) -> int:
        return len(self.lines)

    def place(self, row: int) -> str:
        """Returns `file:line` of a row, or `name[row N]`."""
        return place(self.path, self.lines[row])

    def without(self, rows: Container[int]) -> "Table":
        """Returns the table without these rows."""
        return self.rows(row for row in range(len(self)) if row not in rows)

    def rows(self, keep: Iterable[int]) -> "Table":
        """Returns a table of only these rows."""
        numbers = list(keep)
        columns = {name: [values[row] for row in numbers] for name, values in self.columns.items()}
        return dataclasses.replace(self, columns=columns, lines=[self.lines[row] for row in numbers])


@dataclasses.dataclass(frozen=True, kw_only=True)
class TableOptions:
    """How the files of a task are read."""

    file_format: Format = "auto"
    """Format of the files; auto: content and suffix decide."""
    delimiter: Annotated[
        str, Constraint("text other than a line end", lambda delimiter: not {*spelled(delimiter)} & {*"\r\n"})
    ] = ""
    """Text between columns; empty: a tab in TSV, a comma in CSV, unless the first lines show another."""
    header: bool = True
    """The first line names the columns; without it they are c1, c2, ..."""
    header_row: Count = 1
    """The line of the file, or the row of the sheet, at which the table begins."""
    sheet: str = ""
    """The sheet of a workbook; empty: the first one."""
    decimal: Literal[".", ","] = "."
    """The mark before the decimals of scores."""
    encoding: str = ""
    """Encoding of text; empty: UTF-8, unless the bytes show another."""

    def read_table(
        self,
        source: Source,
        columns: Sequence[str],
        names: Sequence[str] = (),
        skip_broken: bool = False,
        label: str | None = None,
    ) -> Table:
        """Reads the `columns` of a file or of rows in memory.

        `label` is the column of labels, "" for none of its own, and None in files to answer. Of labelled rows of
        Prodigy only those are read that people accepted. Labels that JSON lines lack may stand in NAME-labels.lst
        (AI2's data).

        Raises ValueError as `open_rows` and `RowReader.with_columns` do, and for a source without rows.
        """
        reader = self.open_rows(source, columns, names, skip_broken)
        rows = reader.rows
        if (
            label in columns
            and reader.form == "jsonl"
            and label not in reader.names
            and (labels := labels_in_lines(str(source)))
        ):
            both = lines_together(rows, without_end(labels, self.encoding), str(source), labels)
            rows = ((line, {**row, str(label): value}) for (line, row), value in both)
        left_out: set[int] = set()
        if label is not None and ANSWER in {*reader.names} - {*columns}:
            answers = self.open_rows(source, columns, names, skip_broken).rows
            left_out = unconfirmed([row.get(ANSWER) for _, row in answers])
        rows = (row for number, row in enumerate(rows) if number not in left_out)
        table = Table(reader.source, {name: [] for name in columns}, [], reader.broken, len(left_out))
        for line, row in dataclasses.replace(reader, rows=rows).with_columns(columns):
            for name, values in table.columns.items():
                values.append(at_key(row, name))
            table.lines.append(line)
        if not table.lines:
            that = f" that people accepted, of {len(left_out)}" if left_out else ""
            raise ValueError(f"{source}: no row{that} in {'it' if isinstance(source, Rows) else 'this file'}")
        return table

    def open_rows(
        self, source: Source, columns: Sequence[str] = (), names: Sequence[str] = (), skip_broken: bool = False
    ) -> "RowReader":
        """Opens a file that should have these `columns`, or rows in memory, whose keys are the columns.

        `names` are the columns of a file that does not name them; without `header` they are c1, c2, ... Texts in
        NAME_text.txt have their labels in NAME_labels.txt (TweetEval): these, and fastText's, have the first and the
        last of the `columns`. Quotes mean nothing in TSV (GLUE, 2018 `_read_tsv`), unlike in CSV. A blank line is a row
        with an empty text if there is a single column, except at the end of the file; else it is no row. A row with
        another number of columns is an error; with `skip_broken` it is left out.

        Encoding, format and delimiter are those of `dialect_of`, with a line about those that are not the usual ones.

        Raises ValueError, naming file and line, for a file that is missing or in another encoding, and for a delimiter
        that cannot be one; the reader raises it for a broken row and broken JSON.
        """
        broken: list[str] = []
        form: Format | None = None
        rows: NumberedRows
        how = self.dialect_of(source, columns, names)
        if found := changed_fields(self, how):
            _warn_once("%s: read with %s", source, as_flags(found))
        if isinstance(source, Rows):
            rows = enumerate(source.values)
        elif (form := how.format_of(source, columns, bool(names))) not in OBJECTS:
            header, cells = how._cells(source, form, columns, names)
            require_at_most(MOST_COLUMNS, len(header), "columns", source)
            rows = _keyed(source, header, cells, broken if skip_broken else None)
            return RowReader(source, form, header, rows, how, broken)
        elif form == "parquet":
            rows = parquet_objects(source)
        else:
            source, values = json_values(source, how.encoding)
            rows = ((line, checked_object(value, place(source, line))) for line, value in values)
        first = list(itertools.islice(rows, 1))
        names = [name for _, row in first for name in row]
        return RowReader(source, form, names, itertools.chain(first, rows), how, broken)

    def dialect_of(self, source: Source, columns: Sequence[str] = (), names: Sequence[str] = ()) -> Self:
        """Returns the options with a file's detected encoding and a table's delimiter, unless they are given.

        The usual delimiter is used if the first line then names `columns`; without `columns`, the shape of the rows
        decides. Raises ValueError as `format_of` and `encoding_of` do.
        """
        if isinstance(source, Rows):
            return self
        how = self if self.encoding or not is_file(source) else dataclasses.replace(self, encoding=encoding_of(source))
        form = how.format_of(source, columns, bool(names))
        if form not in USUAL or self.delimiter or names:
            return how
        lines = first_lines(source, how.encoding)
        if columns and not self.header and any(USUAL[form] in line for line in lines):
            return how
        dialect = likely_dialect(lines, form, columns if self.header else (), self.file_format == "auto")
        if dialect == (form, USUAL[form]):
            return how
        others: dict[str, Any] = {"file_format": dialect[0]} if dialect[0] != form else {}
        return dataclasses.replace(how, delimiter=dialect[1].replace("\t", "\\t"), **others)

    def format_of(self, path: str, columns: Sequence[str] = (), headless: bool = False) -> Format:
        """Returns the format of a file that should have these `columns`: by its content or, of TSV and CSV, its name.

        A table whose first line names the columns is one, whatever else it looks like. Raises ValueError for a missing
        file and for an unknown name.
        """
        if not is_file(path):
            reason = "expected a file, got a folder" if is_folder(path) else f"no such file{neighbours(path)}"
            raise ValueError(f"{path}: {reason}")
        if self.file_format != "auto":
            return self.file_format
        suffix = suffix_of(path)
        by_name, content = SUFFIXES.get(suffix), kind_by_content(path, self.encoding)
        if by_name in OBJECTS:
            return by_name  # type: ignore[return-value]
        if content == "parquet" or (content == "xlsx" and (by_name or suffix == ".xlsx")):
            return content  # type: ignore[return-value]
        if by_name is None and content != "json":
            raise ValueError(
                f"{path}: expected a name that ends with one of {', '.join(SUFFIXES)}, .xlsx, or the format to be given"
            )
        if by_name is None or (content != "json" and (headless or not self.header)):
            return by_name or "jsonl"
        return self._format_by_first_line(path, columns, by_name, content == "json")

    def _format_by_first_line(self, path: str, columns: Sequence[str], by_name: Format, may_be_json: bool) -> Format:
        line = next(text_lines(path, self.encoding), "").rstrip("\r\n")
        cells = line.replace('"', "").split(spelled(self.delimiter) or ("," if by_name == "csv" else "\t"))
        if {*columns} <= {*map(str.strip, cells)}:
            return by_name
        if may_be_json and begins_json(line):
            return "jsonl"
        if suffix_of(path) == ".txt" and labels_beside(path):
            return "two_files"
        return "fasttext" if line.startswith(FASTTEXT) else by_name

    def _cells(
        self, path: str, form: Format, columns: Sequence[str], names: Sequence[str]
    ) -> tuple[Sequence[str], NumberedCells]:
        """Returns the names of the columns, and (line, cells) of each row."""
        rows = cells_of(path, form, self.delimiter, self.encoding, self.sheet)
        if self.header_row > 1:
            rows = itertools.dropwhile(lambda row: row[0] < self.header_row, rows)
        if form in ("two_files", "fasttext"):
            names = [columns[0], columns[-1]] if len(columns) > 1 else [*columns, "label"]
        elif not self.header and not names:
            first = next((row for row in rows if row[1]), (1, []))
            names, rows = column_numbers(len(first[1])), itertools.chain([first], rows)
        elif not names:
            names = next((cells for _, cells in rows if cells), [])
        return names, rows


@dataclasses.dataclass(frozen=True)
class RowReader:
    """The rows of a file, or rows in memory, read one at a time."""

    source: Source  # as messages name its places: the list in a JSON document counts its rows from 0
    form: Format | None  # None: rows in memory
    names: Sequence[str]  # of the columns; of rows with keys those of the first one
    rows: NumberedRows
    how: TableOptions  # also names the columns, for messages
    broken: list[str]  # one sentence for each row that was left out

    def with_columns(self, columns: Sequence[str]) -> NumberedRows:
        """Yields the rows, checking that each has these columns; `labels.label` is a nested key.

        Raises ValueError, naming file, line and the option that names the column, for a missing or doubled column.
        """
        named_once = self.form not in (*OBJECTS, None)  # in the first line
        if named_once:
            check_names_once(self.source, [name for name in self.names if name in columns])
        if named_once and (missing := next((name for name in columns if name not in self.names), None)):
            may_be_headless = self.names and self.how.header and self.form in ("tsv", "csv")
            hint = _similar_name(missing, self.names) or (HEADLESS if may_be_headless else "")
            raise ValueError(
                f"{self.source}: expected a column {missing!r}, found {shown(self.names)}{hint}{self._option(missing)}"
            )
        keys_of_each_row = () if named_once else columns
        for line, row in self.rows:
            for name in keys_of_each_row:
                try:
                    at_key(row, name)
                except KeyError:
                    raise ValueError(
                        f"{place(self.source, line)}: expected a key {name!r}, found {shown(list(row))}"
                        f"{self._option(name)}"
                    ) from None
            yield line, row

    def _option(self, column: str) -> str:
        """The end of a message about a missing column: the option that names another."""
        keys = [
            key
            for key, value in vars(self.how).items()
            if key.endswith(("_column", "_columns"))
            and column in (value if isinstance(value, (list, tuple)) else (value,))
        ]
        return f"; --set options.{keys[0]}= names another" if keys else ""


def _keyed(path: str, names: Sequence[str], rows: NumberedCells, broken: list[str] | None) -> NumberedRows:
    """Yields rows of cells as dictionaries, and a line without text as a row if there is a single column.

    Rows with another number of cells go to `broken`. Raises ValueError for one without it.
    """
    blank: list[int] = []
    for line, cells in rows:
        if not any(cells) and (len(names) > 1 or not cells):
            blank.append(line)
            continue
        if len(names) == 1:  # the index of an answer is that of its row
            yield from ((number, {names[0]: ""}) for number in blank)
        blank = []
        if len(cells) == len(names):
            yield line, dict(zip(names, cells))
            continue
        wrong = f"{path}:{line}: expected {len(names)} columns, got {len(cells)}"
        if broken is None:
            raise ValueError(wrong)
        broken.append(wrong)


def _similar_name(name: str, header: Sequence[str]) -> str:
    """A hint at a name that differs by case or spaces; "" for none."""
    if near := next((other for other in header if str(other).strip().casefold() == name.strip().casefold()), ""):
        return f" ({near!r} differs by case or spaces only)"
    return ""


def unconfirmed(answers: Sequence[Any]) -> set[int]:
    """Returns the numbers of the rows that nobody accepted in Prodigy, by their `answer`; none of another file."""
    given = [answer for answer in answers if answer is not None]
    if not given or not all(isinstance(answer, str) and answer in ANSWERS for answer in given):
        return set()
    return {row for row, answer in enumerate(answers) if answer != ANSWERS[0]}


def first_object(source: Source, how: TableOptions) -> Mapping[str, Any]:
    """Returns the first row of a file whose rows have keys, or of rows in memory; {} of another file."""
    is_object = isinstance(source, Rows) or format_of_objects(source, how.encoding)
    return next(how.open_rows(source).rows, (0, {}))[1] if is_object else {}


def has_key(values: Any, name: str) -> bool:
    """Returns whether `at_key` finds a value."""
    try:
        at_key(values, name)
    except KeyError:
        return False
    return True


def at_key(values: Any, name: str) -> Any:
    """Returns the value at a key of an object, which may be nested (`labels.label`); for a list, the values at a key of
    its objects. Raises KeyError for neither.
    """
    if isinstance(values, Mapping):
        if name in values:
            return values[name]
        first, dot, rest = name.partition(".")
        if dot and first in values:
            return at_key(values[first], rest)
    elif isinstance(values, list):
        return [at_key(value, name) for value in values]
    raise KeyError(name)


def format_of_objects(path: str, encoding: str = "") -> Format | None:
    """Returns the format of a file whose rows have keys, by its name or else its content; None for another file."""
    if (by_name := SUFFIXES.get(suffix_of(path))) in OBJECTS:
        return by_name
    content = kind_by_content(path, encoding) if is_file(path) else ""
    if content != "json":
        return "parquet" if content == "parquet" else None
    try:
        first = next(json_values(path, encoding)[1], (0, None))[1]
    except ValueError:
        return None
    return "jsonl" if first and isinstance(first, (dict, list)) else None


def rows_of(source: Source, encoding: str = "", always: bool = False) -> Source:
    """Returns the rows of a file of JSON or Parquet, as `format_of_objects` tells; any other source unchanged.

    With `always` a file of another form is read as JSON. Raises ValueError, naming file and line, for a file that is
    missing, broken or empty.
    """
    if isinstance(source, Rows) or not (form := format_of_objects(source, encoding) or ("jsonl" if always else None)):
        return source
    reader = TableOptions(file_format=form, encoding=encoding).open_rows(source)
    rows = collected(source, reader.source, reader.rows)
    if not rows.values:
        raise ValueError(f"{source}: no row in this file")
    return rows


def collected(path: str, source: Source, numbered_rows: Iterable[tuple[int, Any]]) -> Rows:
    """Returns a file's rows in memory; messages name their lines, unless `source` counts rows from 0."""
    numbers, values = [*zip(*numbered_rows)] or [(), ()]
    return Rows(path, values, () if isinstance(source, Rows) else numbers)
