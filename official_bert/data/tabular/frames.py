"""Tables in memory, of pandas or of the `datasets` library, as rows of dictionaries."""

import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from official_bert.data.rows import Rows, Source
from official_bert.data.tabular.formats import check_names_once
from official_bert.data.tabular.stored_names import names_for_numbers


def is_frame(data: Any) -> bool:
    """Returns whether data are a pandas frame."""
    return hasattr(data, "iloc") and hasattr(data, "columns")


def is_series(data: Any) -> bool:
    """Returns whether data are a pandas series."""
    return hasattr(data, "iloc") and not hasattr(data, "columns")


def is_split(data: Any) -> bool:
    """Returns whether data are a split of `datasets`."""
    return hasattr(data, "column_names")


def as_source(data: Any, name: str) -> Source:
    """Returns a path unchanged, and a list of dicts, a pandas frame or a split of `datasets` as rows.

    Missing values are None, NumPy arrays and tuples within a row are lists.

    Raises ValueError for anything else, and for data without rows.
    """
    if data is None:
        return ""
    if isinstance(data, (str, os.PathLike)):
        return os.fspath(data)
    if is_split(data):
        values = _of_datasets(data, name)
    elif is_frame(data):
        check_names_once(name, list(map(str, data.columns)))
        cells = data.astype(object).where(data.notna(), None)
        values = [dict(zip(map(str, cells.columns), row)) for row in cells.itertuples(index=False, name=None)]
    elif isinstance(data, Sequence):
        values = list(data)
    else:
        raise ValueError(
            f"{name}: expected a path, a list of dicts, a pandas frame or a split of datasets, got "
            f"{type(data).__name__}"
        )
    for number, row in enumerate(values):
        if not isinstance(row, Mapping):
            raise ValueError(f"{name}[row {number}]: expected a dict, got {row!r:.60}")
    if not values:
        raise ValueError(f"{name}: expected rows, got none")
    return Rows(name, list(map(_with_lists, values)))


def _with_lists(row: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns a row with lists in the place of NumPy arrays and tuples."""
    lists = {
        key: list(value) if isinstance(value, tuple) else value.tolist()
        for key, value in row.items()
        if isinstance(value, (tuple, np.ndarray))
    }
    return {**row, **lists} if lists else row


def _of_datasets(data: Any, name: str) -> list[dict]:
    """Returns the rows of a split of the `datasets` library; class numbers become names."""
    if isinstance(data.column_names, Mapping):
        raise ValueError(f"{name}: expected one split, got a dict of {', '.join(data.column_names)}")
    features = data.features or {}  # a stream may not know them
    kinds = {key: getattr(feature, "feature", feature) for key, feature in features.items()}  # those within lists
    return list(
        map(names_for_numbers({key: kind.names for key, kind in kinds.items() if hasattr(kind, "names")}), data)
    )
