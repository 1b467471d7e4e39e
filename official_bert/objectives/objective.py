"""The losses and metrics of a training step: pure functions of a model's outputs and a batch.

An objective is a value: a frozen dataclass of numbers. It knows no files and no configuration.
"""

import abc
import dataclasses
from collections.abc import Mapping
from typing import Any

import tensorflow as tf
from jaxtyping import Float, Shaped

from official_bert.objectives.losses import Fraction

Batch = Mapping[str, Shaped[Any, "B ..."]]
Outputs = Mapping[str, tf.Tensor]
Fractions = dict[str, Fraction]  # (sum, weight) by name
Weights = dict[str, Float[Any, ""]]
RowValues = dict[str, Shaped[Any, "B ..."]]  # a value for each row of a batch


@dataclasses.dataclass(frozen=True)
class Objective(abc.ABC):
    """One or more losses, and metrics computed with them. B rows."""

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the `losses`, in the order of logs."""
        return ("loss",)

    @property
    def counter_names(self) -> tuple[str, ...]:
        """The names of the `counters`, in their order."""
        return ()

    @property
    def parts(self) -> tuple["Objective", ...]:
        """The objectives that a `Sum` consists of; any other objective is its only part."""
        return (self,)

    @property
    def eval_objective(self) -> "Objective":
        """The objective that evaluation measures: for a student, its own."""
        return self

    @abc.abstractmethod
    def losses(self, outputs: Outputs, batch: Batch) -> Fractions:
        """Returns (sum, weight) for each name, float32; the training loss is the sum over names of sum / weight.

        Returns {} in evaluation if the data have no labels.
        """

    def weights(self, batch: Batch) -> Weights:
        """Returns the weight of each loss from the training batch alone, by default the number of real rows."""
        return {name: tf.reduce_sum(batch["example_weights"]) for name in self.names}

    def counters(self, outputs: Outputs, batch: Batch) -> Fractions:
        """Returns (sum, weight) for each of the cheap metrics (accuracies) that the step computes."""
        return {}

    def predictions(self, outputs: Outputs, batch: Batch) -> RowValues:
        """Returns the outputs by row that the task's `evaluate` and `write` need, [B,...] each."""
        return {}

    def add_teacher_outputs(self, batch: Batch) -> Batch:
        """Returns a training micro-batch with its teacher's outputs, which are computed outside the gradient tape."""
        return batch


@dataclasses.dataclass(frozen=True)
class Sum(Objective):
    """The sum of several objectives, whose losses must have different names."""

    terms: tuple[Objective, ...]

    def __post_init__(self) -> None:
        if len({*self.names}) < len(self.names):
            raise ValueError(f"Sum: expected losses of different names, got {list(self.names)}")

    @property
    def parts(self) -> tuple[Objective, ...]:
        return tuple(part for term in self.terms for part in term.parts)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(name for term in self.terms for name in term.names)

    @property
    def counter_names(self) -> tuple[str, ...]:
        return tuple(name for term in self.terms for name in term.counter_names)

    @property
    def eval_objective(self) -> Objective:
        terms = tuple(term.eval_objective for term in self.terms)
        return self if all(map(lambda one, other: one is other, terms, self.terms)) else Sum(terms)

    def losses(self, outputs: Outputs, batch: Batch) -> Fractions:
        return {name: loss for term in self.terms for name, loss in term.losses(outputs, batch).items()}

    def weights(self, batch: Batch) -> Weights:
        return {name: weight for term in self.terms for name, weight in term.weights(batch).items()}

    def counters(self, outputs: Outputs, batch: Batch) -> Fractions:
        return {name: pair for term in self.terms for name, pair in term.counters(outputs, batch).items()}

    def predictions(self, outputs: Outputs, batch: Batch) -> RowValues:
        """Returns the predictions of all terms; values with the same name are concatenated to [B,terms,...]."""
        values: dict[str, list[tf.Tensor]] = {}
        for term in self.terms:
            for name, value in term.predictions(outputs, batch).items():
                values.setdefault(name, []).append(value)
        return {name: each[0] if len(each) == 1 else tf.concat(each, axis=1) for name, each in values.items()}

    def add_teacher_outputs(self, batch: Batch) -> Batch:
        for term in self.terms:
            batch = term.add_teacher_outputs(batch)
        return batch


def is_own(objective: Objective) -> bool:
    """Returns whether any part of an objective comes from outside this package."""
    return any(not type(part).__module__.startswith("official_bert.") for part in objective.parts)
