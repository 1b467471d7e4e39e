"""Metrics as text for people: shares in percent with its sign, other numbers as they are.

Python, files and logs have shares from 0 to 1. A value that is not a number is undefined, as a correlation with
constant scores is.
"""

import math
import re
from collections.abc import Mapping

# in names; others are losses, correlations ...
SHARES = re.compile(r"(^|_)(accuracy|precision|recall|f1|exact_match|mrr|map|ndcg)(_|$)")
THRESHOLDS = re.compile(r"^threshold(_|$)|_threshold$")


def is_share(name: str) -> bool:
    """Returns whether a metric of this name, or under this heading ("exact match"), is a share of right answers from 0
    to 1.
    """
    words = name.lower().replace(" ", "_")
    return bool(SHARES.search(words)) and not THRESHOLDS.search(words)


def shown(name: str, value: float, digits: int = 4) -> str:
    """Returns the value of metric `name`: `89.20 %`, a number with so many decimals (a step: none), or "undefined"."""
    if math.isnan(value):
        return "undefined"
    return f"{100.0 * value:.2f} %" if is_share(name) else f"{value:.{0 if name == 'step' else digits}f}"


def shown_difference(name: str, value: float) -> str:
    """Returns a difference between two values of a metric with its sign; that of shares in percentage points."""
    return f"{100.0 * value:+.2f} points" if is_share(name) else f"{value:+.4f}"


def metric_lines(metrics: Mapping[str, float], between: str = "\n") -> str:
    """Returns `name = value` of each metric, each in a line by default."""
    return between.join(f"{name} = {shown(name, value, 5)}" for name, value in metrics.items())
