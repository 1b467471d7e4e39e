"""Losses of a student on its teacher's outputs in pre-training: word probabilities, last states (Sanh et al. 2019), or
relations in the last layer (Wang et al. 2021).
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from official_bert.layers.attention_mask import make_attention_mask
from official_bert.models.pretrainer import OF_RELATIONS
from official_bert.objectives.distillation_losses import cosine_distance, divergence, relation_divergence
from official_bert.objectives.distilled import COLUMN, TeacherTargets, times
from official_bert.objectives.losses import Fraction, prediction_weights, token_weights
from official_bert.objectives.objective import Batch, Fractions, Outputs, Weights

OUTPUTS = {"answers": ("mlm_logits",), "states": ("states",), "relations": OF_RELATIONS}  # of the models compared


@dataclasses.dataclass(frozen=True, kw_only=True)
class WordTargets(TeacherTargets):
    """The losses on words, states and relations whose factor is not 0."""

    states: float = 0.0
    relations: float = 0.0
    relation_heads: int = 1

    @property
    def names(self) -> tuple[str, ...]:  # type: ignore[override]
        return tuple(name for name in OUTPUTS if getattr(self, name))

    def add_teacher_outputs(self, batch: Batch) -> Batch:
        if self.teacher is None:
            return batch
        model: Any = self.teacher.model
        answer = model.observe if self.states or self.relations else model
        outputs = answer(dict(batch), training=False)
        read = [output for name in self.names for output in OUTPUTS[name]]
        return dict(batch) | {COLUMN + name: tf.stop_gradient(outputs[name]) for name in read}

    def weights(self, batch: Batch) -> Weights:
        """Returns the number of predictions for answers, and of tokens for states and relations."""
        return {
            name: tf.reduce_sum(prediction_weights(batch) if name == "answers" else token_weights(batch))
            for name in self.names
        }

    def losses(self, outputs: Outputs, batch: Batch) -> Fractions:
        compare: dict[str, Callable[[Outputs, Batch], Fraction]] = {
            "answers": self._answers,
            "states": self._states,
            "relations": self._relations,
        }
        return {name: times(getattr(self, name), compare[name](outputs, batch)) for name in self.names}

    def _answers(self, outputs: Outputs, batch: Batch) -> Fraction:
        weights = prediction_weights(batch)
        return divergence(outputs["mlm_logits"], batch["teacher_mlm_logits"], weights, self.temperature)

    def _states(self, outputs: Outputs, batch: Batch) -> Fraction:
        return cosine_distance(outputs["states"], batch["teacher_states"], token_weights(batch))

    def _relations(self, outputs: Outputs, batch: Batch) -> Fraction:
        """Each token is related to those of its row or, of packed rows, of its instance: bool [B,1,1 or S,S]."""
        visible = make_attention_mask(batch["input_mask"], batch.get("instance_ids"))
        each = [
            relation_divergence(outputs[name], batch[COLUMN + name], token_weights(batch), visible, self.relation_heads)
            for name in OF_RELATIONS
        ]
        return tf.add_n([total for total, _ in each]), each[0][1]
