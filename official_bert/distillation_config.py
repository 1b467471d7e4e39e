"""The configuration of distillation: what a student learns from a teacher, and how much each part of it counts."""

import dataclasses
from typing import Literal

NAME = "config.training.distillation"


@dataclasses.dataclass(frozen=True, kw_only=True)
class DistillationConfig:
    """The parts of the loss of a student, and what is done with the answers of `training.teacher` (docs/distillation.md)."""

    temperature: float = 2.0  # divides the logits of both; the divergence is multiplied by its square (Hinton et al. 2015)
    labels: float = 0.5  # factor of the loss of the labels, or of masked words
    answers: float = 0.5  # of the divergence of the student's answers from the teacher's
    states: float = 0.0  # of 1 - the cosine of both models' last states (DistilBERT): pre-training, models of one width
    relations: float = 0.0  # of the divergence of the relations in the last layer (MiniLM v2): pre-training, models of any size
    relation_heads: int = 0  # into which queries, keys and values are divided for that; 0: as many as the student's heads
    # A task's answers are kept, computed once, or computed at each step; auto: kept if there is room. Masked words are computed.
    keep: Literal["auto", "kept", "computed"] = "auto"
    kept_gigabytes: float = 4.0  # room for kept answers
    student_layers: str | tuple[int, ...] = ""  # layers of the teacher, from 0, as 0,2,4: the student begins with them; "": it does not

    def __post_init__(self):
        if not 0.0 < self.temperature < float("inf"):
            raise ValueError(f"{NAME}.temperature: expected a number above 0, got {self.temperature}")
        for key in ("labels", "answers", "states", "relations", "relation_heads", "kept_gigabytes"):
            if not 0 <= getattr(self, key) < float("inf"):
                raise ValueError(f"{NAME}.{key}: expected at least 0, got {getattr(self, key)}")
        if not self.of_teacher:
            raise ValueError(f"{NAME}.answers: expected answers, states or relations above 0, got 0: nothing would be learned from the "
                             "teacher")
        if self.relation_heads and not self.relations:
            raise ValueError(f"{NAME}.relation_heads: expected relations above 0 beside it, got {self.relation_heads} without")
        self.layers  # noqa: B018 (refuses another list at once)

    @property
    def of_teacher(self) -> tuple[str, ...]:
        """The parts of the loss that compare the student with its teacher."""
        return tuple(key for key in ("answers", "states", "relations") if getattr(self, key))

    @property
    def layers(self) -> tuple[int, ...]:
        """The teacher's layers that the student begins with. Raises ValueError for anything but numbers from 0."""
        parts = self.student_layers.split(",") if isinstance(self.student_layers, str) else [str(part) for part in self.student_layers]
        if parts == [""]:
            return ()
        if not all(part.strip().isdecimal() for part in parts):
            raise ValueError(f"{NAME}.student_layers: expected numbers of layers, from 0, as in 0,2,4, got {self.student_layers!r}")
        return tuple(int(part) for part in parts)

    def check_used(self, teacher: str) -> None:
        """Raises ValueError for a value other than its default without a teacher: it would do nothing."""
        changed = [field.name for field in dataclasses.fields(self) if getattr(self, field.name) != field.default]
        if changed and not teacher:
            raise ValueError(f"{NAME}.{changed[0]}: expected config.training.teacher beside it, got {getattr(self, changed[0])} without; "
                             "it would do nothing")
