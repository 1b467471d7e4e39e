"""Reads the fields of a JSON object: each has one type, and unknown keys are errors."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from official_bert.server.statuses import invalid

EXPECTED = {str: "a string", bool: "true or false", int: "a whole number", list: "a list", dict: "an object"}
LONE_SURROGATE = re.compile("[\ud800-\udfff]")  # JSON may write half a character
TYPE_NAMES = {
    str: "a string",
    bool: "a truth value",
    int: "a number",
    float: "a number",
    list: "a list",
    dict: "an object",
}


def check_keys(request: Mapping[str, Any], keys: Sequence[str]) -> None:
    """Raises RequestError for a key that is not among `keys`."""
    if unknown := sorted(set(request) - set(keys)):
        raise invalid(f"expected the keys {', '.join(keys)}, got {unknown[0]!r:.60}")


def field(request: Mapping[str, Any], key: str, kind: type, default: Any = None, owner: str = "") -> Any:
    """Returns the value of a key, which must have exactly the type `kind`. A missing key or null gives `default`,
    unless that is None.

    Raises RequestError that names the key and its `owner` (" of a tensor") for another type, and for a string with a
    lone surrogate.
    """
    value = request.get(key)
    if value is None and default is not None:
        return default
    if type(value) is not kind:
        raise invalid(f"{key!r}{owner}: expected {EXPECTED[kind]}, got {describe_type(value)}")
    if isinstance(value, str) and LONE_SURROGATE.search(value):
        raise invalid(f"{key!r}{owner}: a lone surrogate is not text")
    return value


def describe_type(value: Any) -> str:
    """Returns the name of a JSON value's type."""
    return TYPE_NAMES.get(type(value), "null")
