"""Distillation (Hinton et al. 2015): a student learns its own objective and its teacher's outputs."""

import dataclasses
import functools
import hashlib

import keras
import numpy as np

from official_bert.models.encoder import weights_by_name
from official_bert.objectives.losses import Fraction
from official_bert.objectives.objective import Batch, Fractions, Objective, Outputs, RowValues, Weights

COLUMN = "teacher_"  # before the name of a teacher's output in a batch
LABELS = "labels"  # the name of a student's own loss, if that has none but `loss`


@dataclasses.dataclass(frozen=True, eq=False)
class Teacher:
    """A model with fixed weights, from which a student learns."""

    model: keras.Model

    @functools.cached_property
    def digest(self) -> str:
        """The SHA-256 of the teacher's weights, which do not change."""
        digest = hashlib.sha256()
        for name, variable in sorted(weights_by_name(self.model).items()):
            digest.update(name.encode() + np.asarray(variable.value).tobytes())
        return digest.hexdigest()


@dataclasses.dataclass(frozen=True, kw_only=True)
class TeacherTargets(Objective):
    """Losses on the teacher's outputs in a batch; `answers` is the factor of the loss on its answers."""

    teacher: Teacher | None = None
    answers: float = 0.5
    temperature: float = 2.0
    names = ("answers",)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Distilled(Objective):
    """A student's own objective, multiplied by `labels`, plus the losses on its teacher's outputs."""

    own: Objective
    targets: TeacherTargets
    labels: float = 0.5

    @property
    def names(self) -> tuple[str, ...]:
        return (*map(_beside_teacher, self.own.names), *self.targets.names)

    @property
    def parts(self) -> tuple[Objective, ...]:
        return (*self.own.parts, self.targets)

    @property
    def counter_names(self) -> tuple[str, ...]:
        return self.own.counter_names

    @property
    def eval_objective(self) -> Objective:
        return self.own

    def losses(self, outputs: Outputs, batch: Batch) -> Fractions:
        own = {
            _beside_teacher(name): times(self.labels, loss) for name, loss in self.own.losses(outputs, batch).items()
        }
        return own | self.targets.losses(outputs, batch)

    def weights(self, batch: Batch) -> Weights:
        own = {_beside_teacher(name): weight for name, weight in self.own.weights(batch).items()}
        return own | self.targets.weights(batch)

    def counters(self, outputs: Outputs, batch: Batch) -> Fractions:
        return self.own.counters(outputs, batch)

    def predictions(self, outputs: Outputs, batch: Batch) -> RowValues:
        return self.own.predictions(outputs, batch)

    def add_teacher_outputs(self, batch: Batch) -> Batch:
        return self.targets.add_teacher_outputs(batch)


def _beside_teacher(name: str) -> str:
    """The name of an own loss among those of a student."""
    return LABELS if name == "loss" else name


def times(factor: float, loss: Fraction) -> Fraction:
    """Returns a loss (sum, weight) multiplied by a factor."""
    return factor * loss[0], loss[1]
