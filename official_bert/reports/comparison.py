"""Two models' answers to the same rows: the difference of their scores with its interval, and whether one errs on more
rows.

N rows.
"""

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping

import numpy as np
import scipy.stats

from official_bert.reports.comparable import CONFIDENCE, ComparableAnswers

RESAMPLES = 1000  # of the bootstrap of a comparison
CARD_RESAMPLES = 200  # of that of each finished run, which does not wait for it
SHARES_OF_ROWS = ("accuracy", "exact_match")  # metrics that are the share of rows with the right answer


@dataclasses.dataclass(frozen=True)
class Difference:
    """A metric of two models, and the interval of the second's minus the first's."""

    metric: str
    first: float
    second: float
    low: float
    high: float


def check_same_rows(first: ComparableAnswers, second: ComparableAnswers) -> None:
    """Raises ValueError unless both answer the same rows, in one order, with the same right answers."""
    if len(first.questions) != len(second.questions):
        raise ValueError(f"expected the same rows, got {len(first.questions)} and {len(second.questions)}")
    for field, firsts, seconds in (
        ("text", first.questions, second.questions),
        ("right answer", first.gold, second.gold),
    ):
        for row, (one, other) in enumerate(zip(firsts, seconds)):
            if one != other:
                raise ValueError(
                    f"expected the same rows, got another {field} in row {row}: {one!r:.60} and {other!r:.60}"
                )


def measure_differences(first: ComparableAnswers, second: ComparableAnswers) -> Iterator[Difference]:
    """Yields each metric that both have, with the interval that a paired bootstrap gives its difference (Efron &
    Tibshirani 1993, 13).

    Rows are drawn with replacement, the same for both models, because a row that is hard for one is often hard for the
    other: the interval is then narrower than that of two separate scores. The percentile interval is taken: the
    corrected ones are not defined if no resample differs. NaN, both ends, if a metric is not defined in most resamples,
    and if no resample differs. The sum of losses is left out if one model has others.
    """
    rows = np.arange(len(first.questions))
    firsts, seconds = first.measure(rows), second.measure(rows)
    names = [name for name in firsts if name in seconds and (name != "loss" or firsts.keys() == seconds.keys())]

    def differences(drawn: np.ndarray) -> dict[str, float]:
        drawn_firsts, drawn_seconds = first.measure(drawn), second.measure(drawn)
        return {name: drawn_seconds[name] - drawn_firsts[name] for name in names}

    intervals = bootstrap_intervals(differences, len(rows), RESAMPLES)
    for name in names:
        yield Difference(name, firsts[name], seconds[name], *intervals.get(name, (math.nan, math.nan)))


def mcnemar(first: np.ndarray, second: np.ndarray) -> tuple[int, int, float]:
    """Returns the rows that only the first answers rightly, those that only the second does, and the exact p-value
    (McNemar 1947).

    Two-sided: the probability that equally good models differ by as many rows or more; 1 if no row is answered rightly
    by one alone. `first` and `second` are bool [N].
    """
    only_first, only_second = int(np.sum(first & ~second)), int(np.sum(second & ~first))
    count = only_first + only_second
    return only_first, only_second, float(scipy.stats.binomtest(only_first, count, 0.5).pvalue) if count else 1.0


def differing_rows(first: ComparableAnswers, second: ComparableAnswers) -> list[dict]:
    """Returns the rows with different answers: `row` (from 0), `text`, `gold`, `first`, `second`."""
    return [
        {"row": row, "text": first.questions[row], "gold": first.gold[row], "first": one, "second": other}
        for row, (one, other) in enumerate(zip(first.answers, second.answers))
        if one != other
    ]


def measure_interval(answers: ComparableAnswers) -> dict[str, tuple[float, float]]:
    """Returns the interval of each metric: of the share of rows with a right answer the exact one (Clopper & Pearson
    1934), of others the percentile interval of a bootstrap over the rows.

    NaN if a metric is not defined in most resamples, or is the same in all: that says nothing about other rows.
    """
    intervals = bootstrap_intervals(answers.measure, len(answers.questions), CARD_RESAMPLES)
    if (right := answers.right) is None:
        return intervals
    measured = answers.measure(np.arange(len(right)))
    exact = tuple(scipy.stats.binomtest(int(right.sum()), len(right)).proportion_ci(CONFIDENCE))
    return intervals | {
        name: exact for name in SHARES_OF_ROWS if name in measured and math.isclose(measured[name], float(right.mean()))
    }


def bootstrap_intervals(
    measure: Callable[[np.ndarray], Mapping[str, float]], count: int, resamples: int
) -> dict[str, tuple[float, float]]:
    """Returns the percentile interval of each number that `measure` gives for `count` rows drawn with replacement; {}
    for one row.

    Values that are not defined (a correlation of equal scores) do not count; without any in half of the resamples, and
    if all are equal, both ends are NaN.
    """
    rng, tail = np.random.default_rng(0), (1.0 - CONFIDENCE) / 2.0
    samples = [measure(rng.integers(count, size=count)) for _ in range(resamples)] if count > 1 else []
    intervals = {}
    for name in samples[0] if samples else ():
        values = np.array([sample[name] for sample in samples])
        finite_values = values[np.isfinite(values)]
        tells = 2 * len(finite_values) > len(values) and not np.allclose(finite_values, finite_values[0], atol=0.0)
        low, high = np.quantile(finite_values, [tail, 1.0 - tail]) if tells else (math.nan, math.nan)
        intervals[name] = float(low), float(high)
    return intervals
