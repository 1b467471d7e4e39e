"""Dataclasses from parsed YAML or JSON: strict about keys and types, with errors that name the dotted key."""

import contextlib
import dataclasses
import math
import types
import typing
from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeVar

T = TypeVar("T")


def build(cls: type[T], values: Any, where: str = "config") -> T:
    """Makes dataclass `cls` from a parsed YAML mapping.

    Raises ValueError, naming the dotted key, for unknown keys and for values of another type.
    """
    kinds = typing.get_type_hints(cls)
    if not isinstance(values, Mapping):
        raise ValueError(f"{where}: expected a mapping, got {values!r}")
    if unknown := sorted(set(map(str, values)) - set(kinds)):
        raise ValueError(f"{where}: unknown keys {unknown}; known: {sorted(kinds)}")
    typed = {key: _typed(kinds[key], value, f"{where}.{key}") for key, value in values.items()}
    built = cls(**typed)  # says more about some numbers
    for key, value in typed.items():
        if any(isinstance(part, float) and not math.isfinite(part) for part in (value if isinstance(value, tuple) else (value,))):
            raise ValueError(f"{where}.{key}: expected a finite number, got {value}")
    return built


def _typed(kind: Any, value: Any, where: str) -> Any:
    """Returns `value` as `kind`, strictly: YAML reads 2e-1 as a string and yes as a bool, and both are refused."""
    origin, parts = typing.get_origin(kind), typing.get_args(kind)
    if dataclasses.is_dataclass(kind):
        return build(kind, value, where)  # type: ignore[arg-type]
    if origin in (types.UnionType, typing.Union):
        return _as_one_of(parts, value, where)
    if origin is dict:
        if not isinstance(value, Mapping):
            raise ValueError(f"{where}: expected a mapping, got {value!r}")
        keys = [str(key).lower() if isinstance(key, bool) else str(key) for key in value]  # in YAML, 1 and true are no texts
        return {key: _typed(parts[1], item, f"{where}.{key}") for key, item in zip(keys, value.values())}
    if origin in (list, tuple):
        if not isinstance(value, (list, tuple)):
            raise ValueError(f"{where}: expected a list, got {value!r}")
        return tuple(_typed(parts[0], item, f"{where}[{index}]") for index, item in enumerate(value))
    if origin is Literal:
        if not any(type(value) is type(part) and value == part for part in parts):
            raise ValueError(f"{where}: expected one of {list(parts)}, got {value!r}")
        return value
    if kind is float and type(value) is int and abs(value) < 2**1000:
        value = float(value)
    if type(value) is not (kind := origin or kind):
        raise ValueError(f"{where}: expected {kind.__name__}, got {value!r}{_hint(kind, value)}")
    if kind is int and abs(value) >= 2**31:
        raise ValueError(f"{where}: expected a number below 2^31, got {value}")
    return value


def _as_one_of(kinds: Sequence[Any], value: Any, where: str) -> Any:
    """Returns `value` as the first of several kinds that it fits."""
    for kind in kinds:
        with contextlib.suppress(ValueError):
            return _typed(kind, value, where)
    raise ValueError(f"{where}: expected {' or '.join(map(_described, kinds))}, got {value!r}")


def _described(kind: Any) -> str:
    """A kind in words."""
    origin, parts = typing.get_origin(kind), typing.get_args(kind)
    if origin is Literal:
        return " or ".join(map(repr, parts))
    return {tuple: "list of {}", dict: "mapping to {}"}.get(origin, "{}").format((parts or (kind,))[-2 if origin is tuple else -1].__name__)


def _hint(kind: type, value: Any) -> str:
    """Returns a hint for a string that should probably be a number."""
    if kind is not float or not isinstance(value, str):
        return ""
    try:
        return f" (write {float(value)!r}: YAML wants a dot in a number with an exponent)" if float(value) else ""
    except ValueError:
        return ""
