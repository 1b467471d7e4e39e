"""The configuration of an encoder: sizes, and the parts that distinguish the relatives of BERT."""

import dataclasses
from typing import Literal


def check_rate(rate: float, where: str) -> None:
    """Raises ValueError, naming `where`, for a rate of dropout that is not from 0 to below 1."""
    if not 0 <= rate < 1:
        raise ValueError(f"{where}: expected a rate from 0 to below 1, got {rate}")


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """The encoder's size, under the keys of 2018's `bert_config.json`; the defaults are BERT-base, uncased."""

    vocab_size: int = 30522
    hidden_size: int = 768
    num_hidden_layers: int = 12
    num_attention_heads: int = 12
    intermediate_size: int = 3072
    hidden_act: Literal["gelu", "gelu_erf", "relu", "tanh", "linear"] = "gelu"  # gelu: the tanh form, as in 2018
    hidden_dropout_prob: float = 0.1
    attention_probs_dropout_prob: float = 0.1
    max_position_embeddings: int = 512
    type_vocab_size: int = 2
    initializer_range: float = 0.02
    layer_norm_epsilon: float = 1e-12
    attention: Literal["bidirectional", "left_to_right"] = "bidirectional"  # left_to_right: a token sees itself and the tokens before it
    bilstm_layers: int = 0  # BiLSTMs between the encoder and the heads, each as wide as the encoder (paper 5.1: on top of left-to-right)

    def __post_init__(self):
        for key in ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size",
                    "max_position_embeddings", "type_vocab_size"):
            if getattr(self, key) < 1:
                raise ValueError(f"model.{key}: expected at least 1, got {getattr(self, key)}")
        for key in ("hidden_dropout_prob", "attention_probs_dropout_prob"):
            check_rate(getattr(self, key), f"model.{key}")
        if self.hidden_size % self.num_attention_heads:
            raise ValueError(f"model.hidden_size: expected a multiple of num_attention_heads "
                             f"({self.num_attention_heads}), got {self.hidden_size}")
        if self.bilstm_layers < 0 or (self.bilstm_layers and self.hidden_size % 2):
            raise ValueError(f"model.bilstm_layers: expected at least 0, and an even hidden_size (half of it for each direction), "
                             f"got {self.bilstm_layers} and {self.hidden_size}")


BERT_BASE = ModelConfig()  # the default sizes of layers and models
