"""An encoder layer with its layer norms before the sublayers (Xiong et al. 2020; ModernBERT)."""

from typing import Any

import keras
from jaxtyping import Float

from official_bert.layers.transformer import TransformerLayer
from official_bert.model_config import BERT_BASE, ModelConfig


@keras.saving.register_keras_serializable("official_bert")
class PreNormLayer(TransformerLayer):
    """A `TransformerLayer` whose residual connections skip the norms; one more norm follows the last layer of the
    encoder.

    The `first` layer has no norm before its attention, because the embeddings are normalized.
    """

    def __init__(
        self,
        config: ModelConfig = BERT_BASE,
        attention: keras.layers.Layer | None = None,
        first: bool = False,
        **fields: Any,
    ) -> None:
        no_norm = keras.layers.Identity(name="attention_LayerNorm", dtype=fields.get("dtype")) if first else None
        super().__init__(config, attention, no_norm, **fields)
        self.first = first

    def call(
        self, x: Float[Any, "_ _ D"], layout: Any, queries: Any = None, training: bool | None = None
    ) -> Float[Any, "_ _ D"]:
        """Returns the layer's output [B,Q,D]; the arguments are those of `TransformerLayer`."""
        attended = self.attention(
            self.attention_input(x),
            layout=layout,
            queries=None if queries is None else self.attention_input(queries),
            training=training,
        )
        x = (x if queries is None else queries) + self.attention_dropout(attended, training=training)
        transformed = self.feed_forward_of(self.output_layer_norm(x), training)
        return x + self.output_dropout(transformed, training=training)  # [B,Q,D]

    def attention_input(self, x: Float[Any, "B S D"]) -> Float[Any, "B S D"]:
        return self.attention_layer_norm(x)

    def get_config(self) -> dict[str, Any]:
        return super().get_config() | {"first": self.first}
