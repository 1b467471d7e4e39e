"""Hard negatives: passages that rank high for a query and do not answer it."""

import dataclasses
from collections.abc import Collection, Sequence

import numpy as np


@dataclasses.dataclass(frozen=True, kw_only=True)
class MiningRules:
    """Which passages of a ranking are taken as negatives."""

    first_rank: int = 1  # of passages that do not answer the query
    last_rank: int = 100
    count: int = 5  # negatives of a row
    margin: float | None = None  # by which a negative's score is below the positive's
    relative_margin: float | None = None  # the same as a share of the positive's score
    sample: bool = False  # draw them from the window, instead of its first ones

    def __post_init__(self):
        if not 1 <= self.first_rank <= self.last_rank:
            raise ValueError(f"--first_rank, --last_rank: expected ranks from 1 in this order, got {self.first_rank} and {self.last_rank}")
        if self.count < 1:
            raise ValueError(f"--negatives: expected at least 1, got {self.count}")
        if self.relative_margin is not None and not 0.0 <= self.relative_margin < 1.0:
            raise ValueError(f"--relative_margin: expected a share from 0 to below 1, got {self.relative_margin}")
        if self.margin is not None and self.relative_margin is not None:
            raise ValueError("--margin, --relative_margin: expected one of them")

    def highest(self, positive: float) -> float:
        """Returns the highest score of a negative beside a positive of this score."""
        if self.relative_margin is not None:
            return positive - abs(positive) * self.relative_margin
        return np.inf if self.margin is None else positive - self.margin


def in_window(ranking: Sequence[int], scores: Sequence[float], answers: Collection[int], positive: float, rules: MiningRules) -> list[int]:
    """Returns the numbers of the passages in the window of ranks that do not answer the query and are far enough from the positive.

    Ranks count the passages that do not answer it: an answer that stands high takes no place.
    """
    wrong = [(number, score) for number, score in zip(ranking, scores) if number >= 0 and number not in answers]
    limit = rules.highest(positive)
    return [number for number, score in wrong[rules.first_rank - 1:rules.last_rank] if score <= limit]


def choose(window: Sequence[int], rules: MiningRules, rng: np.random.Generator) -> list[int]:
    """Returns `rules.count` passages of the window, fewer if it has fewer: its first ones, or random ones in their order."""
    if not rules.sample or len(window) <= rules.count:
        return list(window[:rules.count])
    return [window[place] for place in sorted(rng.choice(len(window), rules.count, replace=False))]
