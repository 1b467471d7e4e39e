"""Masked LM (paper 3.1, task 1), and the left-to-right objective (paper 5.1), which predicts the next tokens."""

import dataclasses
from typing import Any

from jaxtyping import Float

from official_bert.objectives.cross_entropy import CrossEntropy, Predicted
from official_bert.objectives.losses import prediction_weights
from official_bert.objectives.objective import Batch, Outputs


@dataclasses.dataclass(frozen=True)
class MaskedLM(CrossEntropy):
    """Predicts the words at `masked_lm_positions`; the loss is `mlm`."""

    name: str = "mlm"

    def predicted(self, outputs: Outputs, batch: Batch) -> Predicted:
        return outputs["mlm_logits"], batch["masked_lm_ids"]

    def place_weights(self, batch: Batch) -> Float[Any, "B P"]:
        return prediction_weights(batch)


@dataclasses.dataclass(frozen=True)
class NextToken(MaskedLM):
    """Predicts the token after each token; the loss is `next_token`."""

    name: str = "next_token"
