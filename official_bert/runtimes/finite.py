"""Checks that numbers are finite: weights when a model is loaded, and outputs before they are returned."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np


def is_floating(dtype: np.dtype) -> bool:
    """Returns whether a type can hold NaN: floats, complex numbers, and floats of `ml_dtypes` (bfloat16, float8)."""
    return dtype.kind in "fc" or dtype.name.startswith(("bfloat", "float"))


def require_finite(weights: Mapping[str, Any], origin: str, name: Callable[[str], str] = str) -> None:
    """Raises ValueError that names the first weight (array or variable) with NaN or infinity.

    `name` returns a weight's name in the file. Every command checks the weights that it reads, because the outputs of a
    model with such a weight mean nothing.
    """
    for key in sorted(weights):
        _require_finite(np.asarray(weights[key]), name(key), origin)


def require_finite_constants(constants: Iterable[tuple[str, np.ndarray]], origin: str) -> None:
    """Raises ValueError that names the first constant of a graph with NaN or infinity.

    Infinity is allowed as a single number (a bound, or an initial value) and in masks, which hold minus infinity and 0.
    """
    for name, values in constants:
        if is_floating(values.dtype) and not np.isfinite(values).all():
            is_bound = values.ndim == 0 and not np.isnan(values)
            is_mask = ((values == 0) | (values == -np.inf)).all() and (values == 0).any()
            if not is_bound and not is_mask:
                _require_finite(values, name, origin)


def not_finite(outputs: Mapping[str, np.ndarray], has_rows: bool = True) -> tuple[int, str] | None:
    """Returns (row, output's name) of the first row with NaN or infinity in any output; None if all numbers are finite.

    Outputs whose first axis does not count rows (not `has_rows`) are row 0.
    """
    found = []
    for name, values in outputs.items():
        if is_floating(values.dtype) and not (finite := np.isfinite(values)).all():
            rows = finite.reshape(len(finite), -1).all(axis=1) if has_rows and values.ndim else np.array([False])
            found.append((int(np.argmin(rows)), name))
    return min(found, default=None)


def _require_finite(values: np.ndarray, name: str, origin: str) -> None:
    bad = values.size - np.count_nonzero(np.isfinite(values)) if is_floating(values.dtype) else 0
    if bad:
        raise ValueError(
            f"{origin}: {name}: expected finite numbers, got {bad:,} of {values.size:,} NaN or infinite: "
            "the training of this model has diverged, or the file is damaged"
        )
