"""The heads of pre-training: masked words and next sentence (paper 3.1; 2018 `run_pretraining.py`)."""

import keras
from keras import ops

from official_bert.layers.attention import truncated_normal
from official_bert.layers.fused import add_bias, pays, product_with_rows
from official_bert.layers.layer_norm import LayerNormalization
from official_bert.layers.transformer import get_activation
from official_bert.model_config import BERT_BASE


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
