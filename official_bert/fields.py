"""Constraints on the fields of configurations and of options: data beside the fields, checked by one function.

A field's type has its range (`Count`, `Share`), its default what it has an effect with (`only_with`), and the string
below it is its meaning. `docs/write_options.py` writes docs/reference/options.md from them.
"""

import dataclasses
import functools
import json
import math
import re
import shlex
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Annotated, Any, NamedTuple

PLAIN_VALUE = re.compile(r"[^\W\d]([\w.-]*\w)?|[|^~]|\\t")
YAML_WORDS = ("true", "false", "yes", "no", "on", "off", "null", "y", "n")


class Constraint(NamedTuple):
    """The values that a field may have: in words, and as a test of one value."""

    words: str
    holds: Callable[[Any], bool]


# NaN and infinity are in none of these.
Count = Annotated[int, Constraint("at least 1", lambda value: 1 <= value < math.inf)]
Natural = Annotated[int, Constraint("at least 0", lambda value: 0 <= value < math.inf)]
NonNegative = Annotated[float, Constraint("at least 0", lambda value: 0 <= value < math.inf)]
Positive = Annotated[float, Constraint("a number above 0", lambda value: 0 < value < math.inf)]
Share = Annotated[float, Constraint("a share from 0 to 1", lambda value: 0 <= value <= 1)]
Probability = Annotated[float, Constraint("a probability from 0 to 1", lambda value: 0 <= value <= 1)]
PositiveShare = Annotated[float, Constraint("a share above 0, at most 1", lambda value: 0 < value <= 1)]
ShareBelow1 = Annotated[float, Constraint("a share from 0 to below 1", lambda value: 0 <= value < 1)]
Rate = Annotated[float, Constraint("a rate from 0 to below 1", lambda value: 0 <= value < 1)]
ScoreRange = Annotated[
    tuple[float, ...],
    Constraint("lowest and highest score", lambda value: not value or (len(value) == 2 and value[0] < value[1])),
]


class OptionsNeededError(ValueError):
    """Refuses data for a `problem` that options solve: `readings` are those of each way to read them, the likeliest
    first; `rows` are the first ones.
    """

    def __init__(self, problem: str, readings: Sequence[Mapping[str, Any]], rows: Sequence[str] = ()):
        super().__init__(f"{problem}; expected {' or '.join(map(as_flags, readings))}")
        self.problem, self.readings, self.rows = problem, readings, rows


def as_flags(options: Mapping[str, Any]) -> str:
    """Options of a task as flags of the command line."""
    return " ".join(f"--set {shlex.quote(f'options.{name}={_as_yaml(value)}')}" for name, value in options.items())


def as_keywords(options: Mapping[str, Any]) -> str:
    """Options of a task as keywords of Python."""
    return ", ".join(f"{name}={value!r}" for name, value in options.items())


def _as_yaml(value: Any) -> str:
    """A value as `--set` reads it: in quotes if YAML would take a text for something else."""
    if not isinstance(value, str):
        return json.dumps(value)
    is_plain = PLAIN_VALUE.fullmatch(value) and value.lower() not in YAML_WORDS
    return value if is_plain else json.dumps(value, ensure_ascii=False)


def changed_fields(before: Any, after: Any) -> dict[str, Any]:
    """Returns the fields of a dataclass that have other values in `after`, with these."""
    return {name: value for name, value in vars(after).items() if value != getattr(before, name)}


def only_with(default: Any, key: str, *values: Any) -> Any:
    """Returns a field that has an effect only beside one of these values of another key (none: beside any but 0, False
    and empty ones).
    """
    return dataclasses.field(default=default, metadata={"only_with": (key, values)})


@functools.cache
def constraints_of(cls: type) -> Mapping[str, Constraint]:
    """Returns the constraints of a dataclass's fields, by name; that of `Count | None` is that of `Count`."""
    kinds = typing.get_type_hints(cls, include_extras=True)
    return {
        name: constraint
        for name, kind in kinds.items()
        for part in (kind, *typing.get_args(kind))
        for constraint in getattr(part, "__metadata__", ())
        if isinstance(constraint, Constraint)
    }


def refuse_unused(name: str, value: Any, default: Any, reader: str, used: bool) -> None:
    """Raises ValueError, unless it is `used`, for an option or flag with another value than its default, which would do
    nothing.

    `reader` says what gives it a meaning.
    """
    if not used and value != default:
        raise ValueError(f"{name}: expected {reader} with it, got {value} without; it would do nothing")


def check_used(options: Any, keys: Iterable[str], reader: str, used: bool, where: str = "config.options.") -> None:
    """Raises ValueError, unless they are `used`, for options with another value than their default, which would do
    nothing.

    `reader` says what gives them a meaning.
    """
    for field in dataclasses.fields(options):
        if field.name in keys:
            refuse_unused(f"{where}{field.name}", getattr(options, field.name), field.default, reader, used)


def check_fields(options: Any, where: str = "config.options.") -> None:
    """Raises ValueError for a field with a value that it may not have (None passes), or with one that has no effect
    beside the others.

    `where` stands before the field's name in the error; `--` makes it a flag.
    """
    for name, constraint in constraints_of(type(options)).items():  # type: ignore[arg-type]
        value = getattr(options, name)
        if value is not None and not constraint.holds(value):
            raise ValueError(
                f"{where}{name}: expected {constraint.words}, got "
                f"{list(value) if isinstance(value, tuple) else value!r}"
            )
    for field in dataclasses.fields(options):
        if "only_with" in field.metadata:
            key, values = field.metadata["only_with"]
            actual = getattr(options, key)
            reader = f"{where.removeprefix('config.')}{needed(key, values, actual)}"
            check_used(options, [field.name], reader, actual in values if values else bool(actual), where)


def needed(key: str, values: Iterable[Any], actual: Any) -> str:
    """Returns what a field needs beside it, such as `schedule: linear or polynomial (not constant)` or `crf: true`."""
    if values:
        return f"{key}: {' or '.join(map(str, values))} (not {actual or 'empty'})"
    return f"{key}: true" if actual is False else key
