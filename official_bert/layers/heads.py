"""The heads of pre-training: masked words and next sentence (paper 3.1; 2018 `run_pretraining.py`), and words of spans (SpanBERT)."""

import keras
from keras import ops

from official_bert.layers.attention import truncated_normal
from official_bert.layers.fused import add_bias, pays, product_with_rows
from official_bert.layers.layer_norm import LayerNormalization
from official_bert.layers.transformer import get_activation
from official_bert.model_config import BERT_BASE

LONGEST_SPAN, PLACE_SIZE = 20, 200  # SpanBERT: tokens of a span that are predicted from its sides; the width of their places' table


@keras.saving.register_keras_serializable("official_bert")
class MaskedLMHead(keras.layers.Layer):
    """Logits over the vocabulary, by the word embeddings and an output bias (2018 `get_masked_lm_output`).

    With `embedding_size`, word embeddings are so wide, and the transform narrows the rows to them. Without `transforms`, rows come from
    a pooler with a layer norm, which does its work.
    B batch, P predictions, D hidden size, E embedding size or D, V words.
    """

    def __init__(self, vocab_size=BERT_BASE.vocab_size, hidden_size=BERT_BASE.hidden_size, hidden_act=BERT_BASE.hidden_act,
                 initializer_range=BERT_BASE.initializer_range, layer_norm_epsilon=BERT_BASE.layer_norm_epsilon, embedding_size=0,
                 transforms=True, **kwargs):
        super().__init__(**kwargs)
        self.settings = {"vocab_size": vocab_size, "hidden_size": hidden_size, "hidden_act": hidden_act,
                         "initializer_range": initializer_range, "layer_norm_epsilon": layer_norm_epsilon,
                         "embedding_size": embedding_size, "transforms": transforms}
        get_activation(hidden_act)  # refuses an unknown name
        if not transforms:
            return
        self.transform = keras.layers.Dense(embedding_size or hidden_size, kernel_initializer=truncated_normal(initializer_range),
                                            name="transform", dtype=self.dtype_policy)
        self.layer_norm = LayerNormalization(epsilon=layer_norm_epsilon, name="LayerNorm", dtype=self.dtype_policy)

    def build(self, input_shape, *_):
        """Makes the transform and the output bias."""
        if self.settings["transforms"]:
            self.transform.build(input_shape)
            self.layer_norm.build((None, None, self.transform.units))
        self.output_bias = self.add_weight(shape=(self.settings["vocab_size"],), initializer="zeros", name="output_bias")
        self.built = True

    def call(self, rows, word_embeddings, training=None):
        """rows [B,P,D], word_embeddings [V,E] -> logits [B,P,V] in float32."""
        batch, predictions, width = ops.shape(rows)
        # As a matrix, because TensorFlow adds a bias to a product of matrices in the same operation.
        rows = ops.reshape(rows, (-1, width))                                         # [B*P,D]
        if self.settings["transforms"]:
            rows = self.layer_norm(get_activation(self.settings["hidden_act"], training and pays(rows))(self.transform(rows)))
        logits = product_with_rows(rows, ops.cast(word_embeddings, self.compute_dtype))  # [B*P,V]
        logits, bias = ops.cast(logits, "float32"), ops.cast(self.output_bias, "float32")
        logits = add_bias(logits, bias) if training and pays(logits) else logits + bias
        return ops.reshape(logits, (batch, predictions, self.settings["vocab_size"]))

    def compute_output_shape(self, rows_shape, *_):
        """[B,P,V]."""
        return (*rows_shape[:-1], self.settings["vocab_size"])

    def compute_output_spec(self, rows, word_embeddings, training=None):
        """The logits are float32 under every precision policy."""
        return keras.KerasTensor(self.compute_output_shape(rows.shape), dtype="float32")

    def get_config(self):
        return super().get_config() | self.settings


@keras.saving.register_keras_serializable("official_bert")
class SpanBoundaryHead(keras.layers.Layer):
    """Logits of the words of a span from the rows on both of its sides and the place of the word in it (SpanBERT 3.2).

    B batch, P predictions, D hidden size, E embedding size or D, V words.
    """

    def __init__(self, vocab_size=BERT_BASE.vocab_size, hidden_size=BERT_BASE.hidden_size, hidden_act=BERT_BASE.hidden_act,
                 initializer_range=BERT_BASE.initializer_range, layer_norm_epsilon=BERT_BASE.layer_norm_epsilon, embedding_size=0,
                 **kwargs):
        super().__init__(**kwargs)
        self.settings = {"vocab_size": vocab_size, "hidden_size": hidden_size, "hidden_act": hidden_act,
                         "initializer_range": initializer_range, "layer_norm_epsilon": layer_norm_epsilon, "embedding_size": embedding_size}
        self.place_embeddings_initializer = truncated_normal(initializer_range)
        self.first, self.second = (keras.layers.Dense(width, kernel_initializer=truncated_normal(initializer_range), name=name,
                                                      dtype=self.dtype_policy)
                                   for name, width in (("first", hidden_size), ("second", embedding_size or hidden_size)))
        self.first_norm, self.second_norm = (LayerNormalization(epsilon=layer_norm_epsilon, name=f"{name}_LayerNorm",
                                                                dtype=self.dtype_policy) for name in ("first", "second"))

    def build(self, *_):
        """Makes the table of places, the two products, and the output bias."""
        self.place_embeddings = self.add_weight(shape=(LONGEST_SPAN, PLACE_SIZE), initializer=self.place_embeddings_initializer,
                                                name="place_embeddings")
        self.first.build((None, None, 2 * self.settings["hidden_size"] + PLACE_SIZE))
        self.second.build((None, None, self.first.units))
        self.first_norm.build((None, None, self.first.units))
        self.second_norm.build((None, None, self.second.units))
        self.output_bias = self.add_weight(shape=(self.settings["vocab_size"],), initializer="zeros", name="output_bias")
        self.built = True

    def call(self, left, right, places, word_embeddings):
        """left, right [B,P,D], places in their spans [B,P] (from 0, below 20), word_embeddings [V,E] -> logits [B,P,V] in float32."""
        table = ops.cast(self.place_embeddings, self.compute_dtype)
        rows = ops.concatenate([left, right, ops.take(table, places, axis=0)], axis=-1)   # [B,P,2D+200]
        act = get_activation(self.settings["hidden_act"])
        rows = self.second_norm(act(self.second(self.first_norm(act(self.first(rows))))))  # [B,P,E]
        logits = ops.matmul(rows, ops.transpose(ops.cast(word_embeddings, self.compute_dtype)))
        return ops.cast(logits, "float32") + ops.cast(self.output_bias, "float32")

    def compute_output_shape(self, left_shape, *_):
        """[B,P,V]."""
        return (*left_shape[:-1], self.settings["vocab_size"])

    def get_config(self):
        return super().get_config() | self.settings


def places_in_spans(positions, weights):
    """Where the spans of predicted tokens begin and end, and the place of each token in its span: [B,P] each, 0 if it is not used.

    `positions` [B,P] of used predictions (weight above 0) ascend; neighbours of each other are one span.
    """
    positions, used = ops.cast(positions, "int32"), weights > 0
    number = ops.arange(ops.shape(positions)[1], dtype="int32")
    follows = ops.concatenate([ops.zeros_like(used[:, :1]), ops.logical_and(
        ops.logical_and(used[:, 1:], used[:, :-1]), positions[:, 1:] == positions[:, :-1] + 1)], axis=1)
    # Numbers of spans, one more at each beginning; a token has one span with those of its number.
    span = ops.cumsum(ops.cast(ops.logical_and(used, ops.logical_not(follows)), "int32"), axis=1)
    same = ops.logical_and(ops.expand_dims(span, 2) == ops.expand_dims(span, 1), ops.expand_dims(used, 1))  # [B,P,P]
    last = ops.max(ops.where(same, number, 0), axis=2)
    first = ops.min(ops.where(same, number, ops.shape(positions)[1] - 1), axis=2)
    begin, end = (ops.take_along_axis(positions, place, axis=1) for place in (first, last))
    return tuple(ops.where(used, value, 0) for value in (begin, end, number - first))


@keras.saving.register_keras_serializable("official_bert")
class OutputLayer(keras.layers.Layer):
    """Logits over K classes, with 2018's variables `output_weights` [K,D] (transposed in the product) and `output_bias`."""

    def __init__(self, num_classes=2, initializer_range=BERT_BASE.initializer_range, **kwargs):
        super().__init__(**kwargs)
        self.settings = {"num_classes": num_classes, "initializer_range": initializer_range}
        self.output_weights_initializer = truncated_normal(initializer_range)

    def build(self, input_shape):
        """Makes weights and bias."""
        classes = self.settings["num_classes"]
        self.output_weights = self.add_weight(shape=(classes, input_shape[-1]), name="output_weights",
                                              initializer=self.output_weights_initializer)
        self.output_bias = self.add_weight(shape=(classes,), initializer="zeros", name="output_bias")
        self.built = True

    def call(self, x):
        """x [...,D] -> logits [...,K] in float32."""
        logits = ops.matmul(x, ops.transpose(ops.cast(self.output_weights, self.compute_dtype)))
        return ops.cast(logits, "float32") + ops.cast(self.output_bias, "float32")

    def compute_output_shape(self, input_shape):
        """[...,K]."""
        return (*input_shape[:-1], self.settings["num_classes"])

    def compute_output_spec(self, x):
        """The logits are float32 under every precision policy."""
        return keras.KerasTensor(self.compute_output_shape(x.shape), dtype="float32")

    def get_config(self):
        return super().get_config() | self.settings
