"""Chooses hard negatives from a ranking."""

import dataclasses
from collections.abc import Collection, Sequence

import numpy as np

from official_bert.fields import Count, ShareBelow1, check_fields


@dataclasses.dataclass(frozen=True, kw_only=True)
class MiningRules:
    """Rules that choose the negatives from a ranking."""

    first_rank: Count = 1
    """First rank of the window, among passages that do not answer the query."""
    last_rank: Count = 100
    """Last rank of the window."""
    negatives: Count = 5
    """Negatives of a row."""
    margin: float | None = None
    """Least difference between the positive's score and a negative's."""
    relative_margin: ShareBelow1 | None = None
    """The same as a share of the positive's score."""
    sample: bool = False
    """Draw the negatives from the window, instead of taking its first passages."""

    def __post_init__(self) -> None:
        check_fields(self, "--")
        if self.first_rank > self.last_rank:
            raise ValueError(
                f"--first_rank, --last_rank: expected ranks in this order, got {self.first_rank} and {self.last_rank}"
            )
        if self.margin is not None and self.relative_margin is not None:
            raise ValueError("--margin, --relative_margin: expected one of them, got both")

    def highest(self, positive: float) -> float:
        """Returns the highest score that a negative may have if the positive has this score."""
        if self.relative_margin is not None:
            return positive - abs(positive) * self.relative_margin
        return np.inf if self.margin is None else positive - self.margin


def in_window(
    ranking: Sequence[int], scores: Sequence[float], answers: Collection[int], positive: float, rules: MiningRules
) -> list[int]:
    """Returns the passages in the window of ranks that do not answer the query and score far enough below the positive.

    Ranks count only passages that do not answer the query.
    """
    wrong = [(number, score) for number, score in zip(ranking, scores) if number >= 0 and number not in answers]
    limit = rules.highest(positive)
    return [number for number, score in wrong[rules.first_rank - 1 : rules.last_rank] if score <= limit]


def choose(window: Sequence[int], rules: MiningRules, rng: np.random.Generator) -> list[int]:
    """Returns up to `rules.negatives` passages of the window: its first ones, or random ones in their order."""
    if not rules.sample or len(window) <= rules.negatives:
        return list(window[: rules.negatives])
    return [window[place] for place in sorted(rng.choice(len(window), rules.negatives, replace=False))]
