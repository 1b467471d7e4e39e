"""Rows to answer from a file of any form that training reads (CSV, TSV, JSON lines, Parquet), or from plain lines."""

import contextlib
import dataclasses
import datetime
import itertools
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from absl import logging

from official_bert.config import Config, merge, parse_override
from official_bert.data.table_files import is_packed, suffix_of
from official_bert.data.tables import (
    SUFFIXES,
    Format,
    Rows,
    Table,
    column_names,
    format_of,
    objects_in,
    place,
    read_table,
    read_table_parts,
    shown,
)
from official_bert.data.tabular.companions import ANNOTATIONS, annotations_of
from official_bert.data.tabular.encodings import text_lines
from official_bert.data.tabular.json_text import json_object
from official_bert.data.tagged import span_forms
from official_bert.files import exists, is_folder
from official_bert.interface import output_files
from official_bert.tasks.loading import load_task
from official_bert.tasks.tagging import conll

Columns = Mapping[str, tuple[str, ...]]  # by input of a model; choices are made of a beginning and their endings
FORM = ("file_format", "delimiter", "header", "encoding")  # options of tasks that read tables
MAY_BE_NULL = {"text", "text_pair"}  # inputs of models that read null as an empty text, as classification does; others refuse it
SECOND_TEXT = "text_pair"
IGNORED = f"'{SECOND_TEXT}', but the model reads one text; --pairs reads both"
OF_TAGGED_WORDS = (".conll", ".conllu")
HOW_TO_TAG = "run_finetuning --task=ner --output_dir=RUN --nodo_train --nodo_eval --predict_file=FILE"
LONE_SURROGATE = re.compile("[\ud800-\udfff]")  # JSON may hold one, which is no text in UTF-8


def read_file(path: str, inputs: Sequence[str], config: Config | None, overrides: Sequence[str] = (),
              keep: Sequence[str] = (), tagger: bool = False, may_be_pairs: bool = False) -> list[dict[str, Any]]:
    """Reads the rows of a file, as `read_parts` does, at once."""
    return [row for part in read_parts(path, None, inputs, config, overrides, keep, tagger, may_be_pairs) for row in part]


def read_parts(path: str, at_once: int | None, inputs: Sequence[str], config: Config | None, overrides: Sequence[str] = (),
               keep: Sequence[str] = (), tagger: bool = False, may_be_pairs: bool = False) -> Iterator[list[dict[str, Any]]]:
    """Yields the rows of a file, at most `at_once` in a part: the columns `keep`, then the `inputs` of a model by name.

    The columns, the form and the delimiter are those of the options that the model was trained with, and of `overrides`
    (`options.text_column=review`); columns with the names of the inputs will do too. TSV and .txt files without names of columns may
    be plain lines: JSON objects, or the inputs between tabs. For a `tagger` the file must not be one of tagged words, and for a
    classifier of one text that `may_be_pairs` not one with a column `text_pair`.

    Raises ValueError, naming file and line or column, for what cannot be read, and for plain lines whose first one names the columns.
    """
    if not exists(path):
        raise ValueError(f"--input_file={path}: no such file")
    options, columns = _asked(config, inputs, overrides)
    header, encoding = options.get("header", True), options.get("encoding", "")
    if tagger:
        _check_not_tagged(path, options, encoding)
    choices = {name: columns.get(name) or (name,) for name in inputs}
    same = {name: (name,) for name in inputs}
    form, delimiter = options.get("file_format", "auto"), options.get("delimiter", "")
    suffix = _suffix(path)
    suffix_format = SUFFIXES.get(suffix)
    kind: Format | None = form
    if form == "auto":  # a file of plain lines may hold anything
        kind = suffix_format if suffix_format == "tsv" and header and not is_packed(path) else format_of(
            path, _names(choices), delimiter, encoding, not header) if suffix_format or suffix == ".xlsx" or is_packed(path) else None
    present = column_names(path, kind, delimiter, header, encoding) if kind else []
    if may_be_pairs and SECOND_TEXT in {*present} - {*inputs, *keep}:
        raise ValueError(f"--input_file={path}: found a column {IGNORED}, --keep_columns={SECOND_TEXT} copies it")
    parts = next((columns for columns in (choices, same)
                  if all(name in present or name.partition(".")[0] in present for name in _names(columns))), None)
    objects = form == "auto" and kind == "jsonl" and parts == same and not keep  # they may hold more, which is copied
    plain = form == "auto" and not parts and (not kind or (kind == "tsv" and _plain(present, inputs, suffix == ".txt" and not columns)))
    if not (objects or plain):
        nulls: list[str] = []
        count = 0
        names = [*_names(parts or choices), *keep]
        for table in read_table_parts(path, names, at_once, kind or form, delimiter, header, encoding, options):
            yield [_row(table, number, parts or choices, keep, nulls) for number in range(len(table))]
            count += len(table)
        if not count:
            raise ValueError(f"{path}: no row in this file")
        _warn_of_nulls(nulls)
        return
    if keep:
        raise ValueError(f"--keep_columns={','.join(keep)}: {path} has no names of columns {', '.join(_names(choices))}")
    if objects:
        source, found = objects_in(path, "jsonl", encoding)
        rows = _checked(((place(source, line), row) for line, row in found), inputs, may_be_pairs)
    else:
        lines = text_lines(path, encoding)
        head = list(itertools.islice(lines, 1))
        _check_no_table(path, head, (choices, same), has_format="file_format" in options)
        rows = read_rows((), path, inputs, itertools.chain(head, lines), may_be_pairs)
    while part := list(itertools.islice(rows, at_once)):
        yield part


@dataclasses.dataclass(frozen=True)
class EntityTexts:
    """The texts of a file in a form of entities, `form` of `span_forms` or `brat`; `tool` writes it."""

    form: str
    tool: str
    originals: list[Any]  # the rows of the file
    rows: list[dict[str, Any]]  # what they hold, with the text under `text`
    left_out: int  # rows that people rejected or skipped
    are_rows_of_text: bool  # which `read_file` reads too, with all that they hold


def read_entity_texts(path: str, encoding: str = "", always: bool = False) -> EntityTexts | None:
    """Reads the texts of a file in a form of entities (`data/tagged/`); None for another file.

    Rows of several forms are an error if `always`, or if their text is not under `text`; else `read_file` reads them.
    """
    rows = span_forms.span_rows(path, encoding)
    if rows is None:
        return None
    of_text = not (is_folder(path) or path.endswith(ANNOTATIONS)) and all(isinstance(row, Mapping) and "text" in row for row in rows.values)
    try:
        form = span_forms.common_form(rows)
        pairs = [(rows.values[number], record[0]) for number, record in span_forms.records(rows) if record is not None]
    except ValueError:
        if always or not of_text:
            raise
        return None
    name, tool = (output_files.BRAT, output_files.BRAT) if annotations_of(path) else (form.name, form.tool)
    texts = [{**(row if isinstance(row, Mapping) else {}), "text": text} for row, text in pairs]
    return EntityTexts(name, tool, [row for row, _ in pairs], texts, len(rows.values) - len(pairs), of_text)


def rows_of_table(source: Rows, columns: Columns) -> list[dict[str, Any]]:
    """Returns the rows of the inputs of a model from a table in memory with these columns, as `read_file` does from a file."""
    table, nulls = read_table(source, _names(columns)), list[str]()
    rows = [_row(table, number, columns, (), nulls) for number in range(len(table))]
    _warn_of_nulls(nulls)
    return rows


def _check_no_table(path: str, lines: Sequence[str], choices: Iterable[Columns], has_format: bool) -> None:
    """Raises ValueError if the first line names the columns: the file is a table, whose lines are no texts."""
    line = lines[0].rstrip("\r\n") if lines else ""
    for delimiter, suffix in ((",", ".csv"), ("\t", ".tsv"), (";", ""), ("|", "")):
        fields = [cell.strip('"') for cell in line.split(delimiter)]
        if any({*_names(columns)} <= {*fields} for columns in choices):
            ways = [f"a name that ends with {suffix}"] * bool(suffix)
            ways += [f"--set options.file_format=csv --set options.delimiter={delimiter!r}"] * has_format
            raise ValueError(f"{path}:1: expected a text, got names of columns, {shown(fields)}; a table needs "
                             f"{' or '.join(ways) or 'the form of CSV or TSV, and such a name'}")


def _check_not_tagged(path: str, options: Mapping[str, Any], encoding: str) -> None:
    """Raises ValueError for words in columns or lists, which a tagger would answer line by line, tags included."""
    suffix = _suffix(path)
    if in_rows := SUFFIXES.get(suffix) in ("jsonl", "parquet"):
        names = {*column_names(path, SUFFIXES[suffix], encoding=encoding)}
        tagged = bool(names & {*conll.WORD_KEYS}) and "text" not in names
    else:
        columns = conll.Columns(tag=options.get("tag_column", -1), separator=options.get("separator", ""))
        tagged = suffix in OF_TAGGED_WORDS or conll.is_tagged(text_lines(path, encoding), columns, options.get("labels", ()))
    if tagged:
        raise ValueError(f"--input_file={path}: expected texts, got words in {'lists' if in_rows else 'columns'}; {HOW_TO_TAG} tags them")


def _asked(config: Config | None, inputs: Sequence[str], overrides: Sequence[str]) -> tuple[Mapping[str, Any], Columns]:
    """The options for reading, and the columns of each input. Raises ValueError for an override that changes other options only."""
    if config is None:
        if overrides:
            raise ValueError(f"--set {overrides[0]}: expected a model whose configuration is known")
        return {}, {}
    options, columns = _options(config, inputs, overrides)
    for index, override in enumerate(overrides):
        try:
            other_options, without = _options(config, inputs, [*overrides[:index], *overrides[index + 1:]])
        except ValueError:
            continue  # the others are wrong without this one
        alike = without == columns and all(other_options.get(name) == options.get(name) for name in FORM)
        if {*parse_override(override)} != {"options"} or (alike and other_options != options):
            named = (*_names(columns), columns.get("choices", ())[1:])
            known = [f"options.{name}" for name, value in options.items() if name in FORM or (value and value in named)]
            raise ValueError(f"--set {override}: expected an option for reading --input_file ({', '.join(known) or 'this task has none'})")
    return options, columns


def _options(config: Config, inputs: Sequence[str], overrides: Sequence[str]) -> tuple[Mapping[str, Any], Columns]:
    """All options of the task with the overrides, and the columns of each of the model's inputs."""
    values: Mapping[str, Any] = {"options": config.options}
    for override in overrides:
        values = merge(values, parse_override(override))
    task = load_task(dataclasses.replace(config, options=values["options"]))
    return dataclasses.asdict(task.options), {name: parts for name, parts in task.input_columns().items() if name in inputs}


def _names(columns: Columns) -> list[str]:
    return [name for names in columns.values() for name in names if name]


def _plain(cells: Sequence[str], inputs: Sequence[str], text_may_have_tabs: bool) -> bool:
    """Whether a first line of TSV, which does not name the columns, is an object or has all inputs between tabs."""
    line = "\t".join(cells)
    return text_may_have_tabs or line.lstrip().startswith("{") or line.count("\t") + 1 == len(inputs)


def _suffix(path: str) -> str:
    return suffix_of(path)


def _row(table: Table, number: int, columns: Columns, keep: Sequence[str], nulls: list[str]) -> dict[str, Any]:
    where = table.place(number)
    copied = {name: _copied_value(table.columns[name][number], f"{where}: column {name!r}") for name in keep}
    cells_of = {name: [table.columns[part][number] if part else "" for part in parts] for name, parts in columns.items()}
    return copied | {name: _input(name, columns[name], cells, where, nulls, {*columns} <= MAY_BE_NULL) for name, cells in cells_of.items()}


def _input(name: str, parts: Sequence[str], cells: Sequence[Any], where: str, nulls: list[str], may_be_null: bool) -> str | list[str]:
    """Returns an input of the model, made of the cells of its columns `parts`; null is an empty text, and added to `nulls`, if it may be.

    Choices stand in one list, or in a column each; their beginning, if there is one, is the first column. Raises ValueError for a cell
    that is no text, or no list of texts.
    """
    if may_be_null and cells[0] is None:
        nulls.append(f"{where}: column {parts[0]!r}: expected text, got 'None'")
        return ""
    listed = name == "choices" and len(parts) < 3
    for number, (part, cell) in enumerate(zip(parts, cells), 1):
        if listed and number == len(parts):
            if not (isinstance(cell, list) and cell and all(map(_is_text, cell))):
                raise ValueError(f"{where}: column {part!r}: expected a list of texts, got {cell!r:.60}")
        elif not _is_text(cell):
            raise ValueError(f"{where}: column {part!r}: expected text, got {cell!r:.60}")
    if len(cells) == 1:
        return cells[0]
    return [f"{cells[0]} {ending}".strip() for ending in (cells[-1] if listed else cells[1:])]


def _warn_of_nulls(nulls: Sequence[str]) -> None:
    if nulls:
        logging.warning("%s; kept, as are %d more", nulls[0], len(nulls) - 1)


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and not LONE_SURROGATE.search(value)


def _copied_value(value: Any, where: str) -> Any:
    """Returns a value to copy in JSON's types: times as ISO text, NaN as null. Raises ValueError for what JSON lacks, such as bytes."""
    if isinstance(value, (np.generic, np.ndarray)):
        value = value.tolist()
    if isinstance(value, (datetime.date, datetime.time)):
        return value.isoformat()
    if isinstance(value, (list, tuple)):
        return [_copied_value(item, where) for item in value]
    if isinstance(value, Mapping):
        return {key: _copied_value(item, where) for key, item in value.items()}
    if isinstance(value, float) and math.isnan(value):
        return None
    if value is None or _is_text(value) or isinstance(value, int) or (isinstance(value, float) and math.isfinite(value)):
        return value
    raise ValueError(f"{where}: expected a value that JSON has, got {value!r:.60}")


def read_rows(arguments: Sequence[str], input_file: str, names: Sequence[str], lines: Iterable[str],
              may_be_pairs: bool = False) -> Iterator[dict[str, Any]]:
    """Returns rows of the inputs `names` from arguments, else from a file's lines: JSON objects, or columns between tabs.

    An object may hold more, which is kept, but no `text_pair` for a classifier of one text that `may_be_pairs`. Raises ValueError naming
    the line for any other line, and for inputs that are no text.
    """
    places = ((f"{'argument' if arguments else input_file}:{number}", line) for number, line in enumerate(arguments or lines, 1))
    suffix = "" if arguments else _suffix(input_file)
    return _checked(((where, _parsed(line.rstrip("\r\n"), names, suffix, where)) for where, line in places if arguments or line.strip()),
                    names, may_be_pairs)


def _checked(rows: Iterable[tuple[str, Mapping[str, Any]]], names: Sequence[str], may_be_pairs: bool) -> Iterator[dict[str, Any]]:
    """Yields rows of the inputs `names` and of what else there is, from the place and the values of each."""
    nulls: list[str] = []
    for where, row in rows:
        if missing := [name for name in names if name not in row]:
            raise ValueError(f"{where}: expected a key {missing[0]!r}, found {shown(list(row))}")
        if may_be_pairs and SECOND_TEXT in {*row} - {*names}:
            raise ValueError(f"{where}: found a key {IGNORED}")
        yield {name: _input(name, (name,), (value,), where, nulls, {*names} <= MAY_BE_NULL) if name in names
               else _copied_value(value, f"{where}: key {name!r}") for name, value in row.items()}
    _warn_of_nulls(nulls)


def _parsed(text: str, names: Sequence[str], suffix: str, where: str) -> dict[str, Any]:
    """Returns the row in a line of a file whose name ends with `suffix`, not yet checked."""
    if text.lstrip().startswith("{"):
        with contextlib.suppress(ValueError):  # it is text
            return json_object(text, where)
    columns = text.split("\t") if len(names) > 1 or suffix == ".tsv" else [text]
    if len(columns) != len(names):
        raise ValueError(f"{where}: expected {' TAB '.join(names)}, got {len(columns)} columns")
    return dict(zip(names, columns))
