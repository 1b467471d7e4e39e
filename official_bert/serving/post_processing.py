"""Turns logits into a client's answers, in TensorFlow ops: words, labels, probabilities.

B texts, M blanks, V words, C classes, K best.
"""

from collections.abc import Sequence

import tensorflow as tf


def best_words(logits: tf.Tensor, present: tf.Tensor, words: tf.Tensor, count: int) -> dict[str, tf.Tensor]:
    """Returns `tokens`, `probabilities` [B,M,K] of logits [B,M,R], present [B,M] bool, words [V]; "" and 0 for blanks not present.

    The model may have more rows than the vocabulary has words (R >= V): those are no answer.
    """
    probabilities, best = tf.math.top_k(tf.nn.softmax(logits)[:, :, :tf.size(words)], count)
    return {"tokens": tf.where(present[:, :, None], tf.gather(words, best), ""),
            "probabilities": tf.where(present[:, :, None], probabilities, 0.0)}


def one_label(logits: tf.Tensor, labels: Sequence[str]) -> dict[str, tf.Tensor]:
    """Returns the likeliest `label` [B], `probabilities`, `logits` [B,C] of logits [B,C]."""
    best = tf.argmax(logits, axis=-1)
    return {"label": tf.gather(tf.constant(list(labels)), best), "probabilities": tf.nn.softmax(logits),
            "logits": logits}


def several_labels(logits: tf.Tensor, labels: Sequence[str], threshold: float | Sequence[float]) -> dict[str, tf.Tensor]:
    """Returns the `labels` [B,most] with a probability of at least `threshold` (one, or one for each label); logits [B,C].

    The likeliest label comes first; rows are padded with "", beyond `num_labels` [B].
    """
    probabilities = tf.sigmoid(logits)
    is_likely = probabilities >= tf.constant(threshold, probabilities.dtype)
    ordered, order = tf.math.top_k(tf.where(is_likely, probabilities, probabilities - 2.0), len(labels))
    is_label = ordered >= 0.0
    count = tf.reduce_sum(tf.cast(is_label, tf.int32), axis=1)
    most = tf.reduce_max(tf.concat([count, [0]], 0))
    names = tf.where(is_label, tf.gather(tf.constant(list(labels)), order), "")
    return {"labels": names[:, :most], "num_labels": count, "probabilities": probabilities, "logits": logits}
