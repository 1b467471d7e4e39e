"""Metrics as text for people: a value that is not a number is undefined, as a correlation with constant scores is."""

import math
from collections.abc import Mapping


def shown(value: float, digits: int = 4) -> str:
    """Returns a metric with so many decimals, or "undefined"."""
    return "undefined" if math.isnan(value) else f"{value:.{digits}f}"


def metric_lines(metrics: Mapping[str, float]) -> str:
    """Returns a line `name = value` for each metric."""
    return "\n".join(f"{name} = {shown(value, 5)}" for name, value in metrics.items())
