"""One encoder layer: self-attention and a feed-forward network, each with residual and layer norm (paper 3; Vaswani et
al. 2017, 3.1).
"""

from collections.abc import Sequence
from typing import Any, ClassVar

import keras
from jaxtyping import Float
from keras import ops

from official_bert.layers.activations import Activated, Gated
from official_bert.layers.attention import SelfAttention
from official_bert.layers.configured import Configured
from official_bert.layers.dense import Dense
from official_bert.layers.layer_norm import LayerNormalization
from official_bert.layers.speed import fused
from official_bert.layers.speed.extension_points import extension_point
from official_bert.model_config import BERT_BASE, ModelConfig


@fused.compiled_in_training(fused.normalized_sum)
def normalized_sum(
    x: Float[Any, "*M D"],
    residual: Float[Any, "*M D"],
    dropout: fused.Dropout,
    layer_norm: LayerNormalization,
    training: bool | None = None,
) -> Float[Any, "*M D"]:
    """Returns LayerNorm(residual + Dropout(x)): the residual connection around a sublayer x, and its norm."""
    return layer_norm(residual + dropout(x, training=training))


@keras.saving.register_keras_serializable("official_bert")
class TransformerLayer(Configured):
    """A layer of the encoder (paper 3; 2018 `transformer_model`). B batch, S sequence, Q query rows, R rows, D hidden
    size.

    Fields: `num_attention_heads` (or `num_heads`), `hidden_size`, `intermediate_size`, `hidden_act`,
    `hidden_dropout_prob` (or `dropout`: of both sublayers), `attention_probs_dropout_prob` (or `attention_dropout`),
    `initializer_range`, `layer_norm_epsilon`, `biases`, `feed_forward` (`dense`; `gated`: a gated unit, Shazeer 2020),
    `unbiased` (products without biases). `attention` is the attention layer, by default a `SelfAttention` of these
    fields, and `attention_layer_norm` the norm of its sublayer, by default a `LayerNormalization`.
    """

    FIELDS: ClassVar[Sequence[str]] = (
        "num_attention_heads",
        "hidden_size",
        "intermediate_size",
        "hidden_act",
        "hidden_dropout_prob",
        "attention_probs_dropout_prob",
        "initializer_range",
        "layer_norm_epsilon",
        "biases",
        "feed_forward",
        "unbiased",
    )

    def __init__(
        self,
        config: ModelConfig = BERT_BASE,
        attention: keras.layers.Layer | None = None,
        attention_layer_norm: keras.layers.Layer | None = None,
        **fields: Any,
    ) -> None:
        super().__init__(config, **fields)
        config, policy = self.config, self.dtype_policy
        self.activation = (Gated if config.feed_forward == "gated" else Activated)(config.hidden_act)
        self.attention = attention or SelfAttention(config, name="attention", dtype=policy)
        self.attention_dropout = fused.Dropout(config.hidden_dropout_prob, dtype=policy)
        self.attention_layer_norm = attention_layer_norm or self.layer_norm("attention_LayerNorm")
        self.intermediate = self.dense(config.intermediate_size * self.activation.factor, "intermediate")
        self.output_dense = self.dense(config.hidden_size, "output")
        self.output_dropout = fused.Dropout(config.hidden_dropout_prob, dtype=policy)
        self.output_layer_norm = self.layer_norm("output_LayerNorm")

    def dense(self, units: int, name: str) -> Dense:
        """Returns a dense layer for one of the two products of the feed-forward network."""
        without = ("products", "gate") if name == "intermediate" else ("products",)
        return Dense(
            units,
            use_bias=self.config.biases and self.config.unbiased not in without,
            kernel_initializer=self.initializer(),
            name=name,
            dtype=self.dtype_policy,
        )

    def layer_norm(self, name: str) -> LayerNormalization:
        """Returns one of the two layer norms."""
        return LayerNormalization(
            epsilon=self.config.layer_norm_epsilon,
            center=self.config.biases,
            name=name,
            dtype=self.dtype_policy,
        )

    def build(self, x_shape: Any, *_: Any) -> None:
        """Makes the weights of every part."""
        width = (None, None, self.config.hidden_size)
        self.attention.build(x_shape)
        for part in (self.attention_layer_norm, self.intermediate, self.output_layer_norm):
            part.build(width)
        self.output_dense.build((None, None, self.config.intermediate_size))
        self.built = True

    def call(
        self, x: Float[Any, "_ _ D"], layout: Any, queries: Any = None, training: bool | None = None
    ) -> Float[Any, "_ _ D"]:
        """Returns the output [B,Q,D] for `queries` [B,Q,D], by default x [B,S,D]; the layout is `SelfAttention`'s."""
        attended = self.attention(x, layout=layout, queries=queries, training=training)
        rows = x if queries is None else queries  # [B,Q,D]
        x = normalized_sum(attended, rows, self.attention_dropout, self.attention_layer_norm, training=training)
        transformed = self.feed_forward_of(x, training)
        return normalized_sum(transformed, x, self.output_dropout, self.output_layer_norm, training=training)

    def feed_forward_of(self, x: Float[Any, "_ _ D"], training: bool | None = None) -> Float[Any, "_ _ D"]:
        """Returns the feed-forward network's output for rows [B,Q,D], computed as one matrix.

        TensorFlow fuses product, bias and activation into one operation for matrices, but not for rank 3.
        """
        rows = ops.reshape(x, (-1, self.config.hidden_size))
        return ops.reshape(self.feed_forward(rows, training), ops.shape(x))

    @extension_point
    def feed_forward(self, rows: Float[Any, "R D"], training: bool | None = None) -> Float[Any, "R D"]:
        """Returns gelu(x W1 + b1) W2 + b2 of rows [R,D] (Vaswani et al. 2017, equation 2, with GELU)."""
        return self.output_dense(self.activation(self.intermediate(rows), training=training))

    def attention_input(self, x: Float[Any, "B S D"]) -> Float[Any, "B S D"]:
        """Returns the rows that attention reads: x itself, or in a pre-norm layer its layer norm."""
        return x

    def queries_keys_values(self, x: Float[Any, "B S D"]) -> list[Any]:
        """Returns the queries, keys and values of attention for x [B,S,D], each [B,S,D] with concatenated heads."""
        rows = self.attention_input(x)
        return [
            ops.reshape(product(rows), ops.shape(rows))
            for product in (self.attention.query, self.attention.key, self.attention.value)
        ]

    def compute_output_shape(self, x_shape: Any, layout_shape: Any = None, queries_shape: Any = None) -> Any:
        """Returns the shape [B,Q,D]."""
        return queries_shape or x_shape

    def get_config(self) -> dict[str, Any]:
        attention = keras.saving.serialize_keras_object(self.attention)
        # this layer builds it, so that its weights have this layer's name in their paths
        attention.pop("build_config", None)
        return super().get_config() | {"attention": attention}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> "TransformerLayer":
        return cls(**{**config, "attention": keras.saving.deserialize_keras_object(config.get("attention"))})
