"""Next-sentence prediction (paper 3.1, task 2), or the order of two segments (ALBERT 3.1)."""

import dataclasses
from typing import Any

from jaxtyping import Float

from official_bert.objectives.cross_entropy import CrossEntropy, Predicted
from official_bert.objectives.objective import Batch, Outputs


@dataclasses.dataclass(frozen=True)
class NextSentence(CrossEntropy):
    """Predicts whether the second segment follows the first (`nsp`), or the order of the two (`sop`)."""

    name: str = "nsp"

    def predicted(self, outputs: Outputs, batch: Batch) -> Predicted:
        """Returns logits [B,2], or [B,K,2] for packed rows, and their labels."""
        labels = batch["next_sentence_labels"]
        return outputs["nsp_logits"], labels if "instance_weights" in batch else labels[:, 0]

    def place_weights(self, batch: Batch) -> Float[Any, "B ..."]:
        weights = batch["example_weights"]
        return batch["instance_weights"] * weights[:, None] if "instance_weights" in batch else weights
