"""What a task gives so that its answers can be compared."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence

import numpy as np

CONFIDENCE = 0.95  # of intervals


@dataclasses.dataclass(frozen=True, kw_only=True)
class ComparableAnswers:
    """A model's answers to rows, and what they are measured by."""

    questions: Sequence[str]  # the texts of each row
    gold: Sequence[str]
    answers: Sequence[str]
    measure: Callable[[np.ndarray], Mapping[str, float]]  # numbers of rows, which may repeat -> metrics
    probabilities: Sequence[Mapping[str, float]] = ()  # of each row, by label; none for other answers
    right: np.ndarray | None = None  # whether each answer is right, bool [N]; None if answers are more or less right
