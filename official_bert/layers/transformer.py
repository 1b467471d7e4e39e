"""One encoder layer: self-attention and feed-forward network, each with residual and layer norm after it."""

import functools
import math

import keras
from keras import ops

from official_bert.layers import fused
from official_bert.layers.attention import SelfAttention, truncated_normal
from official_bert.layers.layer_norm import LayerNormalization
from official_bert.model_config import BERT_BASE


def gelu_erf(x):
    """x Φ(x), Φ the normal distribution; with erf, because the gradient of `ops.gelu`, with erfc, takes a third more time."""
    return 0.5 * x * (1.0 + ops.erf(x * math.sqrt(0.5)))


# `gelu` is the tanh form of 2018's code, `gelu_erf` the exact form of later implementations.
ACTIVATIONS = {
    "gelu": functools.partial(ops.gelu, approximate=True),
    "gelu_erf": gelu_erf,
    "relu": ops.relu,
    "tanh": ops.tanh,
    "linear": lambda x: x,
}
COMPILED = {"gelu": fused.gelu, "gelu_erf": fused.gelu_erf}  # of those, for training on tensors for which that pays


def get_activation(name: str, compiled: bool | None = False):
    """Returns the activation function of that name. Raises ValueError with the known names for another name."""
    if name not in ACTIVATIONS:
        raise ValueError(f"hidden_act: expected one of {sorted(ACTIVATIONS)}, got {name!r}")
    return COMPILED.get(name, ACTIVATIONS[name]) if compiled else ACTIVATIONS[name]


@keras.saving.register_keras_serializable("official_bert")
class TransformerLayer(keras.layers.Layer):
    """A layer of the post-LN encoder (paper 3; 2018 `transformer_model`). B batch, S sequence, Q rows, D hidden size."""

    def __init__(self, num_heads=BERT_BASE.num_attention_heads, hidden_size=BERT_BASE.hidden_size,
                 intermediate_size=BERT_BASE.intermediate_size, hidden_act=BERT_BASE.hidden_act,
                 dropout=BERT_BASE.hidden_dropout_prob, attention_dropout=BERT_BASE.attention_probs_dropout_prob,
                 initializer_range=BERT_BASE.initializer_range, layer_norm_epsilon=BERT_BASE.layer_norm_epsilon,
                 recompute_attention=False, score_terms=1, **kwargs):
        super().__init__(**kwargs)
        self.settings = {"num_heads": num_heads, "hidden_size": hidden_size, "intermediate_size": intermediate_size,
                         "hidden_act": hidden_act, "dropout": dropout, "attention_dropout": attention_dropout,
                         "initializer_range": initializer_range, "layer_norm_epsilon": layer_norm_epsilon,
                         "recompute_attention": recompute_attention, "score_terms": score_terms}
        policy = self.dtype_policy

        def dense(units, name):
            return keras.layers.Dense(units, kernel_initializer=truncated_normal(initializer_range), name=name,
                                      dtype=policy)

        def layer_norm(name):
            return LayerNormalization(epsilon=layer_norm_epsilon, name=name, dtype=policy)

        get_activation(hidden_act)  # refuses an unknown name
        self.attention = SelfAttention(num_heads, hidden_size, attention_dropout, initializer_range, recompute_attention,
                                       score_terms, name="attention", dtype=policy)
        self.attention_dropout = fused.Dropout(dropout, dtype=policy)
        self.attention_layer_norm = layer_norm("attention_LayerNorm")
        self.intermediate = dense(intermediate_size, "intermediate")
        self.output_dense = dense(hidden_size, "output")
        self.output_dropout = fused.Dropout(dropout, dtype=policy)
        self.output_layer_norm = layer_norm("output_LayerNorm")

    def build(self, input_shape, *_):
        """Makes the weights of every part."""
        width = (None, None, self.settings["hidden_size"])
        self.attention.build(input_shape)
        self.attention_layer_norm.build(width)
        self.intermediate.build(width)
        self.output_dense.build((None, None, self.settings["intermediate_size"]))
        self.output_layer_norm.build(width)
        self.built = True

    def call(self, x, attention_mask, queries=None, training=None, **positions):
        """x [B,S,D], attention_mask [B,1,1 or Q,S], queries [B,Q,D] (the wanted rows of x) or None for x -> [B,Q,D].

        `positions` are arguments of the attention: `bias`, or `distances` and `distance_rows`.
        """
        rows = x if queries is None else queries
        attended = self.attention(x, attention_mask, queries=queries, training=training, **positions)
        rows = self._add(rows, attended, self.attention_dropout, self.attention_layer_norm, training)
        # As a matrix: TensorFlow fuses product, bias and activation into one operation for matrices, but not for rank 3.
        expanded = self.intermediate(ops.reshape(rows, (-1, self.settings["hidden_size"])))  # [B*Q,4D]
        expanded = get_activation(self.settings["hidden_act"], training and fused.pays(expanded))(expanded)
        contracted = ops.reshape(self.output_dense(expanded), ops.shape(rows))
        return self._add(rows, contracted, self.output_dropout, self.output_layer_norm, training)  # [B,Q,D]

    @staticmethod
    def _add(residual, x, dropout, layer_norm, training):
        if training and fused.pays(x):
            return fused.normalized_sum(x, residual, dropout, layer_norm)
        return layer_norm(residual + dropout(x, training=training))

    def compute_output_shape(self, x_shape, attention_mask_shape=None, queries_shape=None):
        """[B,Q,D]."""
        return queries_shape or x_shape

    def get_config(self):
        return super().get_config() | self.settings
