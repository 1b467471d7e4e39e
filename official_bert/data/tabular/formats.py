"""Reads the formats of tables (TSV, CSV, workbooks, fastText, texts beside labels, Parquet), and detects them from
first bytes.

Each reader yields (line, cells) of a row; only the rows of Parquet have keys.
"""

import codecs
import contextlib
import csv
import functools
import io
import itertools
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from official_bert.data.tabular.companions import labels_beside
from official_bert.data.tabular.encodings import BINARY, START, head_of, text_lines
from official_bert.data.tabular.stored_names import class_names
from official_bert.limits import (
    MOST_COLUMNS,
    MOST_EMPTY_ROWS,
    MOST_PACKED,
    MOST_SHEET_CELLS,
    MOST_SHEET_ROWS,
    MOST_TAGS,
    MOST_TAGS_PACKED,
    MOST_UNPACKED,
    require_at_most,
)
from official_bert.storage.archives import opened_zip
from official_bert.storage.files import folder_of, is_folder, list_names, open_bytes

FASTTEXT = "__label__"
FIRST_LINES = 500
FOR_EXCEL = re.compile('"?sep=."?')
LARGEST_CELL = 2**31 - 1  # characters; the csv module stops at 131,072 by itself
JSON_STARTS = (b'{"', b"[{", b"[[", b"[\n", b"[\r", b"{\n", b"{ ", b"[ ", b"{\r")


def kind_by_content(path: str, encoding: str = "") -> str:
    """Returns `parquet` or `xlsx` for files that begin as such, `json` for text that begins as JSON does, else ""."""
    start = head_of(path)
    for magic, kind in BINARY.items():
        if start.startswith(magic):
            return kind
    if encoding:
        try:
            start = start.decode(encoding, "ignore").removeprefix("\ufeff").encode("utf-8", "ignore")
        except LookupError:
            return ""  # the error comes when the file is read
    text = start.removeprefix(codecs.BOM_UTF8).lstrip()
    return "json" if text.startswith(JSON_STARTS) else ""


def cells_of(
    path: str, form: str, delimiter: str, encoding: str, sheet: str = ""
) -> Iterator[tuple[int, Sequence[Any]]]:
    """Yields (line, cells) of each row of a table whose rows have no keys; a blank line has no cells.

    Raises ValueError, naming file and line, for what is not in the format, and for a delimiter that cannot be one.
    """
    delimiter = spelled(delimiter)
    if form == "csv" and (len(delimiter) > 1 or delimiter == '"'):
        raise ValueError(f"options.delimiter: expected one character other than a quotation mark, got {delimiter!r}")
    if form == "xlsx":
        return sheet_cells(path, sheet)
    if form == "two_files":
        labels = labels_beside(path)
        both = lines_together(without_end(path, encoding), without_end(labels, encoding), path, labels)
        return ((number, list(row)) for number, row in enumerate(both, 1))
    lines = table_lines(path, encoding)
    if form == "fasttext":
        return fasttext_rows(enumerate(lines, 1), path)
    if form == "csv":
        return csv_rows(lines, delimiter or ",", path)
    texts = (line.rstrip("\r\n") for line in lines)
    return ((number, text.split(delimiter or "\t") if text else []) for number, text in enumerate(texts, 1))


def table_lines(path: str, encoding: str) -> Iterator[str]:
    """Yields the lines of a text table; Excel's line about the delimiter, `sep=;`, becomes blank."""
    lines = text_lines(path, encoding)
    for first in lines:
        yield "\n" if FOR_EXCEL.fullmatch(first.strip()) else first
        yield from lines


def first_lines(path: str, encoding: str) -> list[str]:
    """Returns the first lines of a text table, about as much as `head_of` gives."""
    lines, characters = [], 0
    for line in table_lines(path, encoding):
        lines.append(line)
        if (characters := characters + len(line)) > START:
            break
    return lines


def escapes_quotes(lines: Sequence[str], delimiter: str) -> bool:
    """Returns whether the first lines are valid CSV only if backslashes escape quotation marks."""
    return (
        any('\\"' in line for line in lines)
        and not first_cells(lines, delimiter)[1]
        and first_cells([line.replace('\\"', '""') for line in lines], delimiter)[1]
    )


def first_cells(lines: Sequence[str], delimiter: str) -> tuple[list[list[str]], bool]:
    """Returns the rows of the first lines of CSV, up to a broken one, and whether there is none."""
    csv.field_size_limit(LARGEST_CELL)
    rows: list[list[str]] = []
    try:
        rows.extend(csv.reader(lines, delimiter=delimiter, strict=True))
    except csv.Error as error:
        return rows, "unexpected end" in str(error)  # the last line may go on
    return rows, True


def csv_rows(lines: Iterator[str], delimiter: str, where: str) -> Iterator[tuple[int, list[str]]]:
    """Yields (first line, cells) of each row of CSV. Raises ValueError, naming the line, for broken quotation marks."""
    csv.field_size_limit(LARGEST_CELL)
    first = list(itertools.islice(lines, FIRST_LINES))
    if escapes_quotes(first, delimiter):
        lines = (line.replace('\\"', '""') for line in itertools.chain(first, lines))
    else:
        lines = itertools.chain(first, lines)
    reader = csv.reader(lines, delimiter=delimiter, strict=True)
    begins = 1
    try:
        for cells in reader:
            yield begins, cells
            begins = reader.line_num + 1
    except csv.Error as error:
        reason: object = error
        if "new-line character" in str(error):
            reason = "a carriage return alone does not end a line; expected line feeds"
        raise ValueError(f"{where}:{begins}: not valid CSV: {reason}") from None


def spelled(separator: str) -> str:
    r"""Returns a separator with `\t` replaced by a tab."""
    return separator.replace("\\t", "\t")


def sheet_cells(path: str, sheet: str = "") -> Iterator[tuple[int, list[str]]]:
    """Yields (row, cells) of a sheet of a workbook (.xlsx), by default the first one, cells as text; empty rows are
    none.

    Raises ValueError for a damaged workbook, an implausible compression ratio, an unknown sheet and formulas without
    cached values, and ModuleNotFoundError without openpyxl.
    """
    with _workbook(path) as (load, size):
        sheets = {one.title: one for one in load(data_only=True).worksheets}
        name = sheet or next(iter(sheets))
        if name not in sheets:
            raise ValueError(f"options.sheet: expected one of {shown([*sheets])}, got {name!r}")
        rows = dict(_filled_rows(_raw_rows(sheets[name]), size))
        width = max(map(len, rows.values()), default=0)
        if any(len(row) < width or "" in row for row in rows.values()):
            _check_formulas(_raw_rows(load(data_only=False)[name]), rows)
    yield from ((number, row + [""] * (width - len(row))) for number, row in rows.items())


def sheet_names(path: str) -> list[str]:
    """Returns the names of a workbook's sheets that have tables, hidden ones included."""
    with _workbook(path) as (load, _):
        return [sheet.title for sheet in load(data_only=True).worksheets]


@contextlib.contextmanager
def _workbook(path: str) -> Iterator[tuple[Callable[..., Any], int]]:
    """Gives the function that loads a workbook and its size; raises ValueError for one that cannot be read."""
    import openpyxl

    with open_bytes(path) as file:
        content = io.BytesIO(file.read())
    try:
        with opened_zip(content, path) as archive:
            size = len(content.getbuffer())
            tags = sum(archive.read(entry).count(b"<") for entry in archive.infolist())
            if tags > max(MOST_TAGS, MOST_TAGS_PACKED * size):
                raise ValueError(
                    f"expected at most {MOST_TAGS:,} tags, or {MOST_TAGS_PACKED} for each of its {size:,} bytes, "
                    f"got {tags:,}: are rows or cells empty?"
                )
            yield functools.partial(openpyxl.load_workbook, content, read_only=True), size
    except Exception as error:  # its parts are XML, for whose mistakes openpyxl has no exception of its own
        raise ValueError(
            f"{path}: not a readable workbook: {str(error).removeprefix(f'{path}: ') or type(error).__name__}"
        ) from None


def _raw_rows(sheet: Any) -> Iterator[Sequence[Mapping[str, Any]]]:
    """Yields the cells of each row that the file has, not filled up to what it claims or to a cell far away."""
    sheet.reset_dimensions()
    sheet._get_row = lambda row, *_: row
    return sheet.iter_rows()


def _check_formulas(rows: Iterable[Sequence[Mapping[str, Any]]], values: Mapping[int, Sequence[str]]) -> None:
    """Raises ValueError for a formula whose value is not stored: programs that compute nothing write such."""
    from openpyxl.utils import get_column_letter

    for number, row in enumerate(rows, 1):
        known = values.get(number, ())
        for cell in row:
            column = cell["column"]
            if cell["data_type"] == "f" and not (column <= len(known) and known[column - 1]):
                raise ValueError(
                    f"cell {get_column_letter(column)}{number}: a formula without its value; open and save the "
                    "workbook in a program that computes it"
                )


def _filled_rows(rows: Iterable[Sequence[Mapping[str, Any]]], size: int) -> Iterator[tuple[int, list[str]]]:
    """Yields (number, cells up to the last filled one) of the rows of a sheet that are not empty.

    Raises ValueError beyond the bounds of `limits`, for a file of `size` bytes. All rows are as wide as the widest.
    """
    most_cells, most_text = (max(most, MOST_PACKED * size) for most in (MOST_SHEET_CELLS, MOST_UNPACKED))
    count = width = text = 0
    for number, row in enumerate(rows, 1):
        if not count and number > MOST_EMPTY_ROWS:
            raise ValueError(f"expected a filled cell in the first {MOST_EMPTY_ROWS:,} rows, got none")
        if number > MOST_SHEET_ROWS:
            raise ValueError(f"expected at most {MOST_SHEET_ROWS:,} rows, got a cell beyond them")
        filled = {cell["column"]: text_of for cell in row if (text_of := _cell_text(cell["value"]))}
        if filled:
            require_at_most(MOST_COLUMNS, max(filled), "columns", f"row {number}")
            cells = [filled.get(column, "") for column in range(1, max(filled) + 1)]
            count, width, text = count + 1, max(width, len(cells)), text + sum(map(len, cells))
            if text > most_text:  # many cells may share one
                raise ValueError(f"row {number}: expected cells of at most {most_text:,} characters in all, got more")
            if count * width > most_cells:
                raise ValueError(
                    f"row {number}: expected at most {most_cells:,} cells, got {count:,} rows of {width:,} columns"
                )
            yield number, cells


def _cell_text(value: Any) -> str:
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return "" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def lines_together(first: Iterable[Any], second: Iterable[Any], path: str, other: str) -> Iterator[tuple[Any, Any]]:
    """Yields the corresponding lines of two files. Raises ValueError if they have different numbers of lines."""
    for number, (one, two) in enumerate(itertools.zip_longest(first, second)):
        if one is None or two is None:
            short = path if one is None else other
            raise ValueError(f"{path}, {other}: expected as many lines, got {number} in {short} and more in the other")
        yield one, two


def without_end(path: str, encoding: str) -> Iterator[str]:
    """Yields the lines of a file without line ends, and without blank lines at its end."""
    blank = 0
    for line in text_lines(path, encoding):
        if text := line.rstrip("\r\n"):
            yield from [""] * blank
            yield text
            blank = 0
        else:
            blank += 1


def fasttext_rows(lines: Iterator[tuple[int, str]], where: str) -> Iterator[tuple[int, list[Any]]]:
    """Yields (line, [text, label]) of lines that begin with `__label__NAME`; several labels are a list, none is None.

    Raises ValueError, naming the line, for a label without a name.
    """
    for number, line in lines:
        words = line.split()
        labels = [
            word.removeprefix(FASTTEXT) for word in itertools.takewhile(lambda word: word.startswith(FASTTEXT), words)
        ]
        if not words:
            continue
        if "" in labels:
            raise ValueError(f"{where}:{number}: expected a name behind {FASTTEXT}, got {line.strip()[:60]!r}")
        yield (
            number,
            [
                line.strip().split(None, len(labels))[-1] if len(words) > len(labels) else "",
                labels if len(labels) > 1 else labels[0] if labels else None,
            ],
        )


def column_numbers(width: int) -> Sequence[str]:
    """Returns the names of the columns of a file without a header: c1, c2, ..."""
    return [f"c{number}" for number in range(1, width + 1)]


def check_names_once(source: object, names: Sequence[str]) -> None:
    """Raises ValueError for two columns of the same name: one of them would silently win."""
    for name, count in Counter(names).items():
        if count > 1:
            raise ValueError(f"{source}: column {name!r} occurs {count} times")


def parquet_objects(path: str) -> Iterator[tuple[int, dict]]:
    """Yields (row number from 1, row) of a Parquet file."""
    import pyarrow.lib
    import pyarrow.parquet

    number = 0
    try:
        with pyarrow.parquet.ParquetFile(path) as file:
            require_at_most(MOST_COLUMNS, len(file.schema_arrow.names), "columns", path)
            check_names_once(path, file.schema_arrow.names)
            named = class_names(file.schema_arrow.metadata)
            for batch in file.iter_batches():
                for row in batch.to_pylist():
                    number += 1
                    yield number, named(row)
    except (pyarrow.lib.ArrowException, OSError) as error:
        raise ValueError(f"{path}: not a readable Parquet file: {str(error).splitlines()[0]}") from None


def neighbours(path: str) -> str:
    """Returns the names of files beside a missing file, for its error message."""
    folder = folder_of(path) or "."
    if not is_folder(folder):
        return f" (there is no folder {folder} either)"
    return f" (the folder holds {shown(list_names(folder))})"


def shown(names: Sequence[str]) -> str:
    """Returns the first dozen names for a message, long ones truncated."""
    short = [repr(name[:40]) for name in map(str, names[:12])]
    return ", ".join(short) + (f" and {len(names) - 12} more" if len(names) > 12 else "") if names else "nothing"
