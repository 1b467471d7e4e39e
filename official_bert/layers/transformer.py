"""One encoder layer: self-attention and feed-forward network, each with residual and layer norm after it."""

import functools
import math

import keras
from keras import ops

from official_bert.layers import fused
from official_bert.layers.attention import SelfAttention, truncated_normal
from official_bert.layers.layer_norm import LayerNormalization
from official_bert.layers.real_tokens import ALL, AllTokens
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
    """A layer of the post-LN encoder (paper 3; 2018 `transformer_model`). B batch, S sequence, Q rows, D hidden size.

    With `norm="pre"`, its layer norms stand before attention and feed-forward network instead; the first layer, whose embeddings are
    normalized, has `first=True` and none before attention. With `feed_forward="gated"`, half of the first product is activated and
    multiplied with the other half (Shazeer 2020).
    """

    def __init__(self, num_heads=BERT_BASE.num_attention_heads, hidden_size=BERT_BASE.hidden_size,
                 intermediate_size=BERT_BASE.intermediate_size, hidden_act=BERT_BASE.hidden_act,
                 dropout=BERT_BASE.hidden_dropout_prob, attention_dropout=BERT_BASE.attention_probs_dropout_prob,
                 initializer_range=BERT_BASE.initializer_range, layer_norm_epsilon=BERT_BASE.layer_norm_epsilon,
                 recompute_attention=False, score_terms=1, norm="post", feed_forward="dense", biases=True, first=False,
                 distance_projections=False, **kwargs):
        super().__init__(**kwargs)
        self.settings = {"num_heads": num_heads, "hidden_size": hidden_size, "intermediate_size": intermediate_size,
                         "hidden_act": hidden_act, "dropout": dropout, "attention_dropout": attention_dropout,
                         "initializer_range": initializer_range, "layer_norm_epsilon": layer_norm_epsilon,
                         "recompute_attention": recompute_attention, "score_terms": score_terms, "norm": norm,
                         "feed_forward": feed_forward, "biases": biases, "first": first,
                         "distance_projections": distance_projections}
        policy = self.dtype_policy

        def dense(units, name):
            return keras.layers.Dense(units, use_bias=biases, kernel_initializer=truncated_normal(initializer_range), name=name,
                                      dtype=policy)

        def layer_norm(name):
            return LayerNormalization(epsilon=layer_norm_epsilon, center=biases, name=name, dtype=policy)

        get_activation(hidden_act)  # refuses an unknown name
        self.attention = SelfAttention(num_heads, hidden_size, attention_dropout, initializer_range, recompute_attention,
                                       score_terms, biases, distance_projections, name="attention", dtype=policy)
        self.attention_dropout = fused.Dropout(dropout, dtype=policy)
        self.attention_layer_norm = None if first else layer_norm("attention_LayerNorm")
        self.intermediate = dense(intermediate_size * (2 if feed_forward == "gated" else 1), "intermediate")
        self.output_dense = dense(hidden_size, "output")
        self.output_dropout = fused.Dropout(dropout, dtype=policy)
        self.output_layer_norm = layer_norm("output_LayerNorm")

    def build(self, input_shape, *_):
        """Makes the weights of every part."""
        width = (None, None, self.settings["hidden_size"])
        self.attention.build(input_shape)
        if self.attention_layer_norm is not None:
            self.attention_layer_norm.build(width)
        self.intermediate.build(width)
        self.output_dense.build((None, None, self.settings["intermediate_size"]))
        self.output_layer_norm.build(width)
        self.built = True

    def call(self, x, attention_mask, queries=None, tokens: AllTokens = ALL, training=None, **positions):
        """x [B,S,D], attention_mask [B,1,1 or Q,S], queries [B,Q,D] (the wanted rows of x) or None for x -> [B,Q,D].

        `positions` are further arguments of the attention. If `tokens` are real ones alone, x, and without queries the result, is [1,T,D].
        """
        rows = x if queries is None else queries
        normalized = (self._before(part, self.attention_layer_norm) for part in (x, queries))
        attended = self.attention(next(normalized), attention_mask=attention_mask, queries=next(normalized), tokens=tokens,
                                  training=training, **positions)
        rows = self._add(rows, attended, self.attention_dropout, self.attention_layer_norm, training)
        # As a matrix: TensorFlow fuses product, bias and activation into one operation for matrices, but not for rank 3.
        inner = ops.reshape(self._before(rows, self.output_layer_norm), (-1, self.settings["hidden_size"]))
        contracted = ops.reshape(self.feed_forward(inner, training), ops.shape(rows))
        return self._add(rows, contracted, self.output_dropout, self.output_layer_norm, training)  # [B,Q,D]

    def feed_forward(self, rows, training=None):
        """rows [R,D] -> [R,D], before dropout; exported graphs for few tokens do it in pieces."""
        expanded = self.intermediate(rows)                                            # [R,4D]
        expanded, *gates = ops.split(expanded, 2, axis=-1) if self.settings["feed_forward"] == "gated" else (expanded,)
        expanded = get_activation(self.settings["hidden_act"], training and fused.pays(expanded))(expanded)
        for gate in gates:
            expanded = expanded * gate
        return self.output_dense(expanded)

    def queries_keys_values(self, x):
        """x [B,S,D] -> the queries, keys and values that attention makes of it, each [B,S,D], all heads beside each other."""
        x = self._before(x, self.attention_layer_norm)
        return [ops.reshape(part(x), ops.shape(x)) for part in (self.attention.query, self.attention.key, self.attention.value)]

    def _before(self, x, layer_norm):
        """What attention or feed-forward network reads of x: post-LN, x itself."""
        return x if self.settings["norm"] == "post" or x is None or layer_norm is None else layer_norm(x)

    def _add(self, residual, x, dropout, layer_norm, training):
        if self.settings["norm"] == "pre":
            return residual + dropout(x, training=training)
        if training and fused.pays(x):
            return fused.normalized_sum(x, residual, dropout, layer_norm)
        return layer_norm(residual + dropout(x, training=training))

    def compute_output_shape(self, x_shape, attention_mask_shape=None, queries_shape=None):
        """[B,Q,D]."""
        return queries_shape or x_shape

    def get_config(self):
        return super().get_config() | self.settings
