"""The heads of pre-training: masked words and next sentence (paper 3.1; 2018 `run_pretraining.py`), and words of spans
(SpanBERT).
"""

from collections.abc import Sequence
from typing import Any, ClassVar

import keras
from jaxtyping import Float, Int
from keras import ops

from official_bert.layers.activations import get_activation
from official_bert.layers.configured import Configured, truncated_normal
from official_bert.layers.dense import Dense
from official_bert.layers.layer_norm import LayerNormalization
from official_bert.layers.speed import fused
from official_bert.model_config import BERT_BASE, ModelConfig

# SpanBERT: tokens of a span that are predicted from its sides; the width of their places' table
LONGEST_SPAN, PLACE_SIZE = 20, 200


@fused.compiled_in_training(fused.add_bias)
def add_bias(logits: Float[Any, "M V"], bias: Float[Any, "V"], training: bool | None = None) -> Float[Any, "M V"]:
    """Returns logits + bias."""
    return logits + bias


@keras.saving.register_keras_serializable("official_bert")
class MaskedLMHead(Configured):
    """Predicts words by the product of rows with the word embeddings (paper 3.1, task 1; 2018 `get_masked_lm_output`).

    B batch, P predictions, D hidden size, E width of the word embeddings (D unless they are factorized), V words.
    Fields: `vocab_size`, `hidden_size`, `masked_lm_act` (empty: `hidden_act`), `initializer_range`,
    `layer_norm_epsilon`, `embedding_size` (E, 0: D), `pooler_norm` (the rows come from a pooler with a layer norm,
    which replaces the transform).
    """

    FIELDS: ClassVar[Sequence[str]] = (
        "vocab_size",
        "hidden_size",
        "hidden_act",
        "masked_lm_act",
        "initializer_range",
        "layer_norm_epsilon",
        "embedding_size",
        "pooler_norm",
    )

    def __init__(self, config: ModelConfig = BERT_BASE, **fields: Any) -> None:
        if not fields.pop("transforms", True):  # of files of earlier versions
            fields["pooler_norm"] = True
        super().__init__(config, **fields)
        config, policy = self.config, self.dtype_policy
        self.activation = get_activation(config.masked_lm_act or config.hidden_act)
        self.transform = None
        if not config.pooler_norm:
            self.transform = Dense(
                config.table_width, kernel_initializer=self.initializer(), name="transform", dtype=policy
            )
            self.layer_norm = LayerNormalization(epsilon=config.layer_norm_epsilon, name="LayerNorm", dtype=policy)

    def build(self, rows_shape: Any, *_: Any) -> None:
        """Makes the transform and the output bias."""
        if self.transform is not None:
            self.transform.build(rows_shape)
            self.layer_norm.build((None, None, self.transform.units))
        self.output_bias = self.add_weight(shape=(self.config.vocab_size,), initializer="zeros", name="output_bias")
        self.built = True

    def call(
        self, rows: Float[Any, "B P D"], word_embeddings: Float[Any, "V E"], training: bool | None = None
    ) -> Float[Any, "B P V"]:
        """Returns float32 logits [B,P,V] of rows [B,P,D]; `word_embeddings` [V,E] are tied to the input's."""
        batch, predictions, width = ops.shape(rows)
        # As a matrix, because TensorFlow adds a bias to a product of matrices in the same operation.
        rows = ops.reshape(rows, (-1, width))  # [B*P,D]
        if self.transform is not None:
            rows = self.layer_norm(self.activation(self.transform(rows), training=training))
        logits = fused.product_with_rows(rows, ops.cast(word_embeddings, self.compute_dtype))  # [B*P,V]
        logits = add_bias(ops.cast(logits, "float32"), ops.cast(self.output_bias, "float32"), training=training)
        return ops.reshape(logits, (batch, predictions, self.config.vocab_size))

    def compute_output_shape(self, rows_shape: Any, *_: Any) -> tuple:
        """Returns the shape [B,P,V]."""
        return (*rows_shape[:-1], self.config.vocab_size)

    def compute_output_spec(self, rows: Any, word_embeddings: Any, training: bool | None = None) -> keras.KerasTensor:
        """Returns the spec of the logits, which are float32 under every precision policy."""
        return keras.KerasTensor(self.compute_output_shape(rows.shape), dtype="float32")


@keras.saving.register_keras_serializable("official_bert")
class SpanBoundaryHead(Configured):
    """Predicts each word of a span from the rows beside the span and the word's position in it (SpanBERT 3.2).

    B batch, P predictions, D hidden size, E width of the word embeddings, V words. Fields: `vocab_size`, `hidden_size`,
    `masked_lm_act` (empty: `hidden_act`), `initializer_range`, `layer_norm_epsilon`, `embedding_size`.
    """

    FIELDS: ClassVar[Sequence[str]] = tuple(name for name in MaskedLMHead.FIELDS if name != "pooler_norm")

    def __init__(self, config: ModelConfig = BERT_BASE, **fields: Any) -> None:
        super().__init__(config, **fields)
        config, policy = self.config, self.dtype_policy
        self.activation = get_activation(config.masked_lm_act or config.hidden_act)
        self.place_embeddings_initializer = self.initializer()
        self.first, self.second = (
            Dense(width, kernel_initializer=self.initializer(), name=name, dtype=policy)
            for name, width in (("first", config.hidden_size), ("second", config.table_width))
        )
        self.first_norm, self.second_norm = (
            LayerNormalization(epsilon=config.layer_norm_epsilon, name=f"{name}_LayerNorm", dtype=policy)
            for name in ("first", "second")
        )

    def build(self, left_shape: Any, *_: Any) -> None:
        """Makes the position table, the two products, and the output bias."""
        self.place_embeddings = self.add_weight(
            shape=(LONGEST_SPAN, PLACE_SIZE), initializer=self.place_embeddings_initializer, name="place_embeddings"
        )
        self.first.build((None, None, 2 * self.config.hidden_size + PLACE_SIZE))
        self.second.build((None, None, self.first.units))
        self.first_norm.build((None, None, self.first.units))
        self.second_norm.build((None, None, self.second.units))
        self.output_bias = self.add_weight(shape=(self.config.vocab_size,), initializer="zeros", name="output_bias")
        self.built = True

    def call(
        self,
        left: Float[Any, "B P D"],
        right: Float[Any, "B P D"],
        places: Int[Any, "B P"],
        word_embeddings: Float[Any, "V E"],
    ) -> Float[Any, "B P V"]:
        """Returns float32 logits [B,P,V] from the rows `left` and `right` of each span, [B,P,D].

        `places` [B,P] are positions within the span, from 0 and below 20; `word_embeddings` is [V,E].
        """
        table = ops.cast(self.place_embeddings, self.compute_dtype)
        rows = ops.concatenate([left, right, ops.take(table, places, axis=0)], axis=-1)  # [B,P,2D+200]
        act = self.activation
        rows = self.second_norm(act(self.second(self.first_norm(act(self.first(rows))))))  # [B,P,E]
        logits = ops.matmul(rows, ops.transpose(ops.cast(word_embeddings, self.compute_dtype)))
        return ops.cast(logits, "float32") + ops.cast(self.output_bias, "float32")

    def compute_output_shape(self, left_shape: Any, *_: Any) -> tuple:
        """Returns the shape [B,P,V]."""
        return (*left_shape[:-1], self.config.vocab_size)


def places_in_spans(positions: Int[Any, "B P"], weights: Any) -> tuple[Any, Any, Any]:
    """Returns the first and the last position of each prediction's span, and its place in the span: [B,P] each, 0 for
    unused predictions.

    The `positions` [B,P] of used predictions (weight above 0) must ascend; adjacent positions belong to one span.
    """
    positions, used = ops.cast(positions, "int32"), weights > 0
    number = ops.arange(ops.shape(positions)[1], dtype="int32")
    follows = ops.concatenate(
        [
            ops.zeros_like(used[:, :1]),
            ops.logical_and(ops.logical_and(used[:, 1:], used[:, :-1]), positions[:, 1:] == positions[:, :-1] + 1),
        ],
        axis=1,
    )
    # Numbers of spans, one more at each beginning; a token has one span with those of its number.
    span = ops.cumsum(ops.cast(ops.logical_and(used, ops.logical_not(follows)), "int32"), axis=1)
    same = ops.logical_and(ops.expand_dims(span, 2) == ops.expand_dims(span, 1), ops.expand_dims(used, 1))  # [B,P,P]
    last = ops.max(ops.where(same, number, 0), axis=2)
    first = ops.min(ops.where(same, number, ops.shape(positions)[1] - 1), axis=2)
    begin, end = (ops.take_along_axis(positions, place, axis=1) for place in (first, last))
    return tuple(ops.where(used, value, 0) for value in (begin, end, number - first))


@keras.saving.register_keras_serializable("official_bert")
class OutputLayer(keras.layers.Layer):
    """A linear layer for K classes, with 2018's variables `output_weights` [K,D] (transposed in the product) and
    `output_bias`.
    """

    def __init__(
        self, num_classes: int = 2, initializer_range: float = BERT_BASE.initializer_range, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self.num_classes, self.initializer_range = num_classes, initializer_range
        self.output_weights_initializer = truncated_normal(initializer_range)

    def build(self, input_shape: Any) -> None:
        """Makes weights and bias."""
        self.output_weights = self.add_weight(
            shape=(self.num_classes, input_shape[-1]),
            name="output_weights",
            initializer=self.output_weights_initializer,
        )
        self.output_bias = self.add_weight(shape=(self.num_classes,), initializer="zeros", name="output_bias")
        self.built = True

    def call(self, x: Float[Any, "*M D"]) -> Float[Any, "*M K"]:
        """Returns float32 logits [...,K] of x [...,D]."""
        logits = ops.matmul(x, ops.transpose(ops.cast(self.output_weights, self.compute_dtype)))
        return ops.cast(logits, "float32") + ops.cast(self.output_bias, "float32")

    def compute_output_shape(self, input_shape: Any) -> tuple:
        """Returns the shape [...,K]."""
        return (*input_shape[:-1], self.num_classes)

    def compute_output_spec(self, x: Any) -> keras.KerasTensor:
        """Returns the spec of the logits, which are float32 under every precision policy."""
        return keras.KerasTensor(self.compute_output_shape(x.shape), dtype="float32")

    def get_config(self) -> dict[str, Any]:
        return super().get_config() | {"num_classes": self.num_classes, "initializer_range": self.initializer_range}
