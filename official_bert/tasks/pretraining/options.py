"""What can be chosen in pre-training: lengths, objective, masks."""

import dataclasses
from collections.abc import Mapping
from typing import Any, Literal

from official_bert.config import merge
from official_bert.data.pretraining.masking import MaskingConfig
from official_bert.fields import Count, NonNegative, Positive, PositiveShare, check_fields, check_used, only_with
from official_bert.model_config import EmbeddingSharing

# Defaults of an objective, if they are others than those of the options: 85 % of the places become [MASK] and the rest
# stay.
BY_OBJECTIVE: Mapping[str, Mapping[str, Any]] = {
    "masked_diffusion": {"sentence_loss": False},
    "replaced_tokens": {
        "sentence_loss": False,
        "masking": {"strategy": "token_draws", "mask_rate": 0.85, "keep_rate": 0.15, "random_rate": 0.0},
    },
}
REPLACED_TOKENS = ("objective", "replaced_tokens")
# Phases train one model.
OF_ALL_PHASES = (
    "sentence_task",
    "sentence_loss",
    "objective",
    "first_weights",
    "boundary_weight",
    "generator_width",
    "generator_layers",
    "embedding_sharing",
    "adds_first",
    "replaced_weight",
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    """The lengths of the records, the task of their second segments, what is learned, and how records without masks are
    masked.
    """

    max_seq_length: int = 128
    """Tokens of a row."""
    max_predictions_per_seq: int = 20
    """Most masked tokens of a record."""
    sentence_task: Literal["nsp", "sop", "none"] = "nsp"
    """As --sentence_task of the records: nsp (BERT), sop (ALBERT: order) or none (RoBERTa: words alone, no head for
    sentences)."""
    sentence_loss: bool = True
    """False: the second segments stay, but no head learns their task (the paper's "No NSP")."""
    objective: Literal["masked_lm", "masked_diffusion", "next_token", "replaced_tokens"] = "masked_lm"
    """The task to learn. next_token: predict every token from those before it (paper 5.1), with model.attention
    left_to_right. replaced_tokens: find the tokens that a small generator has replaced, which is trained on masked
    words at the same time (ELECTRA); its defaults are sentence_loss false and masking token_draws, of which 85 % become
    [MASK] and 15 % stay. masked_diffusion: masked words at a rate that is drawn for each row, of records without masks;
    the loss bounds -log p of a text, and sentence_loss is false by default."""
    masking: MaskingConfig = dataclasses.field(default_factory=MaskingConfig)
    """Masks of records made with --masking=dynamic."""
    generator_width: PositiveShare = only_with(0.25, *REPLACED_TOKENS)
    """The generator's hidden size, heads and feed-forward network, as a share of the model's."""
    generator_layers: PositiveShare = only_with(1.0, *REPLACED_TOKENS)
    """The generator's layers, as a share of the model's."""
    embedding_sharing: EmbeddingSharing = only_with("shared", *REPLACED_TOKENS)
    """Tables of model and generator: one set (ELECTRA), the model's as differences to the generator's (DeBERTa v3), or
    one set each."""
    adds_first: bool = only_with(False, *REPLACED_TOKENS)
    """The row of [CLS] is added to each row before the head that detects replaced tokens (DeBERTa v3)."""
    replaced_weight: Positive = only_with(50.0, *REPLACED_TOKENS)
    """Factor of the loss of replaced tokens; that of the generator's words is 1."""
    boundary_weight: NonNegative = only_with(0.0, "objective", "masked_lm")
    """Factor of the loss of SpanBERT's boundary objective, which predicts masked words from the rows beside their span
    too; 0: none."""
    pack: bool = False
    """Several instances share a row of max_seq_length tokens, so batch_size counts fuller rows."""
    max_instances_per_row: Count = 8
    """Most instances of a row, with pack."""
    first_weights: Literal["random", "neighbours"] = "random"
    """neighbours: heads of the first layer start by attending to neighbouring tokens; random: all are random."""

    @property
    def learns_sentences(self) -> bool:
        """Whether there is a loss of sentences."""
        return self.sentence_loss and self.sentence_task != "none"

    def __post_init__(self) -> None:
        check_fields(self)
        if self.max_predictions_per_seq < 1 and self.objective != "next_token":
            raise ValueError(
                f"config.options.max_predictions_per_seq: expected at least 1, got {self.max_predictions_per_seq}"
            )
        if self.masking.strategy == "token_draws":
            check_used(
                self,
                ["boundary_weight"],
                "another masking.strategy than token_draws, whose places are in no order",
                False,
            )
            if self.objective == "next_token":
                raise ValueError(
                    "config.options.masking.strategy: expected another one beside objective next_token, which masks "
                    "nothing, got token_draws"
                )


def with_defaults(values: Mapping[str, Any]) -> dict[str, Any]:
    """Returns options with the defaults of their objective."""
    return merge(BY_OBJECTIVE.get(str(values.get("objective")), {}), values)
