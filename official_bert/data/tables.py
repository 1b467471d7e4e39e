"""Tables of text with named columns: TSV, CSV, JSON lines, with or without a BOM, and Parquet, checked as they are read."""

import csv
import dataclasses
import json
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal

from official_bert.data.cache import file_digest, text_digest
from official_bert.files import folder_of, is_file, is_folder, list_names, read_lines

Format = Literal["auto", "tsv", "csv", "jsonl", "parquet"]
SUFFIXES: dict[str, Format] = {".tsv": "tsv", ".txt": "tsv", ".csv": "csv", ".jsonl": "jsonl", ".json": "jsonl",
                              ".parquet": "parquet"}
LARGEST_CELL = 2**31 - 1  # characters; the csv module stops at 131,072 by itself


@dataclasses.dataclass(frozen=True, eq=False)
class Rows:
    """A table in memory, a dict a row, which stands for a file; `name` is what messages call it, as in `train[row 3]` (from 0)."""

    name: str
    values: Sequence[Mapping[str, Any]]
    lines: Sequence[int] = ()  # of the file `name` that the rows come from, for messages; none: they come from no file

    def __str__(self) -> str:
        return self.name


Source = str | Rows  # a file's path, or what stands for it


def place(source: Source, line: int) -> str:
    """`file:line`, or `name[row N]` of rows in memory; of rows that come from a file, `line` counts them from 0."""
    if isinstance(source, Rows):
        return f"{source}:{source.lines[line]}" if source.lines else f"{source}[row {line}]"
    return f"{source}:{line}"


def digest(source: Source) -> str:
    """The SHA-256 of what a source holds."""
    return text_digest(map(repr, source.values)) if isinstance(source, Rows) else file_digest(source)


@dataclasses.dataclass(frozen=True)
class Table:
    """The wanted columns of a file, and the line of each row."""

    path: Source
    columns: dict[str, list[Any]]  # strings; in JSON lines any value
    lines: list[int]  # 1-based line at which each row begins; of rows in memory their number from 0
    broken: list[str]  # one sentence for each row that was left out

    def __len__(self) -> int:
        return len(self.lines)

    def place(self, row: int) -> str:
        """`file:line` of a row, or `name[row N]`."""
        return place(self.path, self.lines[row])

    def rows(self, keep: Iterable[int]) -> "Table":
        """A table of only some of the rows."""
        chosen = list(keep)
        return Table(self.path, {name: [values[row] for row in chosen] for name, values in self.columns.items()},
                     [self.lines[row] for row in chosen], self.broken)


def read_table(path: Source, wanted: Sequence[str], optional: Sequence[str] = (), names: Sequence[str] = (), form: Format = "auto",
               delimiter: str = "", skip_broken: bool = False) -> Table:
    """Reads the columns `wanted`, and those of `optional` that are there, of a file whose first line names its columns.

    `path` may be rows in memory, whose keys are the columns. `names` are the columns of a file without such a line. Quotes mean
    nothing in TSV (GLUE, 2018 `_read_tsv`), unlike in CSV. A blank line is a row with an empty text if there is a single column, except
    at the end of the file; else it is no row. A row with another number of columns is an error; with `skip_broken` it is left out and
    listed in `broken`. Raises ValueError, naming file and line, for a file that is missing, empty or not UTF-8, a missing or doubled
    column, a broken row, broken JSON, a delimiter that cannot be one.
    """
    table = Table(path, {name: [] for name in wanted}, [], [])
    if isinstance(path, Rows):
        _fill_from_objects(table, enumerate(path.values), optional)
    elif not is_file(path):
        raise ValueError(f"{path}: no such file" + _neighbours(path))
    elif (kind := _format(path) if form == "auto" else form) in ("jsonl", "parquet"):
        objects = _json_objects(path) if kind == "jsonl" else _parquet_objects(path)
        _fill_from_objects(table, objects, optional)
    else:
        _fill_from_cells(table, _cells(path, kind, delimiter, names), optional, skip_broken)
    if not table.lines:
        raise ValueError(f"{path}: no row in {'it' if isinstance(path, Rows) else 'this file'}")
    return table


def check_names_once(source: Source, names: Sequence[str]) -> None:
    """Raises ValueError for two columns of one name, of which one would count without a word."""
    for name, count in Counter(names).items():
        if count > 1:
            raise ValueError(f"{source}: column {name!r} stands there {count} times")


def column_names(path: str, form: Format, delimiter: str = "") -> list[str]:
    """Returns the cells of a file's first line, or the keys of its first object; none of an empty file."""
    if form in ("jsonl", "parquet"):
        return list(next(_json_objects(path) if form == "jsonl" else _parquet_objects(path), (0, {}))[1])
    return list(next(_cells(path, form, delimiter, ()), (0, ()))[1])


def rows_of(source: Source, suffixes: Sequence[str] = (".jsonl", ".parquet")) -> Source:
    """Returns the rows of a file of JSON lines or of Parquet with one of these suffixes; anything else unchanged.

    Raises ValueError, naming file and line, for a file that is missing, broken or empty.
    """
    if isinstance(source, Rows) or not source.lower().endswith(tuple(suffixes)):
        return source
    found = list(_parquet_objects(source) if _format(source) == "parquet" else _json_objects(source))
    if not found:
        raise ValueError(f"{source}: no row in this file")
    return Rows(source, [row for _, row in found], [line for line, _ in found])


def _fill_from_cells(table: Table, rows: Iterator[tuple[int, Sequence[str]]], optional: Sequence[str], skip_broken: bool) -> None:
    """Fills the table from rows, the first of which has the names of the columns."""
    header = list(next(rows, (0, ()))[1])
    check_names_once(table.path, [name for name in header if name in table.columns or name in optional])
    for name in table.columns:
        if name not in header:
            raise ValueError(f"{table.path}: expected a column {name!r}, found {shown(header)}")
    table.columns.update({name: [] for name in optional if name in header})
    columns = [(values, header.index(name)) for name, values in table.columns.items()]
    for line, cells in rows:
        if len(cells) != len(header):
            wrong = f"{table.path}:{line}: expected {len(header)} columns, got {len(cells)}"
            if not skip_broken:
                raise ValueError(wrong)
            table.broken.append(wrong)
            continue
        for values, place in columns:
            values.append(cells[place])
        table.lines.append(line)


def _fill_from_objects(table: Table, objects: Iterable[tuple[int, Mapping]], optional: Sequence[str]) -> None:
    """Fills the table from JSON objects; an optional column counts if the first object has it."""
    for line, values in objects:
        if not table.lines:
            table.columns.update({name: [] for name in optional if name in values})
        for name, column in table.columns.items():
            if name not in values:
                raise ValueError(f"{place(table.path, line)}: expected a key {name!r}, found {shown(list(values))}")
            column.append(values[name])
        table.lines.append(line)


def _format(path: str) -> Format:
    suffix = os.path.splitext(path)[1].lower()
    if suffix not in SUFFIXES:
        raise ValueError(f"{path}: expected a name that ends with one of {', '.join(SUFFIXES)}, or the format to be given")
    return SUFFIXES[suffix]


def _neighbours(path: str) -> str:
    """The files beside a missing file, for its error message."""
    folder = folder_of(path) or "."
    if not is_folder(folder):
        return f" (there is no folder {folder} either)"
    return f" (the folder holds {shown(list_names(folder))})"


def shown(names: Sequence[str]) -> str:
    """The first dozen names for a message, long ones cut."""
    short = [repr(name[:40]) for name in map(str, names[:12])]
    return ", ".join(short) + (f" and {len(names) - 12} more" if len(names) > 12 else "") if names else "nothing"


def checked_delimiter(delimiter: str, kind: Format = "tsv") -> str:
    r"""Returns a delimiter, in which `\t` may stand for a tab. Raises ValueError for one that cannot divide columns of a format."""
    delimiter = delimiter.replace("\\t", "\t")
    if any(char in "\r\n" for char in delimiter) or (kind == "csv" and (len(delimiter) > 1 or delimiter == '"')):
        raise ValueError(f"options.delimiter: expected {'one character' if kind == 'csv' else 'text'} other than a line end"
                         f"{' or quotation mark' if kind == 'csv' else ''}, got {delimiter!r}")
    return delimiter


def _cells(path: str, kind: Format, delimiter: str, names: Sequence[str]) -> Iterator[tuple[int, Sequence[str]]]:
    """Yields (line, cells) of each row, the names of the columns first."""
    width = len(names)
    blank: list[int] = []
    if names:
        yield 0, names
    for line, cells in _lines(path, kind, checked_delimiter(delimiter, kind)):
        if not cells:
            blank.append(line)
            continue
        if width == 1:  # the index of an answer is that of its row
            yield from ((number, [""]) for number in blank)
        blank, width = [], width or len(cells)
        yield line, cells


def _lines(path: str, kind: Format, delimiter: str) -> Iterator[tuple[int, Sequence[str]]]:
    """Yields (line, cells) of each row; a blank line has no cells."""
    if kind == "tsv":
        for number, line in enumerate(read_lines(path, keep_ends=True), 1):
            text = line.rstrip("\r\n")
            yield number, text.split(delimiter or "\t") if text else []
        return
    csv.field_size_limit(LARGEST_CELL)
    reader = csv.reader(read_lines(path, keep_ends=True), delimiter=delimiter or ",", strict=True)
    begins = 1
    try:
        for cells in reader:
            yield begins, cells
            begins = reader.line_num + 1
    except csv.Error as error:
        raise ValueError(f"{path}:{begins}: not valid CSV: {error}") from None


def _json_objects(path: str) -> Iterator[tuple[int, dict]]:
    """Yields (line, object) of each line that is not blank."""
    for number, line in enumerate(read_lines(path, keep_ends=True), 1):
        if line.strip():
            yield number, json_object(line, f"{path}:{number}")


def json_object(line: str, where: str) -> dict[str, Any]:
    """Returns the object in a line of JSON. Raises ValueError, which begins with `where`, for anything else."""
    try:
        values = json.loads(line)
    except json.JSONDecodeError as error:
        raise ValueError(f"{where}: not valid JSON: {error.msg} at column {error.colno}; expected an object a line") from None
    if not isinstance(values, dict):
        raise ValueError(f"{where}: expected a JSON object, got {json.dumps(values)[:60]}; a file has an object a line")
    return values


def _parquet_objects(path: str) -> Iterator[tuple[int, dict]]:
    """Yields (number of the row, from 1; the row)."""
    import pyarrow.lib
    import pyarrow.parquet
    number = 0
    try:
        with pyarrow.parquet.ParquetFile(path) as file:
            check_names_once(path, file.schema_arrow.names)
            for batch in file.iter_batches():
                for row in batch.to_pylist():
                    number += 1
                    yield number, row
    except (pyarrow.lib.ArrowException, OSError) as error:
        raise ValueError(f"{path}: not a readable Parquet file: {str(error).splitlines()[0]}") from None
