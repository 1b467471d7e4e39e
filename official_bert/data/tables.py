"""Tables of text with named columns: TSV, CSV, JSON, with or without a BOM, and Parquet, checked as they are read.

JSON is told apart by its content, because JSON lines often have the name of a document: an object a line, a list of objects, or an
object with such a list under `data`.
"""

import csv
import dataclasses
import itertools
import types
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal

from official_bert.data.cache import file_digest, text_digest
from official_bert.data.table_files import (
    FASTTEXT,
    check_names_once,
    column_numbers,
    fasttext_rows,
    kind_by_content,
    neighbours,
    parquet_objects,
    sheet_cells,
    suffix_of,
    texts_and_labels,
)
from official_bert.data.table_files import (
    shown as shown,
)
from official_bert.data.tabular.companions import files_read, labels_beside
from official_bert.data.tabular.encodings import text_lines
from official_bert.data.tabular.json_text import JSON_ROWS, begun, checked_object, parsed, parsed_whole
from official_bert.fields import Constraint
from official_bert.files import is_file, is_folder

Format = Literal["auto", "tsv", "csv", "jsonl", "parquet", "xlsx", "fasttext", "two_files"]
SUFFIXES: dict[str, Format] = {".tsv": "tsv", ".txt": "tsv", ".csv": "csv", ".jsonl": "jsonl", ".json": "jsonl",
                              ".parquet": "parquet"}
OBJECTS = ("jsonl", "parquet")  # forms whose rows have keys
HEADLESS = " (a file without names of columns: options.header=false, its columns are c1, c2, ...; tools/inspect_data.py shows it)"
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
    """The SHA-256 of what a source holds: of rows, of a file, or of all files that are read with it (`files_read`)."""
    if isinstance(source, Rows):
        return text_digest(map(repr, source.values))
    digests = list(map(file_digest, files_read(source)))
    return digests[0] if len(digests) == 1 else text_digest(digests)


@dataclasses.dataclass(frozen=True)
class Table:
    """The wanted columns of a file, and the line of each row."""

    path: Source
    columns: dict[str, list[Any]]  # strings; in JSON lines any value
    lines: list[int]  # 1-based line at which each row begins; of rows in memory their number from 0
    broken: list[str]  # one sentence for each row that was left out
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)  # that name the columns, for messages

    def __len__(self) -> int:
        return len(self.lines)

    def place(self, row: int) -> str:
        """`file:line` of a row, or `name[row N]`."""
        return place(self.path, self.lines[row])

    def without_column(self, name: str) -> str:
        """The end of a message about a missing column: the option that names another."""
        keys = [key for key, value in self.options.items() if key.endswith(("_column", "_columns")) and name in
                (value if isinstance(value, (list, tuple)) else (value,))]
        return f"; {keys[0]}= names another (--set options.{keys[0]}=...)" if keys else ""

    def rows(self, keep: Iterable[int]) -> "Table":
        """A table of only some of the rows."""
        numbers = list(keep)
        return Table(self.path, {name: [values[row] for row in numbers] for name, values in self.columns.items()},
                     [self.lines[row] for row in numbers], self.broken)


@dataclasses.dataclass(frozen=True, kw_only=True)
class TableOptions:
    """How the files of a task are read."""

    file_format: Format = "auto"
    """Format of files whose names do not say it; auto: content and suffix decide."""
    delimiter: Annotated[str, Constraint(
        "text other than a line end", lambda delimiter: not {*spelled(delimiter)} & {*"\r\n"})] = ""
    """Text between columns; empty: a tab in TSV, a comma in CSV."""
    header: bool = True
    """The first line names the columns; without it they are c1, c2, ..."""
    encoding: str = ""
    """Encoding of text; empty: UTF-8."""

    def read_table(self, path: Source, columns: Sequence[str], optional: Sequence[str] = ()) -> "Table":
        """Reads columns of a file as the function `read_table` does."""
        return read_table(path, columns, optional, form=self.file_format, delimiter=self.delimiter, header=self.header,
                          encoding=self.encoding, options=vars(self))


def read_table(path: Source, columns: Sequence[str], optional: Sequence[str] = (), names: Sequence[str] = (), form: Format = "auto",
               delimiter: str = "", skip_broken: bool = False, header: bool = True, encoding: str = "",
               options: Mapping[str, Any] = types.MappingProxyType({})) -> Table:
    """Reads the `columns`, and those of `optional` that are there, of a file whose first line names its columns.

    `path` may be rows in memory, whose keys are the columns; `labels.label` is a key within another. `names` are the columns of a file
    without such a line; without `header` they are c1, c2, ... Content decides what is JSON, Parquet, a workbook (.xlsx), packed, or
    fastText's; texts in NAME_text.txt have their labels in NAME_labels.txt (TweetEval): these two have the first and the last of the
    `columns`. Quotes mean nothing in TSV (GLUE, 2018 `_read_tsv`), unlike in CSV. A blank line is a row with an empty text if
    there is a single column, except at the end of the file; else it is no row. A row with another number of columns is an error; with
    `skip_broken` it is left out and listed in `broken`. Raises ValueError, naming file and line, for a file that is missing, empty or
    in another encoding, a missing or doubled column, a broken row, broken JSON, a delimiter that cannot be one. Of a missing column it
    names that one of the `options`, by name, which names it.
    """
    table = Table(path, {name: [] for name in columns}, [], [], options)
    if isinstance(path, Rows):
        _fill_from_objects(table, enumerate(path.values), optional)
    elif not is_file(path):
        raise ValueError(f"{path}: " + ("expected a file, got a folder" if is_folder(path) else f"no such file{neighbours(path)}"))
    elif (kind := format_of(path, columns, delimiter, encoding, bool(names) or not header) if form == "auto" else form) in OBJECTS:
        source, objects = objects_in(path, kind, encoding)
        table = dataclasses.replace(table, path=source)
        _fill_from_objects(table, objects, optional)
    else:
        rows = _cells(path, kind, delimiter, names, header, encoding, columns)
        _fill_from_cells(table, rows, optional, skip_broken, header and not names and kind in ("tsv", "csv"))
    if not table.lines:
        raise ValueError(f"{path}: no row in {'it' if isinstance(path, Rows) else 'this file'}")
    return table


def read_table_parts(path: str, columns: Sequence[str], at_once: int | None, form: Format = "auto", delimiter: str = "",
                     header: bool = True, encoding: str = "", options: Mapping[str, Any] = types.MappingProxyType({})) -> Iterator[Table]:
    """Yields the rows of a file as tables of at most `at_once` rows (None: one table), as `read_table` reads them; none of a file
    without rows.

    Only one part is in memory at a time, unless the file is one JSON document.
    """
    kind = format_of(path, columns, delimiter, encoding, not header) if form == "auto" else form
    source: Source = path
    if kind in OBJECTS:
        source, objects = objects_in(path, kind, encoding)
    else:
        cells = _cells(path, kind, delimiter, (), header, encoding, columns)
        head = list(itertools.islice(cells, 1))
    while True:
        table = Table(source, {name: [] for name in columns}, [], [], options)
        if kind in OBJECTS:
            _fill_from_objects(table, itertools.islice(objects, at_once), ())
        else:
            _fill_from_cells(table, itertools.chain(head, itertools.islice(cells, at_once)), (), False, header and kind in ("tsv", "csv"))
        if not table.lines:
            return
        yield table


def column_names(path: str, form: Format, delimiter: str = "", header: bool = True, encoding: str = "") -> list[str]:
    """Returns the cells of a file's first line, or the keys of its first object; none of an empty file."""
    if form in OBJECTS:
        return list(next(objects_in(path, form, encoding)[1], (0, {}))[1])
    return list(next(_cells(path, form, delimiter, (), header, encoding), (0, ()))[1])


def format_of(path: str, columns: Sequence[str], delimiter: str = "", encoding: str = "", headless: bool = False) -> Format:
    """Returns the form of a file that should have these `columns`: by its content or, between TSV and CSV, its name.

    A table whose first line names the columns is one, whatever else it looks like. Raises ValueError for an unknown name.
    """
    suffix = suffix_of(path)
    suffix_format, content = SUFFIXES.get(suffix), kind_by_content(path, encoding)
    if suffix_format in OBJECTS or content == "parquet" or (content == "xlsx" and (suffix_format or suffix == ".xlsx")):
        return suffix_format if suffix_format in OBJECTS else content  # type: ignore[return-value]
    if suffix_format is None:
        if content == "json":
            return "jsonl"
        raise ValueError(f"{path}: expected a name that ends with one of {', '.join(SUFFIXES)}, .xlsx, or the format to be given")
    if headless and content != "json":
        return suffix_format
    line = next(text_lines(path, encoding), "").rstrip("\r\n")
    if {*columns} <= {*map(str.strip, line.replace('"', "").split(spelled(delimiter) or ("," if suffix_format == "csv" else "\t")))}:
        return suffix_format
    if content == "json" and _is_json_start(line):
        return "jsonl"
    if suffix == ".txt" and labels_beside(path):
        return "two_files"
    return "fasttext" if line.startswith(FASTTEXT) else suffix_format


def _is_json_start(line: str) -> bool:
    """Whether a first line is a JSON value, or the beginning of one."""
    try:
        begun(line, "")
    except ValueError:
        return False
    return True


def form_of_objects(path: str, encoding: str = "") -> Format | None:
    """Returns the form of a file whose rows have keys, by its name or else its content; None for another file."""
    if (known := SUFFIXES.get(suffix_of(path))) in OBJECTS:
        return known
    content = kind_by_content(path, encoding) if is_file(path) else ""
    if content == "json":
        try:
            first = next(json_values(path, encoding)[1], (0, None))[1]
        except ValueError:
            return None
        return "jsonl" if first and isinstance(first, (dict, list)) else None
    return "parquet" if content == "parquet" else None


def rows_of(source: Source, encoding: str = "", always: bool = False) -> Source:
    """Returns the rows of a file of JSON or of Parquet, as `form_of_objects` tells, or `always` as JSON; anything else unchanged.

    Raises ValueError, naming file and line, for a file that is missing, broken or empty.
    """
    if isinstance(source, Rows) or not (form := form_of_objects(source, encoding) or ("jsonl" if always else None)):
        return source
    data, objects = objects_in(source, form, encoding)
    numbered = list(objects)
    if not numbered:
        raise ValueError(f"{source}: no row in this file")
    return Rows(source, [row for _, row in numbered], () if isinstance(data, Rows) else [line for line, _ in numbered])


def _fill_from_cells(table: Table, rows: Iterator[tuple[int, Sequence[str]]], optional: Sequence[str], skip_broken: bool,
                     may_be_headless: bool = False) -> None:
    """Fills the table from rows, the first of which has the names of the columns."""
    header = list(next(rows, (0, ()))[1])
    check_names_once(table.path, [name for name in header if name in table.columns or name in optional])
    for name in table.columns:
        if name not in header:
            hint = _alike(name, header) or (HEADLESS if may_be_headless and header else "")
            raise ValueError(f"{table.path}: expected a column {name!r}, found {shown(header)}{hint}{table.without_column(name)}")
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
            table.columns.update({name: [] for name in optional if has_key(values, name)})
        for name, column in table.columns.items():
            if not has_key(values, name):
                raise ValueError(f"{place(table.path, line)}: expected a key {name!r}, found {shown(list(values))}"
                                 f"{table.without_column(name)}")
            column.append(_at_key(values, name))
        table.lines.append(line)


def _alike(name: str, header: Sequence[str]) -> str:
    """A hint at a column whose name differs by case or spaces, or at the separator of a line that was not divided; "" for none."""
    if near := next((other for other in header if str(other).strip().casefold() == name.strip().casefold()), ""):
        return f" ({near!r} differs by case or spaces only)"
    for written, mark in (("','", ","), ("';'", ";"), (r"'\t'", "\t"), ("'|'", "|")):
        if len(header) == 1 and name in map(str.strip, header[0].split(mark)):
            return f" (options.delimiter={written} divides it)"
    return ""


def has_key(values: Any, name: str) -> bool:
    """Whether an object has a key, or one within others: `labels.label`."""
    if not isinstance(values, Mapping) or name in values:
        return isinstance(values, Mapping)
    first, dot, rest = name.partition(".")
    return bool(dot) and first in values and has_key(values[first], rest)


def _at_key(values: Mapping[str, Any], name: str) -> Any:
    if name in values:
        return values[name]
    first, _, rest = name.partition(".")
    return _at_key(values[first], rest)


def spelled(separator: str) -> str:
    r"""Returns a separator, in which `\t` may stand for a tab."""
    return separator.replace("\\t", "\t")


def checked_delimiter(delimiter: str, kind: Format = "tsv") -> str:
    r"""Returns a delimiter, in which `\t` may stand for a tab. Raises ValueError for one that cannot divide columns of a format."""
    delimiter = spelled(delimiter)
    if any(char in "\r\n" for char in delimiter) or (kind == "csv" and (len(delimiter) > 1 or delimiter == '"')):
        raise ValueError(f"options.delimiter: expected {'one character' if kind == 'csv' else 'text'} other than a line end"
                         f"{' or quotation mark' if kind == 'csv' else ''}, got {delimiter!r}")
    return delimiter


def _cells(path: str, kind: Format, delimiter: str, names: Sequence[str], header: bool = True, encoding: str = "",
           columns: Sequence[str] = ()) -> Iterator[tuple[int, Sequence[str]]]:
    """Yields (line, cells) of each row, the names of the columns first."""
    rows = _lines(path, kind, checked_delimiter(delimiter, kind), encoding)
    if kind in ("two_files", "fasttext"):
        names = [columns[0], columns[-1]] if len(columns) > 1 else [*columns, "label"]
    elif not header and not names:
        first = next(rows, (1, []))
        names, rows = column_numbers(len(first[1])), itertools.chain([first], rows)
    width = len(names)
    blank: list[int] = []
    if names:
        yield 0, names
    for line, cells in rows:
        if not cells:
            blank.append(line)
            continue
        if width == 1:  # the index of an answer is that of its row
            yield from ((number, [""]) for number in blank)
        blank, width = [], width or len(cells)
        yield line, cells


def _lines(path: str, kind: Format, delimiter: str, encoding: str = "") -> Iterator[tuple[int, Sequence[str]]]:
    """Yields (line, cells) of each row; a blank line has no cells."""
    if kind in ("xlsx", "two_files", "fasttext"):
        yield from (sheet_cells(path) if kind == "xlsx" else texts_and_labels(path, labels_beside(path), encoding) if kind == "two_files"
                    else fasttext_rows(enumerate(text_lines(path, encoding), 1), path))
        return
    if kind == "tsv":
        for number, line in enumerate(text_lines(path, encoding), 1):
            text = line.rstrip("\r\n")
            yield number, text.split(delimiter or "\t") if text else []
        return
    csv.field_size_limit(LARGEST_CELL)
    reader = csv.reader(text_lines(path, encoding), delimiter=delimiter or ",", strict=True)
    begins = 1
    try:
        for cells in reader:
            yield begins, cells
            begins = reader.line_num + 1
    except csv.Error as error:
        told = "a carriage return alone ends no line; expected line feeds" if "new-line character" in str(error) else error
        raise ValueError(f"{path}:{begins}: not valid CSV: {told}") from None


def objects_in(path: str, form: Format, encoding: str = "") -> tuple[Source, Iterator[tuple[int, dict]]]:
    """Returns (line, object) of each row of a file, and how messages name the file: `Rows` for a list, whose numbers count from 0."""
    if form == "parquet":
        return path, parquet_objects(path)
    source, values = json_values(path, encoding)
    return source, ((line, checked_object(value, place(source, line), JSON_ROWS)) for line, value in values)


def json_values(path: str, encoding: str = "") -> tuple[Source, Iterator[tuple[int, Any]]]:
    """Returns (line, value) of each row of a JSON file, not yet checked; JSON lines are parsed one at a time."""
    lines = enumerate(text_lines(path, encoding), 1)
    number, first = next(((number, line) for number, line in lines if line.strip()), (1, ""))
    if not first:
        return path, iter(())
    value, goes_on = begun(first, f"{path}:{number}")
    if goes_on:
        return _document(path, parsed_whole(path, number, first, "".join(line for _, line in lines)), number)
    more = ((line, text) for line, text in lines if text.strip())
    if (second := next(more, None)) is None:
        return _document(path, value, number)
    later = ((line, parsed(text, f"{path}:{line}")) for line, text in itertools.chain([second], more))
    return path, itertools.chain([(number, value)], later)


def _document(path: str, value: Any, line: int) -> tuple[Source, Iterator[tuple[int, Any]]]:
    """Returns the rows of the only value in a file: those of a list, or of the list under `data`, or else the value."""
    listed = value.get("data") if isinstance(value, dict) else value
    if isinstance(listed, list):
        return Rows(path, listed), iter(enumerate(listed))
    return path, iter([(line, value)])
