"""Reads what other libraries store: pandas' column-oriented JSON, and class names in Parquet metadata."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from official_bert.json_values import parse


def rows_of_pandas(value: Any) -> list[dict[str, Any]] | None:
    """Returns the rows of `DataFrame.to_json()`, or of its orients `split` and `index`; None for another value."""
    if not isinstance(value, Mapping) or not value:
        return None
    if {"columns", "index", "data"} == {*value}:
        return [dict(zip(value["columns"], row)) for row in value["data"]]
    inner = list(value.values())
    if not all(isinstance(part, Mapping) and part and [*part] == [*inner[0]] for part in inner):
        return None
    if all(key.isdecimal() for key in value):
        return inner
    is_columns = all(map(str.isdecimal, inner[0])) or len(inner[0]) > len(value) > 1
    return [dict(zip(value, row)) for row in zip(*(part.values() for part in inner))] if is_columns else None


def class_names(metadata: Mapping[bytes, bytes] | None) -> Callable[[Mapping], dict]:
    """Returns the function of `names_for_numbers` with the names that `datasets` stores in Parquet."""
    try:
        features = parse((metadata or {})[b"huggingface"])["info"]["features"]
        inner = {key: feature.get("feature", feature) for key, feature in features.items() if isinstance(feature, dict)}
        names = {key: [*map(str, part["names"])] for key, part in inner.items() if part.get("_type") == "ClassLabel"}
    except (KeyError, TypeError, ValueError, AttributeError):
        names = {}
    return names_for_numbers(names)


def names_for_numbers(names: Mapping[str, Sequence[str]]) -> Callable[[Mapping], dict]:
    """Returns a function that replaces the numbers of classes in a row, or in its lists, by their `names`; -1 (no
    label) becomes None.
    """

    def named(value: Any, key: str) -> Any:
        if isinstance(value, list):
            return [named(part, key) for part in value]
        return value if type(value) is not int else names[key][value] if 0 <= value < len(names[key]) else None

    return lambda row: {**row, **{key: named(row[key], key) for key in names if key in row}}
