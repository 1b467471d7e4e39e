"""Losses that compare a student's outputs with its teacher's, as (sum, weight): only the step divides, over the global
batch.

Each loss is 0 for a student equal to its teacher.
"""

import tensorflow as tf

from official_bert.objectives.losses import ABSENT, Fraction, weighted_sum


def divergence(
    logits: tf.Tensor, teacher: tf.Tensor, weights: tf.Tensor, temperature: float, present: tf.Tensor | None = None
) -> Fraction:
    """Returns the weighted sum of temperature² * KL(teacher || student) of softmax(logits / temperature), and the sum
    of weights.

    `logits` and `teacher` are [...,K], `weights` [...]. The square keeps the size of the gradients when the temperature
    changes (Hinton et al. 2015, 2). Choices that are not `present` [...,K] are ignored.
    """
    ours, theirs = (tf.cast(values, tf.float32) / temperature for values in (logits, teacher))
    if present is not None:
        ours, theirs = (tf.where(present, values, ABSENT) for values in (ours, theirs))
    ours, theirs = tf.nn.log_softmax(ours), tf.nn.log_softmax(theirs)
    each = tf.exp(theirs) * (theirs - ours)
    each = each if present is None else tf.where(present, each, 0.0)
    return weighted_sum(temperature**2 * tf.reduce_sum(each, axis=-1), weights)


def binary_divergence(logits: tf.Tensor, teacher: tf.Tensor, weights: tf.Tensor, temperature: float) -> Fraction:
    """Returns `divergence` averaged over K independent yes-or-no labels: logits [B,K], weights [B]."""
    ours, theirs = (tf.cast(values, tf.float32) / temperature for values in (logits, teacher))
    each = tf.math.sigmoid(theirs) * (tf.math.log_sigmoid(theirs) - tf.math.log_sigmoid(ours))
    each += tf.math.sigmoid(-theirs) * (tf.math.log_sigmoid(-theirs) - tf.math.log_sigmoid(-ours))
    return weighted_sum(temperature**2 * tf.reduce_mean(each, axis=-1), weights)


def cosine_distance(states: tf.Tensor, teacher: tf.Tensor, weights: tf.Tensor) -> Fraction:
    """Returns the weighted sum of 1 - cos(student, teacher) of states [...,D], and the sum of weights [...] (Sanh et
    al. 2019, 2).
    """
    ours, theirs = (tf.nn.l2_normalize(tf.cast(values, tf.float32), axis=-1) for values in (states, teacher))
    return weighted_sum(1.0 - tf.reduce_sum(ours * theirs, axis=-1), weights)


def relation_divergence(
    states: tf.Tensor, teacher: tf.Tensor, weights: tf.Tensor, visible: tf.Tensor, heads: int
) -> Fraction:
    """Returns the weighted sum over tokens of KL(teacher || student) of their relations, averaged over heads, and the
    sum of weights (Wang et al. 2021, 3.1).

    Relations are softmax(x xᵀ / sqrt(head width)) of rows x, split into `heads`. The rows [B,S,D] of the two models may
    differ in width. `visible`, bool [B,1,1 or S,S], says which tokens a token is related to; weights [B,S].
    """
    ours, theirs = (
        tf.nn.log_softmax(tf.where(visible, _relations(tf.cast(values, tf.float32), heads), ABSENT))
        for values in (states, teacher)
    )
    each = tf.reduce_sum(tf.exp(theirs) * (theirs - ours), axis=-1)  # [B,heads,S]
    return weighted_sum(tf.reduce_mean(each, axis=1), weights)


def _relations(rows: tf.Tensor, heads: int) -> tf.Tensor:
    """[B,S,D] -> [B,heads,S,S]."""
    size = rows.shape[-1] // heads
    by_head = tf.transpose(tf.reshape(rows, (tf.shape(rows)[0], -1, heads, size)), (0, 2, 1, 3))
    return tf.matmul(by_head, by_head, transpose_b=True) / size**0.5
