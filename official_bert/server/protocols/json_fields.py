"""The fields of a JSON object: of one type each, and no unknown ones."""

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
    """Raises RequestError for a key that is not one of `keys`."""
    if unknown := sorted(set(request) - set(keys)):
        raise invalid(f"expected the keys {', '.join(keys)}, got {unknown[0]!r:.60}")


def field(request: Mapping[str, Any], key: str, kind: type, default: Any = None, owner: str = "") -> Any:
    """Returns a value of exactly this type; null is as good as none. A default of None: it must be there.

    Raises RequestError, which names the key and its `owner` (" of a tensor"); also for a string with half a character.
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
    """Names the type of a JSON value."""
    return TYPE_NAMES.get(type(value), "null")
