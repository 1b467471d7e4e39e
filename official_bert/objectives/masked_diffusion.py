"""Masked diffusion (Sahoo et al. 2024; Nie et al. 2025): a masked LM whose masking rate is drawn for each row.

The rate t of a row is uniform in (0, 1], each maskable token is masked with probability t, and the loss of a masked
token is weighted by 1 / t. Averaged over rates and masks, it is an upper bound of -log p(row), so this masked LM is a
language model.

B rows, P places.
"""

import dataclasses
import math
from typing import Any

import numpy as np
import tensorflow as tf
from jaxtyping import Float

from official_bert.objectives import losses
from official_bert.objectives.losses import Fraction
from official_bert.objectives.objective import Batch, Objective, Outputs, RowValues

LEAST_RATE = 1e-3  # so that 1 / t stays below 1,000


@dataclasses.dataclass(frozen=True)
class MaskedDiffusion(Objective):
    """The upper bound of the negative log-likelihood, in nats for each maskable token.

    A batch has `masked_lm_ids`, `masked_lm_weights` (1 if masked, else 0) and `maskable` (1 if the token could have
    been masked), [B,P] each, and `masking_rates` t [B]. A row without masked tokens counts, with the loss 0.
    """

    names = ("loss",)
    counter_names = ("mlm_accuracy",)

    def losses(self, outputs: Outputs, batch: Batch) -> dict[str, Fraction]:
        rows = batch["example_weights"][:, None]
        return {
            "loss": losses.masked_diffusion(
                outputs["mlm_logits"],
                batch["masked_lm_ids"],
                batch["masked_lm_weights"] * rows,
                batch["masking_rates"],
                batch["maskable"] * rows,
            )
        }

    def weights(self, batch: Batch) -> dict[str, Float[Any, ""]]:
        return {"loss": tf.reduce_sum(batch["maskable"] * batch["example_weights"][:, None])}

    def counters(self, outputs: Outputs, batch: Batch) -> dict[str, Fraction]:
        """Returns the share of masked words that have the largest logit."""
        hidden = batch["masked_lm_weights"] * batch["example_weights"][:, None]
        return {"mlm_accuracy": losses.accuracy(outputs["mlm_logits"], batch["masked_lm_ids"], hidden)}

    def predictions(self, outputs: Outputs, batch: Batch) -> RowValues:
        """Returns `bound`: the loss and the number of maskable tokens of each row, float32 [B,2]."""
        logits = tf.cast(outputs["mlm_logits"], tf.float32)
        each = losses.negative_log_likelihoods(logits, batch["masked_lm_ids"]) * batch["masked_lm_weights"]
        bound = tf.reduce_sum(each, axis=1) / batch["masking_rates"]
        return {"bound": tf.stack([bound, tf.reduce_sum(batch["maskable"], axis=1)], axis=1)}


def bound_of(bounds: np.ndarray) -> dict[str, float]:
    """Returns `bound`, in nats for each token, and `perplexity`; `bounds` [N,2] are the losses and token counts of
    rows.
    """
    total, tokens = bounds.sum(axis=0, dtype=np.float64)
    bound = float(total / max(tokens, 1.0))
    return {"bound": bound, "perplexity": math.exp(min(bound, 700.0))}
