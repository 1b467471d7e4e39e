"""Two models' answers to the same rows: the difference of their scores with its interval, and whether one errs on more rows.

N rows.
"""

import dataclasses
import math
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np
import scipy.stats

RESAMPLES = 1000  # of the bootstrap of a comparison
CARD_RESAMPLES = 200  # of that of each finished run, which does not wait for it
CONFIDENCE = 0.95


@dataclasses.dataclass(frozen=True, kw_only=True)
class ComparableAnswers:
    """A model's answers to rows, and what they are measured by."""

    questions: Sequence[str]  # the texts of each row
    gold: Sequence[str]
    answers: Sequence[str]
    measure: Callable[[np.ndarray], Mapping[str, float]]  # numbers of rows, which may repeat -> metrics
    probabilities: Sequence[Mapping[str, float]] = ()  # of each row, by label; none for other answers
    right: np.ndarray | None = None  # whether each answer is right, bool [N]; None if answers are more or less right


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
    for what, ours, theirs in (("text", first.questions, second.questions), ("right answer", first.gold, second.gold)):
        for row, (our_row, their_row) in enumerate(zip(ours, theirs)):
            if our_row != their_row:
                raise ValueError(f"expected the same rows, got another {what} in row {row}: {our_row!r:.60} and {their_row!r:.60}")


def measure_differences(first: ComparableAnswers, second: ComparableAnswers, resamples: int = RESAMPLES,
                        seed: int = 0) -> Iterator[Difference]:
    """Yields each metric that both have, with the interval that a paired bootstrap gives its difference (Efron & Tibshirani 1993, 13).

    Rows are drawn with replacement, the same for both models, because a row that is hard for one is often hard for the other: the
    interval is then narrower than that of two separate scores. The percentile interval is taken: the corrected ones are not defined if
    no resample differs. NaN, both ends, if a metric is not defined in most resamples.
    """
    rows = np.arange(len(first.questions))
    ours, theirs = first.measure(rows), second.measure(rows)
    for name in ours:
        if name in theirs:
            def difference(drawn: np.ndarray, name: str = name) -> float:
                numbers = drawn.astype(np.int64)
                return second.measure(numbers)[name] - first.measure(numbers)[name]
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", scipy.stats.DegenerateDataWarning)  # two models with equal answers
                drawn = scipy.stats.bootstrap((rows,), difference, n_resamples=resamples, method="percentile", vectorized=False,
                                              random_state=np.random.default_rng(seed)).bootstrap_distribution \
                    if len(rows) > 1 else np.array([math.nan])
            yield Difference(name, ours[name], theirs[name], *_percentile_interval(drawn))


def mcnemar(first: np.ndarray, second: np.ndarray) -> tuple[int, int, float]:
    """Returns the rows that only the first answers rightly, those that only the second does, and the exact p-value (McNemar 1947).

    Two-sided: the probability that equally good models differ by as many rows or more; 1 if no row is answered rightly by one alone.
    `first` and `second` are bool [N].
    """
    only_first, only_second = int(np.sum(first & ~second)), int(np.sum(second & ~first))
    count = only_first + only_second
    return only_first, only_second, float(scipy.stats.binomtest(only_first, count, 0.5).pvalue) if count else 1.0


def differing_rows(first: ComparableAnswers, second: ComparableAnswers) -> list[dict]:
    """Returns the rows with different answers: `row` (from 0), `text`, `gold`, `first`, `second`."""
    return [{"row": row, "text": first.questions[row], "gold": first.gold[row], "first": one, "second": other}
            for row, (one, other) in enumerate(zip(first.answers, second.answers)) if one != other]


def measure_interval(answers: ComparableAnswers, resamples: int = CARD_RESAMPLES, seed: int = 0) -> dict[str, tuple[float, float]]:
    """Returns the percentile interval of each metric, from a bootstrap over the rows; NaN if a metric is not defined in most resamples."""
    rng, count = np.random.default_rng(seed), len(answers.questions)
    drawn = [answers.measure(rng.integers(count, size=count)) for _ in range(resamples)] if count > 1 else []
    return {name: _percentile_interval(np.array([one[name] for one in drawn])) for name in (drawn[0] if drawn else ())}


def _percentile_interval(drawn: np.ndarray) -> tuple[float, float]:
    """The interval of a bootstrap's values, without those that are not defined (a correlation of equal scores)."""
    finite_values, tail = drawn[np.isfinite(drawn)], (1.0 - CONFIDENCE) / 2.0
    if 2 * len(finite_values) <= len(drawn):
        return math.nan, math.nan
    low, high = np.quantile(finite_values, [tail, 1.0 - tail])
    return float(low), float(high)
