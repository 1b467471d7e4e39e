"""Turns rows of texts (tuples, pandas frames and series) into mappings of a signature's inputs."""

from collections.abc import Mapping, Sequence
from typing import Any

# of the inputs in a tuple; a SavedModel's inputs have no order
ORDER = ("text", "text_pair", "question", "context", "choices")


def needs_input_names(rows: Any) -> bool:
    """Returns whether the names of the inputs are needed to send rows: for a frame, a tuple, or a list with a tuple."""
    return (
        hasattr(rows, "columns")
        or isinstance(rows, tuple)
        or (isinstance(rows, list) and any(isinstance(row, tuple) for row in rows))
    )


def as_mappings(rows: Any, inputs: Sequence[str]) -> Any:
    """Returns rows with mappings in place of tuples and of a frame's rows; unchanged if the model has one input and the
    rows are no frame.

    Raises ValueError for a frame without a column for an input, and, with the row's number from 1, for tuples of
    another length.
    """
    ordered = sorted(inputs, key=lambda name: (ORDER.index(name) if name in ORDER else len(ORDER), name))
    if hasattr(rows, "columns"):
        if missing := [name for name in ordered if name not in rows.columns]:
            raise ValueError(
                f"rows: expected columns {', '.join(map(repr, ordered))}, {missing[0]!r} is missing; rename them"
            )
        return [dict(zip(ordered, row)) for row in rows[ordered].itertuples(index=False, name=None)]
    if len(ordered) == 1:
        return rows
    if isinstance(rows, tuple) and not any(isinstance(value, (tuple, Mapping)) for value in rows):
        return _mapping(rows, ordered, 1)
    return [_mapping(row, ordered, number) if isinstance(row, tuple) else row for number, row in enumerate(rows, 1)]


def _mapping(row: Sequence[Any], ordered: Sequence[str], number: int) -> dict[str, Any]:
    if len(row) != len(ordered):
        raise ValueError(f"rows: row {number}: expected {' and '.join(ordered)}, got {len(row)} values")
    return dict(zip(ordered, row))
