"""Reads the containers of text: plain and compressed files, standard input, tables (Parquet, Arrow and folders of
`datasets`).

Unreadable text (bytes that are not UTF-8, a row without text) is an error, or is skipped or replaced and counted.
"""

import dataclasses
import functools
import io
import os
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO, Literal, get_args

from official_bert.data.pretraining.yield_report import YieldReport
from official_bert.data.raw_text.packed_files import DAMAGE, OPENERS, STANDARD_INPUT, Opened, bounded_lines, open_bytes
from official_bert.data.raw_text.packed_files import kind_of as kind_of
from official_bert.data.raw_text.packed_files import read_head as read_head
from official_bert.storage.files import folder_of, size_of
from official_bert.storage.files import open_bytes as open_unpacked

OnBadText = Literal["error", "skip", "replace"]
ON_BAD_TEXT = get_args(OnBadText)
ROWS_AT_ONCE = 1000
# beside the .arrow files of a `datasets` folder
_DATASET_FILES = ("state.json", "dataset_info.json", "dataset_dict.json")


@dataclasses.dataclass
class BadText(Opened):
    """The policy for text that cannot be read, the report that counts it, and how much of the open file was read."""

    policy: OnBadText = "error"
    report: YieldReport = dataclasses.field(default_factory=YieldReport)
    allow_large_lines: bool = False  # of packed files
    encoding: str = ""  # of text; "": UTF-8

    def skip(self, place: str, problem: str, **amounts: int) -> None:
        """Counts text that is left out. Raises ValueError with place and problem if the policy is "error"."""
        self._refuse(place, problem)
        self.report.drop("text that cannot be read", f"{place}: {problem}", expected=False, **amounts)

    def replace(self, place: str, problem: str) -> bool:
        """Returns True, and counts the place, if the policy is to replace; raises ValueError if it is "error"."""
        self._refuse(place, problem)
        if self.policy == "replace":
            self.report.note("bad text replaced", f"{place}: {problem}", lines=1)
        return self.policy == "replace"

    def _refuse(self, place: str, problem: str) -> None:
        if self.policy == "error":
            raise ValueError(f"{place}: {problem}; --on_bad_text=skip or replace continues")


def without_dataset_files(paths: list[str]) -> list[str]:
    """Returns `paths` without the JSON files that `datasets` puts beside its Arrow files."""
    folders = [folder_of(path) for path in paths if path.endswith(".arrow")]
    return [
        path
        for path in paths
        if os.path.basename(path) not in _DATASET_FILES
        or not any(folder.startswith(folder_of(path)) for folder in folders)
    ]


def read_text_lines(path: str, bad: BadText) -> Iterator[str]:
    """Yields the lines of a text in `bad.encoding`, without byte-order mark and line ends; "" for a skipped line.

    Raises ValueError naming file, line and byte for text that is not in the encoding or a damaged file, unless `bad`
    says otherwise, and naming file, line and bound for a compressed file with endless lines or an implausible
    compression ratio.
    """
    number, offset, encoding = 0, 0, bad.encoding or "utf-8"
    with open_bytes(path, bad) as file:
        is_bounded = not bad.allow_large_lines and (path == STANDARD_INPUT or kind_of(path) in OPENERS)
        remedy = "--allow_large_lines reads it, if memory suffices" if is_bounded else ""
        readline: Callable[[int], bytes] = file.readline
        if "\n".encode(encoding) != b"\n":
            readline, encoding = _transcoded(file, encoding, bad.policy), "utf-8"
        try:
            for number, line in enumerate(bounded_lines(readline, path, bad, remedy), 1):
                data = line.removeprefix(b"\xef\xbb\xbf") if number == 1 else line
                yield _decoded(data, bad, f"{path}:{number}", offset + len(line) - len(data), encoding).rstrip("\r\n")
                offset += len(line)
        except UnicodeError as error:  # of `_transcoded`
            raise ValueError(f"{path}:{number + 1}: not valid {bad.encoding} near this line: {error}") from None
        except DAMAGE as error:
            bad.skip(f"{path}:{number + 1}", f"the compressed file is damaged or cut off here ({error})", files=1)


def _transcoded(file: BinaryIO, encoding: str, policy: OnBadText) -> Callable[[int], bytes]:
    """Returns a function that reads the next line, of at most so many characters, of a file in an encoding whose line
    feeds are not one byte, such as UTF-16, in UTF-8.

    Nobody can say where the line of a bad byte ends: unless it is an error, it becomes U+FFFD.
    """
    lines = io.TextIOWrapper(
        io.BufferedReader(file),  # type: ignore[type-var]
        encoding,
        newline="\n",
        errors="strict" if policy == "error" else "replace",
    )
    return lambda size: lines.readline(size).encode("utf-8", "surrogatepass")


def _decoded(data: bytes, bad: BadText, place: str, offset: int, encoding: str = "utf-8") -> str:
    """Decodes bytes; bad ones give U+FFFD or make the whole text "", as `bad` says."""
    try:
        return data.decode(encoding)
    except UnicodeDecodeError as error:
        name = "UTF-8" if encoding == "utf-8" else encoding
        problem = f"not valid {name} at byte {offset + error.start} of the file (0x{data[error.start]:02x})"
        if bad.replace(place, problem):
            return data.decode(encoding, errors="replace")
        bad.skip(place, problem, characters=len(data.decode(encoding, errors="ignore").replace(" ", "").strip()))
        return ""


def read_text_column(path: str, text_key: str, bad: BadText) -> Iterator[str]:
    """Yields the texts in the column `text_key` of a Parquet or Arrow file; "" for a skipped row.

    Raises ValueError naming file and row for a row without text, and the columns if there is none of that name.
    """
    import pyarrow

    row = 0
    try:
        for column in _columns(path, text_key, bad):
            for data in column.cast(pyarrow.large_binary()).to_pylist():
                row += 1
                if data is None:
                    bad.skip(f"{path}:{row}", f"{text_key!r} is null", documents=1)
                yield "" if data is None else _decoded(data, bad, f"{path}:{row}", 0)
    except pyarrow.ArrowInvalid as error:
        bad.skip(f"{path}:{row + 1}", f"damaged or not a table of texts ({str(error).splitlines()[0]})", files=1)
    bad.bytes_read = int


def _columns(path: str, text_key: str, bad: BadText) -> Iterator[Any]:
    """Gives the text column of a table in parts of about a thousand rows; `bad.bytes_read` is their share of it."""
    import pyarrow
    import pyarrow.parquet

    if kind_of(path) == "parquet":
        with open_unpacked(path) as file, pyarrow.parquet.ParquetFile(file) as table:
            _check_column(path, table.schema_arrow, text_key)
            size, rows = size_of(path), table.metadata.num_rows
            for number, batch in enumerate(table.iter_batches(ROWS_AT_ONCE, columns=[text_key]), 1):
                bad.bytes_read = functools.partial(min, size, size * ROWS_AT_ONCE * number // rows)
                yield batch.column(0)
        return
    with open_unpacked(path) as source, pyarrow.PythonFile(source) as file:
        try:
            reader: Any = pyarrow.ipc.open_file(file)
            batches: Iterator[Any] = (reader.get_batch(index) for index in range(reader.num_record_batches))
        except pyarrow.ArrowInvalid:  # `datasets` writes streams
            file.seek(0)
            reader = batches = pyarrow.ipc.open_stream(file)
        _check_column(path, reader.schema, text_key)
        for batch in batches:
            bad.bytes_read = functools.partial(int, file.tell())
            yield batch.column(batch.schema.get_field_index(text_key))


def _check_column(path: str, schema: Any, text_key: str) -> None:
    """Raises ValueError if a table has no text column `text_key`."""
    import pyarrow

    types = {field.name: field.type for field in schema}
    kind = types.get(text_key)
    if kind is not None and pyarrow.types.is_dictionary(kind):
        kind = kind.value_type
    if kind is None or not (pyarrow.types.is_string(kind) or pyarrow.types.is_large_string(kind)):
        raise ValueError(
            f"{path}: expected a column {text_key!r} of strings (--text_key), got "
            + ", ".join(f"{name}: {kind}" for name, kind in types.items())
        )
