"""Numbers of models are finite: their weights when they are loaded, and their answers before anybody gets them."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np


def is_floating(dtype: np.dtype) -> bool:
    """Returns whether a type has NaN: complex numbers and those of `ml_dtypes` (bfloat16, float8) have it too."""
    return dtype.kind in "fc" or dtype.name.startswith(("bfloat", "float"))


def require_finite(weights: Mapping[str, Any], origin: str, name: Callable[[str], str] = str) -> None:
    """Raises ValueError, naming the first by its name, for weights (arrays or variables) with NaN or infinity.

    `name` gives a weight's name in the file. Every command asks this of the weights that it reads: a model that has one
    answers with numbers that mean nothing.
    """
    for key in sorted(weights):
        _require_finite(np.asarray(weights[key]), name(key), origin)


def require_finite_constants(constants: Iterable[tuple[str, np.ndarray]], origin: str) -> None:
    """Raises ValueError, naming the first, for constants of a graph with NaN or infinity.

    Infinity is meant in a single number (a bound, what stands for no number yet) and in masks, of minus infinity and 0.
    """
    for name, values in constants:
        if is_floating(values.dtype) and not np.isfinite(values).all():
            is_bound = values.ndim == 0 and not np.isnan(values)
            is_mask = ((values == 0) | (values == -np.inf)).all() and (values == 0).any()
            if not is_bound and not is_mask:
                _require_finite(values, name, origin)


def not_finite(outputs: Mapping[str, np.ndarray], has_rows: bool = True) -> tuple[int, str] | None:
    """Returns the first row with NaN or infinity in any output, and the output's name; None if all numbers are finite.

    Outputs whose first axis is no row (`has_rows`) count as row 0.
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
