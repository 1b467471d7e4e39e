"""The span boundary objective of SpanBERT (Joshi et al. 2020, 3.2): it predicts masked words from the rows beside their
span.
"""

import dataclasses
from typing import Any

import tensorflow as tf
from jaxtyping import Float

from official_bert.layers.heads import LONGEST_SPAN, places_in_spans
from official_bert.objectives.cross_entropy import CrossEntropy, Predicted
from official_bert.objectives.losses import prediction_weights
from official_bert.objectives.objective import Batch, Outputs


@dataclasses.dataclass(frozen=True)
class SpanBoundary(CrossEntropy):
    """Predicts the first words of each masked span, at most `LONGEST_SPAN`."""

    name: str = "boundary"

    def predicted(self, outputs: Outputs, batch: Batch) -> Predicted:
        return outputs["boundary_logits"], batch["masked_lm_ids"]

    def place_weights(self, batch: Batch) -> Float[Any, "B P"]:
        _, _, places = places_in_spans(batch["masked_lm_positions"], batch["masked_lm_weights"])
        return prediction_weights(batch) * tf.cast(places < LONGEST_SPAN, tf.float32)
