"""The configuration of distillation: what a student learns from a teacher, and how much each part of it counts."""

import dataclasses
from typing import Literal

from official_bert.fields import Natural, NonNegative, Positive, check_fields, only_with

WHERE = "config.training.distillation."


@dataclasses.dataclass(frozen=True, kw_only=True)
class DistillationConfig:
    """The parts of the loss of a student, and what is done with the answers of `training.teacher` (docs/distillation.md)."""

    temperature: Positive = 2.0
    """Divides the logits of both; the divergence is multiplied by its square (Hinton et al. 2015)."""
    labels: NonNegative = 0.5
    """Factor of the loss of the labels, or of masked words."""
    answers: NonNegative = 0.5
    """Factor of the divergence of the student's answers from the teacher's."""
    states: NonNegative = 0.0
    """Factor of 1 - the cosine of both models' last states (DistilBERT): pre-training, models of one width."""
    relations: NonNegative = 0.0
    """Factor of the divergence of the relations in the last layer (MiniLM v2): pre-training, models of any size."""
    relation_heads: Natural = only_with(0, "relations")
    """Heads into which queries, keys and values are divided for the relations; 0: the student's heads."""
    keep: Literal["auto", "kept", "computed"] = "auto"
    """A task's answers are kept, computed once, or computed at each step; auto: kept if there is room. Answers for
    masked words are always computed."""
    kept_gigabytes: NonNegative = 4.0
    """Room for kept answers."""
    student_layers: str | tuple[int, ...] = ""
    """Layers of the teacher, from 0, as in 0,2,4, with which the student begins; empty: with none."""

    def __post_init__(self):
        check_fields(self, WHERE)
        if not self.of_teacher:
            raise ValueError(f"{WHERE}answers: expected answers, states or relations above 0, got 0: nothing would be learned from the "
                             "teacher")
        self.layers  # noqa: B018 (refuses another list at once)

    @property
    def of_teacher(self) -> tuple[str, ...]:
        """The parts of the loss that compare the student with its teacher."""
        return tuple(key for key in ("answers", "states", "relations") if getattr(self, key))

    @property
    def observes(self) -> bool:
        """Whether models are compared by their last layers."""
        return bool(self.states or self.relations)

    @property
    def layers(self) -> tuple[int, ...]:
        """The teacher's layers that the student begins with. Raises ValueError for anything but numbers from 0."""
        parts = self.student_layers.split(",") if isinstance(self.student_layers, str) else [str(part) for part in self.student_layers]
        if parts == [""]:
            return ()
        if not all(part.strip().isdecimal() for part in parts):
            raise ValueError(f"{WHERE}student_layers: expected numbers of layers, from 0, as in 0,2,4, got {self.student_layers!r}")
        return tuple(int(part) for part in parts)
