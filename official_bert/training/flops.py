"""Counts the FLOPs of a training step for `model FLOP/s`."""

from collections.abc import Mapping

import tensorflow as tf

from official_bert.config import ModelConfig


def training_flops(model: ModelConfig, batch: Mapping[str, tf.Tensor]) -> tf.Tensor:
    """Returns the floating-point operations of all matrix products, forward and backward, for a batch with its padding.

    It follows the usual convention of model FLOP/s: a multiply-add counts as two, backward as twice the forward pass,
    recomputation as nothing. The last layer counts for every row, although ours computes only the rows that are read.
    The result is 0 for precomputed features of a frozen encoder.
    """
    if "input_ids" not in batch:
        return tf.constant(0.0)
    shape = tf.cast(tf.shape(batch["input_ids"]), tf.float32)
    length, rows = shape[-1], tf.reduce_prod(shape[:-1])
    width, inner = model.hidden_size, model.intermediate_size
    a_token = 2.0 * (4 * width * width + (3 if model.feed_forward == "gated" else 2) * width * inner)
    windows = [model.windows.of_layer(index) for index in range(model.num_hidden_layers)]
    # keys of a query, in all layers
    seen = sum(tf.minimum(length, 3.0 * window) if window else length for window in windows)
    forward = (model.num_hidden_layers * a_token + 4.0 * width * seen) * length
    forward += 2.0 * width * width + 2.0 * model.embedding_size * width * length
    if "masked_lm_positions" in batch:
        predictions = tf.cast(tf.shape(batch["masked_lm_positions"])[-1], tf.float32)
        forward += predictions * 2.0 * model.table_width * (width + model.vocab_size)
    return 3.0 * rows * forward
