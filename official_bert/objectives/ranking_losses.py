"""Losses of search (contrastive, triplet, margin, listwise), which compare a text's right answer with wrong ones, as
(sum, weight).

A group is a number of consecutive rows, whole in one micro-batch of one replica, so that a loss over groups is the same
in a global batch and in its parts. Scores are cosines divided by a temperature, or a reranker's logits.

B rows, G rows of a group, T texts of a row (anchor, positive, negatives), C = G * (T - 1) candidates of a group, D
numbers of a vector.
"""

import tensorflow as tf

from official_bert.objectives.distillation_losses import divergence
from official_bert.objectives.losses import ABSENT, cross_entropy, weighted_sum
from official_bert.objectives.losses import Fraction as Fraction

MISSING = -1  # the number of a text that a row does not have


def group_logits(
    vectors: tf.Tensor, texts: tf.Tensor, weights: tf.Tensor, group_size: int, temperature: float
) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns logits [B,C] of each row's anchor with all positives and negatives of its group, and the index of the
    positive [B].

    `vectors` [B,T,D] have length 1; equal `texts` [B,T] mean equal texts; weights [B]. These are no candidates
    (`ABSENT`): texts of rows with weight 0, missing texts, the anchor itself, and positives of the same anchor in other
    rows of the group.
    """
    anchors, positives, candidates = _numbers(texts, group_size)
    same_anchor = anchors[:, :, None] == anchors[:, None]  # [B/G,G,G]
    answers = _joined(same_anchor, positives[:, :, None] == candidates[:, None])  # [B/G,G,C]
    size = texts.shape[1] - 1
    filler = tf.repeat(tf.reshape(weights, (-1, group_size)) == 0.0, size, axis=1) | (candidates == MISSING)
    places = tf.zeros_like(anchors) + tf.range(group_size) * size  # [B/G,G]
    own = places[:, :, None] == tf.range(group_size * size)
    out = (answers | (anchors[:, :, None] == candidates[:, None]) | filler[:, None]) & ~own
    first, second = (
        tf.reshape(part, (-1, group_size * count, vectors.shape[-1]))
        for part, count in ((vectors[:, :1], 1), (vectors[:, 1:], size))
    )
    return _masked(first, second, out, temperature), tf.reshape(places, [-1])


def reverse_logits(
    vectors: tf.Tensor, texts: tf.Tensor, weights: tf.Tensor, group_size: int, temperature: float
) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns logits [B,G] of each row's positive with all anchors of its group, and the index of the row's own anchor
    [B].
    """
    anchors, positives, _ = _numbers(texts, group_size)
    same_anchor = anchors[:, :, None] == anchors[:, None]
    is_positive = _joined(positives[:, :, None] == positives[:, None], same_anchor)  # [B/G,G,G]
    filler = tf.reshape(weights, (-1, 1, group_size)) == 0.0
    out = (is_positive | (positives[:, :, None] == anchors[:, None]) | filler) & ~tf.eye(group_size, dtype=tf.bool)
    first, second = (tf.reshape(vectors[:, side], (-1, group_size, vectors.shape[-1])) for side in (0, 1))
    return _masked(second, first, out, temperature), tf.reshape(tf.zeros_like(anchors) + tf.range(group_size), [-1])


def contrastive(
    vectors: tf.Tensor,
    texts: tf.Tensor,
    weights: tf.Tensor,
    group_size: int,
    temperature: float,
    both_directions: bool = False,
) -> Fraction:
    """Returns (sum, weight) of the cross-entropy of the positive among the candidates (InfoNCE, van den Oord et al.
    2018).

    The arguments are those of `group_logits`. With `both_directions`, the loss is the mean with the cross-entropy of
    the anchor among the anchors (Radford et al. 2021).
    """
    total, weight = cross_entropy(*group_logits(vectors, texts, weights, group_size, temperature), weights)
    if both_directions:
        total = (
            total + cross_entropy(*reverse_logits(vectors, texts, weights, group_size, temperature), weights)[0]
        ) / 2.0
    return total, weight


def triplet(scores: tf.Tensor, present: tf.Tensor, weights: tf.Tensor, margin: float) -> Fraction:
    """Returns (sum, weight) of each row's mean over negatives of max(0, margin - positive + negative) (Schroff et al.
    2015, with cosines).

    `scores` [B,T-1] begin with the positive; `present` marks the scores that a row has; weights [B].
    """
    return _mean_of_negatives(tf.nn.relu(margin - scores[:, :1] + scores[:, 1:]), present, weights)


def margin_mse(scores: tf.Tensor, teacher: tf.Tensor, present: tf.Tensor, weights: tf.Tensor) -> Fraction:
    """Returns (sum, weight) of each row's mean over negatives of the squared difference between the student's and the
    teacher's margins, positive minus negative (Hofstätter et al. 2020).
    """
    margins, teacher_margins = (values[:, :1] - values[:, 1:] for values in (scores, tf.cast(teacher, tf.float32)))
    return _mean_of_negatives(tf.math.squared_difference(margins, teacher_margins), present, weights)


def kl_divergence(scores: tf.Tensor, teacher: tf.Tensor, present: tf.Tensor, weights: tf.Tensor) -> Fraction:
    """Returns (sum, weight) of KL(teacher || student) of the softmax of each row's scores; `scores` and `teacher` are
    [B,T-1].
    """
    return divergence(scores, teacher, weights, 1.0, present)


def cosent(cosines: tf.Tensor, targets: tf.Tensor, weights: tf.Tensor, group_size: int, temperature: float) -> Fraction:
    """Returns (sum, weight) of log(1 + sum of exp((cosine of the less similar pair - that of the more similar) /
    temperature)) over all pairs of rows of a group (Su 2022).

    `cosines`, `targets` and `weights` are [B]. The weight of a group is the number of its real rows.
    """
    values, scores, real = (
        tf.reshape(tf.cast(part, tf.float32), (-1, group_size)) for part in (cosines, targets, weights)
    )
    ordered = (scores[:, :, None] > scores[:, None]) & ((real[:, :, None] * real[:, None]) > 0.0)
    differences = tf.where(ordered, (values[:, None] - values[:, :, None]) / temperature, ABSENT)
    flat = tf.reshape(differences, (-1, group_size * group_size))
    each = tf.reduce_logsumexp(tf.pad(flat, [[0, 0], [0, 1]]), axis=-1)
    rows = tf.reduce_sum(real, axis=-1)
    return tf.reduce_sum(each * rows), tf.reduce_sum(rows)


def pointwise(scores: tf.Tensor, labels: tf.Tensor, present: tf.Tensor, weights: tf.Tensor) -> Fraction:
    """Returns (sum, weight) of the mean binary cross-entropy of each row's texts: scores and labels (0 or 1) [B,C]."""
    each = tf.nn.sigmoid_cross_entropy_with_logits(labels=tf.cast(labels, tf.float32), logits=scores)
    return weighted_sum(_mean(each, present), weights)


def pairwise(scores: tf.Tensor, labels: tf.Tensor, present: tf.Tensor, weights: tf.Tensor) -> Fraction:
    """Returns (sum, weight) of each row's mean of log(1 + exp(less - more)) over pairs of a more and a less relevant
    text (RankNet, Burges et al. 2005).
    """
    labels = tf.cast(labels, tf.float32)
    pairs = (labels[:, :, None] > labels[:, None]) & present[:, :, None] & present[:, None]  # [B,C,C]
    each = tf.nn.softplus(scores[:, None] - scores[:, :, None])
    flat = tf.shape(scores)[1] ** 2
    return weighted_sum(_mean(tf.reshape(each, (-1, flat)), tf.reshape(pairs, (-1, flat))), weights)


def listwise(scores: tf.Tensor, labels: tf.Tensor, present: tf.Tensor, weights: tf.Tensor) -> Fraction:
    """Returns (sum, weight) of the cross-entropy of the softmax of each row's scores with its labels, scaled to sum to
    1 (ListNet, Cao et al. 2007, with linear gains).
    """
    shares = tf.where(present, tf.cast(labels, tf.float32), 0.0)
    shares = tf.math.divide_no_nan(shares, tf.reduce_sum(shares, axis=-1, keepdims=True))
    logs = tf.nn.log_softmax(tf.where(present, scores, ABSENT))
    return weighted_sum(-tf.reduce_sum(tf.where(present, shares * logs, 0.0), axis=-1), weights)


def _numbers(texts: tf.Tensor, group_size: int) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """The numbers of anchors and positives [B/G,G] and of all candidates [B/G,C] of texts [B,T]."""
    grouped = tf.reshape(texts, (-1, group_size, texts.shape[1]))
    return grouped[..., 0], grouped[..., 1], tf.reshape(grouped[..., 1:], (-1, group_size * (texts.shape[1] - 1)))


def _joined(first: tf.Tensor, second: tf.Tensor) -> tf.Tensor:
    """Whether there is a row through which both relations hold: bool [...,G,G] and [...,G,C] -> [...,G,C]."""
    return tf.matmul(tf.cast(first, tf.float32), tf.cast(second, tf.float32)) > 0.0


def _masked(first: tf.Tensor, second: tf.Tensor, out: tf.Tensor, temperature: float) -> tf.Tensor:
    logits = tf.where(out, ABSENT, tf.matmul(first, second, transpose_b=True) / temperature)
    return tf.reshape(logits, (-1, out.shape[-1] or tf.shape(out)[-1]))


def _mean(values: tf.Tensor, present: tf.Tensor) -> tf.Tensor:
    """The mean of the values [B,C] that are present; 0 without any."""
    return tf.math.divide_no_nan(
        tf.reduce_sum(tf.where(present, values, 0.0), axis=-1), tf.reduce_sum(tf.cast(present, tf.float32), axis=-1)
    )


def _mean_of_negatives(values: tf.Tensor, present: tf.Tensor, weights: tf.Tensor) -> Fraction:
    return weighted_sum(_mean(values, present[:, 1:]), weights)
