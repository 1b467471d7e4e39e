"""Rows to answer from a file of any form that training reads (CSV, TSV, JSON lines, Parquet), or from plain lines."""

import contextlib
import dataclasses
import datetime
import math
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from official_bert.config import Config, merge, parse_override
from official_bert.data.tables import SUFFIXES, Table, column_names, json_object, read_table, shown
from official_bert.files import exists, read_lines
from official_bert.tasks.loading import load_task

Columns = Mapping[str, tuple[str, ...]]  # by input of a model; choices are made of a beginning and their endings
FORM = ("file_format", "delimiter")  # options of tasks that read tables
LONE_SURROGATE = re.compile("[\ud800-\udfff]")  # JSON may hold one, which is no text in UTF-8


def read_file(path: str, inputs: Sequence[str], config: Config | None, overrides: Sequence[str] = (),
              keep: Sequence[str] = ()) -> list[dict[str, Any]]:
    """Reads the rows of a file: the columns `keep`, then the `inputs` of a model by name.

    The columns, the form and the delimiter are those of the options that the model was trained with, and of `overrides`
    (`options.text_column=review`); columns with the names of the inputs will do too. TSV and .txt files without names of columns may
    be plain lines: JSON objects, or the inputs between tabs.

    Raises ValueError, naming file and line or column, for what cannot be read.
    """
    if not exists(path):
        raise ValueError(f"--input_file={path}: no such file")
    options, columns = _asked(config, overrides)
    wanted = {name: columns.get(name) or (name,) for name in inputs}
    same = {name: (name,) for name in inputs}
    form, delimiter = options.get("file_format", "auto"), options.get("delimiter", "")
    suffix = _suffix(path)
    kind = SUFFIXES.get(suffix) if form == "auto" else form
    found = column_names(path, kind, delimiter) if kind else []
    chosen = next((one for one in (wanted, same) if {*_names(one)} <= {*found}), None)
    objects = form == "auto" and kind == "jsonl" and chosen == same and not keep  # they may hold more, which is copied
    plain = form == "auto" and not chosen and (not kind or (kind == "tsv" and _plain(found, inputs, suffix == ".txt" and not columns)))
    if not (objects or plain):
        table = read_table(path, [*_names(chosen or wanted), *keep], form=form, delimiter=delimiter)
        return [_row(table, number, chosen or wanted, keep) for number in range(len(table))]
    if keep:
        raise ValueError(f"--keep_columns={','.join(keep)}: {path} has no names of columns {', '.join(_names(wanted))}")
    return list(read_rows((), path, inputs, read_lines(path)))


def _asked(config: Config | None, overrides: Sequence[str]) -> tuple[Mapping[str, Any], Columns]:
    """The options for reading, and the columns of each input. Raises ValueError for an override that changes other options only."""
    if config is None:
        if overrides:
            raise ValueError(f"--set {overrides[0]}: expected a model whose configuration is known")
        return {}, {}
    options, columns = _options(config, overrides)
    for place, override in enumerate(overrides):
        try:
            others, without = _options(config, [*overrides[:place], *overrides[place + 1:]])
        except ValueError:
            continue  # the others are wrong without this one
        alike = without == columns and all(others.get(name) == options.get(name) for name in FORM)
        if {*parse_override(override)} != {"options"} or (alike and others != options):
            named = (*_names(columns), columns.get("choices", ())[1:])
            known = [f"options.{name}" for name, value in options.items() if name in FORM or (value and value in named)]
            raise ValueError(f"--set {override}: expected an option for reading --input_file ({', '.join(known) or 'this task has none'})")
    return options, columns


def _options(config: Config, overrides: Sequence[str]) -> tuple[Mapping[str, Any], Columns]:
    """All options of the task with the overrides, and the columns of each input."""
    values: Mapping[str, Any] = {"options": config.options}
    for override in overrides:
        values = merge(values, parse_override(override))
    task = load_task(dataclasses.replace(config, options=values["options"]))
    return dataclasses.asdict(task.options), task.input_columns()


def _names(columns: Columns) -> list[str]:
    return [name for names in columns.values() for name in names]


def _plain(cells: Sequence[str], inputs: Sequence[str], text_may_have_tabs: bool) -> bool:
    """Whether a first line of TSV, which does not name the columns, is an object or has all inputs between tabs."""
    line = "\t".join(cells)
    return text_may_have_tabs or line.lstrip().startswith("{") or line.count("\t") + 1 == len(inputs)


def _suffix(path: str) -> str:
    return os.path.splitext(path)[1].lower()


def _row(table: Table, number: int, columns: Columns, keep: Sequence[str]) -> dict[str, Any]:
    where = table.place(number)
    kept = {name: _kept(table.columns[name][number], f"{where}: column {name!r}") for name in keep}
    return kept | {name: _input(name, parts, [table.columns[part][number] for part in parts], where) for name, parts in columns.items()}


def _input(name: str, parts: Sequence[str], cells: Sequence[Any], where: str) -> str | list[str]:
    """Returns an input of the model, made of the cells of its columns `parts`.

    Choices stand in one list, or in a column each; their beginning, if there is one, is the first column. Raises ValueError for a cell
    that is no text, or no list of texts.
    """
    listed = name == "choices" and len(parts) < 3
    for place, (part, cell) in enumerate(zip(parts, cells), 1):
        if listed and place == len(parts):
            if not (isinstance(cell, list) and cell and all(map(_is_text, cell))):
                raise ValueError(f"{where}: column {part!r}: expected a list of texts, got {cell!r:.60}")
        elif not _is_text(cell):
            raise ValueError(f"{where}: column {part!r}: expected text, got {cell!r:.60}")
    if len(cells) == 1:
        return cells[0]
    return [f"{cells[0]} {ending}".strip() for ending in (cells[-1] if listed else cells[1:])]


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and not LONE_SURROGATE.search(value)


def _kept(value: Any, where: str) -> Any:
    """Returns a value to copy in JSON's types: times as ISO text, NaN as null. Raises ValueError for what JSON lacks, such as bytes."""
    if isinstance(value, (np.generic, np.ndarray)):
        value = value.tolist()
    if isinstance(value, (datetime.date, datetime.time)):
        return value.isoformat()
    if isinstance(value, (list, tuple)):
        return [_kept(item, where) for item in value]
    if isinstance(value, Mapping):
        return {key: _kept(item, where) for key, item in value.items()}
    if isinstance(value, float) and math.isnan(value):
        return None
    if value is None or _is_text(value) or isinstance(value, int) or (isinstance(value, float) and math.isfinite(value)):
        return value
    raise ValueError(f"{where}: expected a value that JSON has, got {value!r:.60}")


def read_rows(arguments: Sequence[str], input_file: str, names: Sequence[str], lines: Iterable[str]) -> Iterator[dict[str, Any]]:
    """Yields rows of the inputs `names` from arguments, else from a file's lines: JSON objects, or columns between tabs.

    An object may hold more, which is kept. Raises ValueError naming the line for any other line, and for inputs that are no text.
    """
    for number, line in enumerate(arguments or lines, 1):
        if not arguments and not line.strip():
            continue
        where = f"{'argument' if arguments else input_file}:{number}"
        row = _parsed(line.rstrip("\r\n"), names, "" if arguments else _suffix(input_file), where)
        if missing := [name for name in names if name not in row]:
            raise ValueError(f"{where}: expected a key {missing[0]!r}, found {shown(list(row))}")
        yield {name: _input(name, (name,), (value,), where) if name in names else _kept(value, f"{where}: key {name!r}")
               for name, value in row.items()}


def _parsed(text: str, names: Sequence[str], suffix: str, where: str) -> dict[str, Any]:
    """Returns the row in a line of a file whose name ends with `suffix`, not yet checked."""
    if SUFFIXES.get(suffix) == "jsonl":
        return json_object(text, where)
    if text.lstrip().startswith("{"):
        with contextlib.suppress(ValueError):  # it is text
            return json_object(text, where)
    columns = text.split("\t") if len(names) > 1 or suffix == ".tsv" else [text]
    if len(columns) != len(names):
        raise ValueError(f"{where}: expected {' TAB '.join(names)}, got {len(columns)} columns")
    return dict(zip(names, columns))
