"""Rows of JSON: an object a line, or a list of objects, which may stand under `data`."""

import itertools
import json
from collections.abc import Iterator
from typing import Any

from official_bert.data.rows import Rows, Source
from official_bert.data.tabular.encodings import text_lines
from official_bert.data.tabular.stored_names import rows_of_pandas
from official_bert.json_values import parse as parse_json
from official_bert.limits import MOST_COLUMNS, require_at_most

JSON_ROWS = "an object a line, or a list of objects, which may stand under 'data'"


def json_values(path: str, encoding: str = "") -> tuple[Source, Iterator[tuple[int, Any]]]:
    """Returns the source of a JSON file, as messages name it, and (line, value) of each row, not yet checked.

    The source of a list is `Rows`, whose rows are counted from 0. JSON lines are parsed one at a time. The only value
    in a file is a row, unless it is a list, or has one under `data`.
    """
    lines = enumerate(text_lines(path, encoding), 1)
    number, first = next(((number, line) for number, line in lines if line.strip()), (1, ""))
    if not first:
        return path, iter(())
    value, goes_on = _begun(first, f"{path}:{number}")
    if goes_on:
        value = _parsed_whole(path, number, first, "".join(line for _, line in lines))
    else:
        more = ((line, text) for line, text in lines if text.strip())
        if (second := next(more, None)) is not None:
            later = ((line, _parsed(text, f"{path}:{line}")) for line, text in itertools.chain([second], more))
            return path, itertools.chain([(number, value)], later)
    listed = rows_of_pandas(value) or (value.get("data") if isinstance(value, dict) else value)
    if isinstance(listed, list):
        return Rows(path, listed), iter(enumerate(listed))
    return path, iter([(number, value)])


def _begun(line: str, where: str) -> tuple[Any, bool]:
    """Returns the value in a file's first line, and whether it goes on in the next ones; then it is None."""
    try:
        return parse_json(line), False
    except json.JSONDecodeError as error:
        if error.pos >= len(line.rstrip()):
            return None, True
    except ValueError:
        pass
    return _parsed(line, where), False  # raises the error


def begins_json(line: str) -> bool:
    """Returns whether a first line is a JSON value, or the beginning of one."""
    try:
        _begun(line, "")
    except ValueError:
        return False
    return True


def _parsed_whole(path: str, number: int, first: str, other_lines: str) -> Any:
    """Returns the value that begins in line `number` and has the other lines too."""
    try:
        return parse_json(first + other_lines)
    except json.JSONDecodeError as error:
        second = other_lines.lstrip().partition("\n")[0]
        if second.startswith("{") and not first.rstrip().endswith("[") and _is_json(second):
            _parsed(first, f"{path}:{number}")  # raises the error: the file is JSON lines, the first of which is cut
        raise ValueError(f"{path}:{number - 1 + error.lineno}: {_problem(error)}; expected {JSON_ROWS}") from None
    except ValueError as error:
        raise ValueError(f"{path}: {_problem(error)}") from None


def _is_json(text: str) -> bool:
    try:
        parse_json(text)
    except ValueError:
        return False
    return True


def _parsed(line: str, where: str) -> Any:
    """Returns the value in a line of JSON. Raises ValueError, which begins with `where`, for anything else."""
    try:
        return parse_json(line.rstrip("\r\n"))
    except ValueError as error:
        raise ValueError(f"{where}: {_problem(error)}; expected an object a line") from None


def _problem(error: ValueError) -> str:
    """What is wrong with a text that is no JSON."""
    if isinstance(error, json.JSONDecodeError):
        return f"not valid JSON: {error.msg} at column {error.colno}"
    return f"not valid JSON: {error}"


def checked_object(value: Any, where: str) -> dict[str, Any]:
    """Returns a row that is an object. Raises ValueError, which begins with `where`, for anything else."""
    if not isinstance(value, dict):
        raise ValueError(f"{where}: expected a JSON object, got {json.dumps(value)[:60]}; a file has {JSON_ROWS}")
    require_at_most(MOST_COLUMNS, len(value), "keys", where)
    return value
