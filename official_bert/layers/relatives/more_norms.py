"""JinaBERT's variant for code: layer norms of queries and keys, and a second residual connection."""

from collections.abc import Sequence
from typing import Any, ClassVar

import keras
from jaxtyping import Float

from official_bert.layers.attention import SelfAttention
from official_bert.layers.dense import Dense
from official_bert.layers.relatives.normalized_dense import NormalizedDense
from official_bert.layers.transformer import TransformerLayer, normalized_sum
from official_bert.model_config import BERT_BASE, ModelConfig


@keras.saving.register_keras_serializable("official_bert")
class NormalizedAttention(SelfAttention):
    """A `SelfAttention` whose queries and keys have a layer norm over all heads together. One more field:
    `layer_norm_epsilon`.
    """

    FIELDS: ClassVar[Sequence[str]] = (*SelfAttention.FIELDS, "layer_norm_epsilon")

    def dense(self, output_shape: Any, name: str, kind: type[Dense] = Dense, **options: Any) -> Dense:
        if name in ("query", "key"):
            kind, options = NormalizedDense, {**options, "epsilon": self.config.layer_norm_epsilon}
        return super().dense(output_shape, name, kind, **options)


@keras.saving.register_keras_serializable("official_bert")
class TwiceNormLayer(TransformerLayer):
    """A `TransformerLayer` that adds its input to the normalized output of the attention, and normalizes the sum."""

    def __init__(
        self, config: ModelConfig = BERT_BASE, attention: keras.layers.Layer | None = None, **fields: Any
    ) -> None:
        super().__init__(config, attention, **fields)
        self.residual_layer_norm = self.layer_norm("residual_LayerNorm")

    def build(self, x_shape: Any, *_: Any) -> None:
        """Makes the weights of every part."""
        super().build(x_shape)
        self.residual_layer_norm.build((None, None, self.config.hidden_size))

    def call(
        self, x: Float[Any, "_ _ D"], layout: Any, queries: Any = None, training: bool | None = None
    ) -> Float[Any, "_ _ D"]:
        """Returns the layer's output [B,Q,D]; the arguments are those of `TransformerLayer`."""
        attended = self.attention(x, layout=layout, queries=queries, training=training)
        rows = x if queries is None else queries
        norm = self.attention_layer_norm
        x = self.residual_layer_norm(
            rows + normalized_sum(attended, rows, self.attention_dropout, norm, training=training)
        )
        transformed = self.feed_forward_of(x, training)
        return normalized_sum(transformed, x, self.output_dropout, self.output_layer_norm, training=training)
