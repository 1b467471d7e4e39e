"""The pooler, which turns the final vector of [CLS] into the representation of the text (paper 3; 2018 `BertModel`)."""

from collections.abc import Sequence
from typing import Any

from jaxtyping import Float

from official_bert.layers.activations import get_activation
from official_bert.layers.configured import truncated_normal
from official_bert.layers.dense import Dense
from official_bert.layers.layer_norm import LayerNormalization
from official_bert.model_config import BERT_BASE, ModelConfig


class Pooler(Dense):
    """A dense layer with tanh. `models/reader.py` chooses the row that it reads.

    With `pooler_norm`, a layer norm follows, and heads read rows that pass through both (ModernBERT).
    """

    def __init__(self, config: ModelConfig = BERT_BASE, **options: Any) -> None:
        super().__init__(
            config.hidden_size,
            use_bias=config.biases,
            kernel_initializer=truncated_normal(config.initializer_range),
            activation=get_activation(config.pooler_act),
            **options,
        )
        self.layer_norm = None
        if config.pooler_norm:
            self.layer_norm = LayerNormalization(
                epsilon=config.layer_norm_epsilon, center=config.biases, name="LayerNorm", dtype=self.dtype_policy
            )

    def build(self, input_shape: Sequence[int | None]) -> None:
        """Makes the weights of the product and the layer norm."""
        super().build(input_shape)
        if self.layer_norm is not None:
            self.layer_norm.build((*input_shape[:-1], self.units))

    def call(self, x: Float[Any, "*M D"]) -> Float[Any, "*M D"]:
        """Returns tanh(x W + b) of rows [...,D], in BERT the final vector C [B,D] of [CLS]."""
        rows = super().call(x)
        return rows if self.layer_norm is None else self.layer_norm(rows)
