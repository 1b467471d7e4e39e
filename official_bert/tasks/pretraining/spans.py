"""SpanBERT's pre-training (Joshi et al. 2020): masked words, also predicted from the tokens beside their span."""

import keras

from official_bert.models.span_boundary import SpanPretrainer
from official_bert.objectives.masked_lm import MaskedLM
from official_bert.objectives.objective import Objective
from official_bert.objectives.span_boundary import SpanBoundary
from official_bert.tasks.pretraining.masked_words import MaskedWords


class MaskedSpans(MaskedWords):
    """Masked words and span boundaries; FLOPs do not include the span head."""

    @property
    def objectives(self) -> tuple[Objective, ...]:
        return (MaskedLM(), SpanBoundary(factor=self.options.boundary_weight))

    def check(self) -> None:
        super().check()
        if self.config.training.teacher:
            raise ValueError(
                "config.options.boundary_weight: expected 0 beside training.teacher, which has no such head, got "
                f"{self.options.boundary_weight}"
            )

    def build_model(self) -> keras.Model:
        return self._make(SpanPretrainer)
