"""Splits an encoder's layers into small pieces, in graphs for few tokens such as one short text.

TensorFlow's threads sleep between two operations, and waking one takes as long as a small operation. Therefore
* a product is cut into pieces that fit into the second-level cache: oneDNN computes such a piece in the calling thread,
  and TensorFlow runs the pieces in parallel;
* fewer than 8 tokens are padded: for them oneDNN would rearrange the weights in every call;
* a softmax is the exponential of a logarithm: the softmax of oneDNN wakes all threads.

B batch, S sequence, T tokens, K and N the width of a row before and after a product.
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import tensorflow as tf
from jaxtyping import Float, Shaped

from official_bert.layers.activations import get_activation
from official_bert.layers.speed.extension_points import original
from official_bert.layers.transformer import TransformerLayer
from official_bert.models.encoder import BertEncoder
from official_bert.serving.served_layers import (
    Overrides,
    Product,
    ServedAttention,
    Values,
    has_plain_attention,
    kernel_and_bias,
)

MOST_WEIGHTS = 150_000  # of a piece: with its rows, they fit into 1 MB
LEAST_TOKENS = 8  # oneDNN arranges constant weights alike for 8 to 64 (measured)
INPUTS_OF_TOKENS = ("input_ids", "input_mask", "segment_ids", "position_ids", "task_type_ids", "instance_ids")  # [B,S]
NO_BIAS = 1e-30  # TensorFlow leaves a bias of zeros out, and its product without one does not keep weights arranged


class FewRows:
    """Calls the encoder on rows padded to at least `LEAST_TOKENS` tokens; a model with fewer positions is unchanged."""

    def __init__(self, encoder: BertEncoder):
        self._call, self._least = (
            original(encoder, "call"),
            LEAST_TOKENS if encoder.config.longest_row >= LEAST_TOKENS else 0,
        )

    def __call__(self, inputs: Mapping[str, Shaped[Any, "B ..."]], training: bool | None = None) -> dict[str, Any]:
        """Inputs [B,S] -> the encoder's outputs for the S tokens."""
        batch, length = tf.unstack(tf.shape(inputs["input_ids"]))
        padding = [[0, 0], [0, tf.maximum(-(-self._least // batch) - length, 0)]]
        outputs = self._call(
            {name: tf.pad(value, padding) if name in INPUTS_OF_TOKENS else value for name, value in inputs.items()},
            training=training,
        )
        of_tokens = {"embedding_output", "layer_outputs"} | (
            {"sequence_output"} if "output_positions" not in inputs else set()
        )
        return {
            name: tf.nest.map_structure(lambda rows: rows[:, :length], value) if name in of_tokens else value
            for name, value in outputs.items()
        }


class SmallProducts:
    """The product of rows [T,K] with a kernel [K,N], plus a bias [N], in blocks of columns."""

    def __init__(self, values: Values, kernel: np.ndarray, bias: np.ndarray | None):
        pieces = _pieces(kernel.size, kernel.shape[1])
        biases = np.split(np.zeros(kernel.shape[1], np.float32) if bias is None else bias, pieces)
        self._products = [_product(values, *piece) for piece in zip(np.split(kernel, pieces, axis=1), biases)]

    def __call__(self, rows: Float[Any, "T K"]) -> Float[Any, "T N"]:
        """rows [T,K] -> [T,N]."""
        results = [product(rows) for product in self._products]
        return results[0] if len(results) == 1 else tf.concat(results, 1)


class FewFeedForward:
    """Computes `TransformerLayer.feed_forward` in blocks of inner columns, each through both products."""

    def __init__(self, layer: TransformerLayer, values: Values):
        (first, first_bias), (second, second_bias) = map(kernel_and_bias, (layer.intermediate, layer.output_dense))
        pieces = _pieces(first.size, first.shape[1])
        inner = np.zeros(first.shape[1], np.float32) if first_bias is None else first_bias
        share = np.zeros(second.shape[1], np.float32) if second_bias is None else second_bias / np.float32(pieces)
        parts = zip(np.split(first, pieces, axis=1), np.split(inner, pieces), np.split(second, pieces))
        self._pairs = [
            (_product(values, kernel, bias), _product(values, other, share)) for kernel, bias, other in parts
        ]
        self._activate: Callable = get_activation(layer.config.hidden_act)

    def __call__(self, rows: Float[Any, "T D"], training: bool | None = None) -> Float[Any, "T D"]:
        """rows [T,D] -> [T,D]; `training` is false."""
        return tf.add_n([second(self._activate(first(rows))) for first, second in self._pairs])


def few_layers(encoder: BertEncoder, values: Values) -> Overrides:
    """Returns the layers' replacements in graphs for few tokens, in float32, with constants of these graphs as
    weights.
    """
    config, overrides = encoder.config, Overrides()

    def make(kernel: np.ndarray, bias: np.ndarray | None) -> Product:
        return SmallProducts(values, kernel, bias)

    for layer in encoder.transformer_layers:
        if encoder.attention is None and has_plain_attention(config):
            overrides[layer.attention, "call"] = ServedAttention(layer.attention, make, softmax=_softmax)
        if config.feed_forward == "dense":
            overrides[layer, "feed_forward"] = FewFeedForward(layer, values)
    return overrides


def _softmax(scores: Float[Any, "B N Q S"]) -> Float[Any, "B N Q S"]:
    return tf.exp(tf.nn.log_softmax(scores))


def _pieces(size: int, columns: int) -> int:
    """Returns into how many pieces of equal width a kernel of `size` weights and `columns` columns is cut."""
    return (
        next(pieces for pieces in range(max(1, -(-size // MOST_WEIGHTS)), columns + 1) if columns % pieces == 0)
        if columns
        else 1
    )


def _product(values: Values, kernel: np.ndarray, bias: np.ndarray) -> Product:
    """Returns a product of a graph's constants."""
    weights, added = values.constant(kernel), values.constant(bias if bias.any() else np.full_like(bias, NO_BIAS))
    return lambda rows: tf.nn.bias_add(tf.matmul(rows, weights()), added())
