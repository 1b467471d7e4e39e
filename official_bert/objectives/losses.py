"""Losses of classifiers (cross-entropy, label smoothing, squared error) as (sum, weight): only the step divides, over
the global batch.

So N replicas, k micro-batches and one big batch are the same training. (2018 averaged the means of its shards, so
tokens of a shard with few masks counted more.)
"""

from collections.abc import Callable, Mapping
from typing import Any

import tensorflow as tf
from jaxtyping import Float, Int, Shaped

Fraction = tuple[Float[Any, ""], Float[Any, ""]]  # (sum, weight), float32; only the loop divides, over the global batch
MANY, BLOCKS = 4096, range(4, 65)  # logits that are searched by blocks, and into how many
ABSENT = -1e9  # the logit of a label, or a choice, that a row does not have


def cross_entropy(
    logits: Float[Any, "*rows K"], labels: Int[Any, "*rows"], weights: Shaped[Any, "*rows"], smoothing: float = 0.0
) -> Fraction:
    """Returns the weighted sum of -log softmax(logits)[label] and the sum of weights, in float32.

    `logits` are [...,K], `labels` and `weights` [...]. With `smoothing` s, each of the K labels gets s / K of the
    target, and the row's own label also gets the rest, 1 - s (Szegedy et al. 2016). A logit of -1e9 marks a label that
    the row does not have.
    """
    logits = tf.cast(logits, tf.float32)
    losses = negative_log_likelihoods(logits, labels)
    if smoothing:
        possible = logits > ABSENT / 2
        each = tf.where(possible, tf.nn.log_softmax(logits), 0.0)
        mean = tf.reduce_sum(each, axis=-1) / tf.reduce_sum(tf.cast(possible, tf.float32), axis=-1)
        losses = (1.0 - smoothing) * losses - smoothing * mean
    return weighted_sum(losses, weights)


def weighted_sum(values: Float[Any, "*rows"], weights: Shaped[Any, "*rows"]) -> Fraction:
    """Returns the sum of values * weights and the sum of weights in float32; both arguments are [...]."""
    weights = tf.cast(weights, tf.float32)
    return tf.reduce_sum(values * weights), tf.reduce_sum(weights)


def negative_log_likelihoods(logits: Float[Any, "*rows K"], labels: Int[Any, "*rows"]) -> Float[Any, "*rows"]:
    """Returns -log softmax(logits)[label] of each row: logits [...,K] float32, labels [...] -> [...].

    It takes fewer passes over the logits than TensorFlow's operation. It computes a softmax, which is also the gradient
    except for one number a row, and the index of the largest logit, which `accuracy` needs too. The probability there
    is at least 1 / K, so its logarithm loses no digits.
    """
    targets = tf.cast(tf.reshape(labels, [-1]), tf.int32)

    @tf.custom_gradient
    def found(rows: tf.Tensor) -> tuple[tf.Tensor, Callable[[tf.Tensor], tf.Tensor]]:
        probabilities, largest = tf.nn.softmax(rows), largest_places(rows)
        losses = (
            tf.gather(rows, largest, batch_dims=1)
            - tf.gather(rows, targets, batch_dims=1)
            - tf.math.log(tf.gather(probabilities, largest, batch_dims=1))
        )

        def gradient(upstream: tf.Tensor) -> tf.Tensor:
            places = tf.stack([tf.range(tf.size(targets)), targets], axis=1)
            return tf.tensor_scatter_nd_sub(probabilities * upstream[:, None], places, upstream)

        return losses, gradient

    return tf.reshape(found(as_rows(logits)), tf.shape(labels))


def as_rows(logits: Float[Any, "*rows K"]) -> Float[Any, "M K"]:
    """Returns the logits as a matrix: [...,K] -> [M,K]."""
    return tf.reshape(logits, (-1, logits.shape[-1] or tf.shape(logits)[-1]))


def largest_places(rows: Float[Any, "M K"]) -> Int[Any, " M"]:
    """Returns the index of the largest logit of each row, the first among equal ones: [M,K] -> [M].

    For many logits, it first finds the block with the largest one: TensorFlow finds a maximum in half the time of an
    argmax.
    """
    width = rows.shape[-1] or 0
    count = next((count for count in BLOCKS if width >= MANY and width % count == 0), 1)
    if count == 1:
        return tf.argmax(rows, axis=-1, output_type=tf.int32)
    blocks = tf.reshape(rows, (-1, count, width // count))
    block = tf.argmax(tf.reduce_max(blocks, axis=-1), axis=-1, output_type=tf.int32)
    return block * (width // count) + tf.argmax(tf.gather(blocks, block, batch_dims=1), axis=-1, output_type=tf.int32)


def binary_cross_entropy(
    logits: Float[Any, "B K"],
    labels: Shaped[Any, "B K"],
    weights: Shaped[Any, " B"],
    label_weights: Float[Any, "#B K"] | float = 1.0,
    smoothing: float = 0.0,
) -> Fraction:
    """Returns the weighted sum over examples of the mean loss over K independent labels, and the sum of weights.

    `logits` and `labels` are [B,K], `weights` [B]. `label_weights` [B,K] multiply the losses of single labels. With
    `smoothing` s, the targets 0 and 1 become s / 2 and 1 - s / 2.
    """
    labels = tf.cast(labels, tf.float32) * (1.0 - smoothing) + 0.5 * smoothing
    losses = tf.nn.sigmoid_cross_entropy_with_logits(labels=labels, logits=tf.cast(logits, tf.float32)) * label_weights
    return weighted_sum(tf.reduce_mean(losses, axis=-1), weights)


def masked_diffusion(
    logits: Float[Any, "B P V"],
    ids: Int[Any, "B P"],
    masked: Shaped[Any, "B P"],
    t: Float[Any, " B"],
    maskable: Shaped[Any, "B P"],
) -> Fraction:
    """Returns the sum over masked tokens of -log softmax(logits)[id] / t, and the number of maskable tokens.

    This is the bound of masked diffusion (Sahoo et al. 2024, Nie et al. 2025) for rows in which each maskable token was
    masked with probability t.
    """
    weights = tf.cast(masked, tf.float32) / tf.cast(t, tf.float32)[:, None]
    total, _ = weighted_sum(negative_log_likelihoods(tf.cast(logits, tf.float32), ids), weights)
    return total, tf.reduce_sum(tf.cast(maskable, tf.float32))


def squared_error(scores: Float[Any, " B"], targets: Shaped[Any, " B"], weights: Shaped[Any, " B"]) -> Fraction:
    """Returns the weighted sum of squared differences and the sum of weights; all arguments are [B]."""
    return weighted_sum(tf.math.squared_difference(tf.cast(scores, tf.float32), tf.cast(targets, tf.float32)), weights)


def accuracy(logits: Float[Any, "*rows K"], labels: Int[Any, "*rows"], weights: Shaped[Any, "*rows"]) -> Fraction:
    """Returns the weighted number of rows whose largest logit is that of the label, and the sum of weights."""
    # As rows, so that the graph holds one search for the largest logits, that of the loss.
    right = tf.equal(tf.reshape(largest_places(as_rows(logits)), tf.shape(labels)), tf.cast(labels, tf.int32))
    return weighted_sum(tf.cast(right, tf.float32), weights)


def prediction_weights(batch: Mapping[str, Shaped[Any, "B ..."]]) -> Float[Any, "B P"]:
    """Returns the weight [B,P] of each masked-LM prediction, 0 in filler rows."""
    return batch["masked_lm_weights"] * batch["example_weights"][:, None]


def token_weights(batch: Mapping[str, Shaped[Any, "B ..."]]) -> Float[Any, "B S"]:
    """Returns 1 for each real token of a real row, else 0: [B,S]."""
    return tf.cast(batch["input_mask"], tf.float32) * batch["example_weights"][:, None]
