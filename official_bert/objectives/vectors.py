"""Text embeddings: vectors of related texts lie near each other (Reimers and Gurevych 2019).

B rows, T texts of a row (anchor, positive, negatives), D numbers of a vector.
"""

import dataclasses
from typing import Any

import tensorflow as tf
from jaxtyping import Float

from official_bert.objectives import losses, ranking_losses
from official_bert.objectives.losses import Fraction
from official_bert.objectives.objective import Batch, Fractions, Objective, Outputs, RowValues

IN_GROUPS = ("contrastive", "contrastive_both")  # compare a row with the others of its group


@dataclasses.dataclass(frozen=True)
class NearVectors(Objective):
    """The ranking loss `loss` of `embedding` [B,T,D], summed over the sizes of Matryoshka vectors."""

    loss: str = "contrastive"
    group_size: int = 1
    temperature: float = 1.0
    margin: float = 0.0
    matryoshka: tuple[int, ...] = ()

    @property
    def counter_names(self) -> tuple[str, ...]:
        return ("accuracy",) if self.loss in IN_GROUPS else ()

    def losses(self, outputs: Outputs, batch: Batch) -> Fractions:
        """Returns the loss, or {} if texts are only searched."""
        if not {"scores", "teacher", "text_numbers"} & set(batch):
            return {}
        fractions = [
            self.of_vectors(shortened(outputs["embedding"], size), batch) for size in self.matryoshka or (None,)
        ]
        return {"loss": (tf.add_n([total for total, _ in fractions]), fractions[0][1])}

    def of_vectors(self, vectors: Float[Any, "B T D"], batch: Batch) -> Fraction:
        """Returns the loss (sum, weight) of vectors [B,T,D], of length 1 or sparse."""
        weights = batch["example_weights"]
        cosines = tf.einsum("btd,bd->bt", vectors[:, 1:], vectors[:, 0])  # [B,T-1]
        if "scores" in batch:
            if self.loss == "cosent":
                return ranking_losses.cosent(cosines[:, 0], batch["scores"], weights, self.group_size, self.temperature)
            return losses.squared_error(cosines[:, 0], batch["scores"], weights)
        present = tf.reduce_max(batch["input_mask"][:, 1:], axis=-1) > 0
        if "teacher" in batch:
            function = ranking_losses.margin_mse if self.loss == "margin_mse" else ranking_losses.kl_divergence
            return function(cosines / self.temperature, batch["teacher"], present, weights)
        if self.loss == "triplet":
            return ranking_losses.triplet(cosines, present, weights, self.margin)
        return ranking_losses.contrastive(
            vectors,
            batch["text_numbers"],
            weights,
            self.group_size,
            self.temperature,
            both_directions=self.loss == "contrastive_both",
        )

    def counters(self, outputs: Outputs, batch: Batch) -> Fractions:
        """Returns the share of rows whose own second text is the nearest of the group."""
        if self.loss not in IN_GROUPS or "text_numbers" not in batch:
            return {}
        weights = batch["example_weights"]
        logits_and_labels = ranking_losses.group_logits(
            outputs["embedding"], batch["text_numbers"], weights, self.group_size, self.temperature
        )
        return {"accuracy": losses.accuracy(*logits_and_labels, weights)}

    def predictions(self, outputs: Outputs, batch: Batch) -> RowValues:
        return {"embedding": outputs["embedding"]}


def shortened(vectors: tf.Tensor, size: int | None) -> tf.Tensor:
    """Returns the first `size` numbers of vectors [...,D], scaled to length 1; None returns the vectors unchanged."""
    return vectors if size is None else tf.math.l2_normalize(vectors[..., :size], axis=-1)
