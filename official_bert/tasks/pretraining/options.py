"""What can be chosen in pre-training: lengths, objective, masks."""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any, Literal

from official_bert.config import check_used, merge, refuse_unused
from official_bert.data.pretraining.masking import MaskingConfig
from official_bert.models.replaced_tokens import EmbeddingSharing

# Defaults of an objective, if they are others than those of the options: 85 % of the places become [MASK] and the rest stay.
BY_OBJECTIVE: Mapping[str, Mapping[str, Any]] = {"replaced_tokens": {"sentence_loss": False, "masking": {
    "strategy": "token_draws", "mask_rate": 0.85, "keep_rate": 0.15, "random_rate": 0.0}}}
OF_REPLACED_TOKENS = ("generator_width", "generator_layers", "embedding_sharing", "adds_first", "replaced_weight")
OF_ALL_PHASES = ("sentence_task", "sentence_loss", "objective", "first_weights", "boundary_weight",
                 *OF_REPLACED_TOKENS)  # phases train one model


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    """The lengths of the records, the task of their second segments, what is learned, and how records without masks are masked."""

    max_seq_length: int = 128
    max_predictions_per_seq: int = 20
    # As --sentence_task of the records: nsp (BERT), sop (ALBERT: order) or none (RoBERTa: words alone, no head for sentences).
    sentence_task: Literal["nsp", "sop", "none"] = "nsp"
    sentence_loss: bool = True  # False: the second segments stay, but no head learns their task (the paper's "No NSP")
    # next_token: every token is predicted from those before it (paper 5.1), with model.attention left_to_right. replaced_tokens: which
    # tokens are guesses of a small model that learns masked words beside (ELECTRA); it has other defaults, `BY_OBJECTIVE`.
    objective: Literal["masked_lm", "next_token", "replaced_tokens"] = "masked_lm"
    masking: MaskingConfig = dataclasses.field(default_factory=MaskingConfig)  # of records made with --masking=dynamic
    # Of replaced_tokens. The generator's hidden size, heads and feed-forward network, and its layers, as shares of the model's.
    generator_width: float = 0.25
    generator_layers: float = 1.0
    # shared: one set of tables (ELECTRA); disentangled: the model adds differences to the generator's (DeBERTa v3); separate: one each.
    embedding_sharing: EmbeddingSharing = "shared"
    adds_first: bool = False  # the row of [CLS] is added to each before the head that tells replaced tokens (DeBERTa v3)
    replaced_weight: float = 50.0  # of the loss of replaced tokens, that of the generator's words being 1
    # Factor of the loss of SpanBERT's boundary objective (masked words are predicted from the rows beside their span, too); 0: none.
    boundary_weight: float = 0.0
    # Several instances share a row of max_seq_length tokens (data/pretraining/packing), so batch_size counts fuller rows.
    pack: bool = False
    max_instances_per_row: int = 8  # with pack
    # neighbours: heads of the first layer begin by looking at the tokens beside (models/first_weights), all else at random.
    first_weights: Literal["random", "neighbours"] = "random"

    def __post_init__(self):
        if self.max_instances_per_row < 1:
            raise ValueError(f"max_instances_per_row: expected at least 1, got {self.max_instances_per_row}")
        if self.max_predictions_per_seq < 1 and self.objective != "next_token":
            raise ValueError(f"max_predictions_per_seq: expected at least 1, got {self.max_predictions_per_seq}")
        for name, most in (("generator_width", 1.0), ("generator_layers", 1.0), ("replaced_weight", math.inf)):
            if not 0 < (value := getattr(self, name)) <= most:
                raise ValueError(f"{name}: expected more than 0{' and at most 1' if most == 1 else ''}, got {value}")
        if not 0 <= self.boundary_weight < math.inf:
            raise ValueError(f"boundary_weight: expected at least 0, got {self.boundary_weight}")
        refuse_unused("config.options.boundary_weight", self.boundary_weight, 0.0, "objective masked_lm and another masking.strategy than "
                      "token_draws, whose places are in no order", self.objective == "masked_lm" and self.masking.strategy != "token_draws")
        check_used(self, OF_REPLACED_TOKENS, "objective replaced_tokens", self.objective == "replaced_tokens")
        if self.masking.strategy == "token_draws" and self.objective == "next_token":
            raise ValueError("masking.strategy: expected another one beside objective next_token, which masks nothing, got token_draws")


def with_defaults(values: Mapping[str, Any]) -> dict[str, Any]:
    """Returns options with the defaults of their objective."""
    return merge(BY_OBJECTIVE.get(str(values.get("objective")), {}), values)
