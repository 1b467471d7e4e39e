"""The pooler, which turns the final vector of [CLS] into the representation of the text (paper 3; 2018 `BertModel`)."""

from typing import Any

from official_bert.dotted_names import by_name
from official_bert.layers.activations import get_activation
from official_bert.layers.configured import truncated_normal
from official_bert.layers.dense import Dense
from official_bert.model_config import ModelConfig


def make_pooler(config: ModelConfig, dtype: Any) -> Dense:
    """Returns the pooler: tanh(x W + b) of a row [B,D], which `models/reader.py` chooses.

    With `pooler_norm`, a layer norm follows, and heads read rows that pass through both (ModernBERT).
    """
    options = {
        "use_bias": config.biases,
        "kernel_initializer": truncated_normal(config.initializer_range),
        "activation": get_activation(config.pooler_act),
        "name": "pooler",
        "dtype": dtype,
    }
    if config.pooler_norm:
        normalized: type[Dense] = by_name("official_bert.layers.relatives.normalized_dense:NormalizedDense")
        return normalized(config.hidden_size, epsilon=config.layer_norm_epsilon, **options)
    return Dense(config.hidden_size, **options)
