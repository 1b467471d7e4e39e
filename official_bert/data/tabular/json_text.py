"""JSON in the lines of a file, or a document over several: parsed, with the place of what is wrong."""

import json
from typing import Any

JSON_ROWS = "an object a line, or a list of objects, which may stand under 'data'"


def begun(line: str, where: str) -> tuple[Any, bool]:
    """Returns the value in a file's first line, and whether it goes on in the next ones; then it is None."""
    try:
        return json.loads(line), False
    except json.JSONDecodeError as error:
        if error.pos >= len(line.rstrip()):
            return None, True
    except (ValueError, RecursionError):
        pass
    return parsed(line, where), False  # raises the error


def begins_json(line: str) -> bool:
    """Whether a first line is a JSON value, or the beginning of one."""
    try:
        begun(line, "")
    except ValueError:
        return False
    return True


def parsed_whole(path: str, number: int, first: str, other_lines: str) -> Any:
    """Returns the value that begins in line `number` and has the other lines too."""
    try:
        return json.loads(first + other_lines)
    except json.JSONDecodeError as error:
        second = other_lines.lstrip().partition("\n")[0]
        if second.startswith("{") and not first.rstrip().endswith("[") and _is_json(second):
            parsed(first, f"{path}:{number}")  # raises the error: the file is JSON lines, the first of which is cut
        raise ValueError(f"{path}:{number - 1 + error.lineno}: {_problem(error)}; expected {JSON_ROWS}") from None
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path}: {_problem(error)}") from None


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


def parsed(line: str, where: str) -> Any:
    """Returns the value in a line of JSON. Raises ValueError, which begins with `where`, for anything else."""
    try:
        return json.loads(line.rstrip("\r\n"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{where}: {_problem(error)}; expected an object a line") from None


def _problem(error: Exception) -> str:
    """What is wrong with a text that is no JSON."""
    if isinstance(error, json.JSONDecodeError):
        return f"not valid JSON: {error.msg} at column {error.colno}"
    return f"not valid JSON: {'nested too deeply' if isinstance(error, RecursionError) else error}"


def checked_object(value: Any, where: str) -> dict[str, Any]:
    """Returns a row that is an object. Raises ValueError, which begins with `where`, for anything else."""
    if not isinstance(value, dict):
        raise ValueError(f"{where}: expected a JSON object, got {json.dumps(value)[:60]}; a file has {JSON_ROWS}")
    return value
