"""Rows to answer from a file of any form that training reads (CSV, TSV, JSON lines, Parquet), or from plain lines."""

import dataclasses
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from official_bert.config import Config, merge, parse_override
from official_bert.data.tables import Format, Table, read_table
from official_bert.files import exists, read_lines
from official_bert.tasks.loading import load_task

Columns = Mapping[str, tuple[str, ...]]  # by input of a model; choices are made of a beginning and their endings
TABLES = (".csv", ".parquet")  # always with names of columns


def read_file(path: str, inputs: Sequence[str], config: Config | None, overrides: Sequence[str] = (),
              keep: Sequence[str] = ()) -> list[dict[str, Any]]:
    """Reads the rows of a file: the columns `keep`, then the `inputs` of a model by name.

    The columns, the form and the delimiter are those of the options that the model was trained with, and of `overrides`
    (`options.text_column=review`). Files without names of columns are plain lines: JSON objects, or the inputs between tabs.

    Raises ValueError, naming file and line or column, for what cannot be read.
    """
    if not exists(path):
        raise ValueError(f"--input_file={path}: no such file")
    options, columns = _asked(config, overrides)
    wanted = {name: columns.get(name) or (name,) for name in inputs}
    form, delimiter = options.get("file_format", "auto"), options.get("delimiter", "")
    same = {name: (name,) for name in inputs}
    for chosen in [wanted] + [same] * (wanted != same):
        if chosen == same and not keep and path.endswith((".jsonl", ".json")):
            break  # objects of the inputs may hold more, which is copied
        if _names_columns(path, chosen, form, delimiter):
            table = read_table(path, [*_names(chosen), *keep], form=form, delimiter=delimiter)
            return [_row(table, number, chosen, keep) for number in range(len(table))]
    if path.endswith(TABLES) or form != "auto":
        read_table(path, _names(wanted), form=form, delimiter=delimiter)  # says which column is missing
    if keep:
        raise ValueError(f"--keep_columns={','.join(keep)}: {path} has no names of columns {', '.join(_names(wanted))}")
    return list(read_rows((), path, inputs, read_lines(path)))


def _asked(config: Config | None, overrides: Sequence[str]) -> tuple[Mapping[str, Any], Columns]:
    """The options for reading, and the columns of each input."""
    if config is None:
        return {}, {}
    values: Mapping[str, Any] = {"options": config.options}
    for override in overrides:
        values = merge(values, parse_override(override))
    task = load_task(dataclasses.replace(config, options=values["options"]))
    return dataclasses.asdict(task.options), task.input_columns()


def _names(columns: Columns) -> list[str]:
    return [name for names in columns.values() for name in names]


def _names_columns(path: str, columns: Columns, form: Format, delimiter: str) -> bool:
    """Whether a file names its columns, and these are among them."""
    try:
        return bool(read_table(path, _names(columns), form=form, delimiter=delimiter, most=1))
    except ValueError:
        return False


def _row(table: Table, number: int, columns: Columns, keep: Sequence[str]) -> dict[str, Any]:
    row = {name: table.columns[name][number] for name in keep}
    for name, parts in columns.items():
        cells = [table.columns[part][number] for part in parts]
        endings = cells[-1] if isinstance(cells[-1], list) else cells[1:]
        value = cells[0] if len(cells) == 1 else [f"{cells[0]} {ending}".strip() for ending in endings]
        if not isinstance(value, list if name == "choices" else str):
            raise ValueError(f"{table.place(number)}: column {parts[0]!r}: expected {'choices' if name == 'choices' else 'text'}, "
                             f"got {value!r:.60}")
        row[name] = value
    return row


def read_rows(arguments: Sequence[str], input_file: str, names: Sequence[str], lines: Iterable[str]) -> Iterator[dict[str, Any]]:
    """Yields rows of the inputs `names` from arguments, else from a file's lines: JSON objects, or columns between tabs.

    Raises ValueError naming the line for any other line.
    """
    place = "argument" if arguments else input_file
    for number, line in enumerate(arguments or lines, 1):
        if not arguments and not line.strip():
            continue
        text = line.rstrip("\r\n")
        if text.startswith("{"):
            try:
                yield json.loads(text)
                continue
            except json.JSONDecodeError:
                if input_file.endswith((".jsonl", ".json")):
                    raise ValueError(f"{place}:{number}: not valid JSON") from None
        columns = text.split("\t") if len(names) > 1 else [text]
        if len(columns) != len(names):
            raise ValueError(f"{place}:{number}: expected {' TAB '.join(names)}, got {len(columns)} columns")
        yield dict(zip(names, columns))
