"""`text/packing` in TensorFlow ops, for SavedModels: rows of tokens, truncation, sliding windows, maximum context.

B texts, R rows of the model's input (several for a text longer than the model's input), S tokens of the longest row.
"""

from typing import NamedTuple

import tensorflow as tf
from tensorflow import Tensor

from official_bert.text.packing import Part, Template


class Slices(NamedTuple):
    """The tokens of each row: `length` [R] of `values` [T] from `start` [R] on."""

    values: Tensor
    start: Tensor
    length: Tensor


class Windows(NamedTuple):
    """Overlapping windows over the tokens of texts, text by text; each [R] int32."""

    text: Tensor
    start: Tensor
    length: Tensor


class Layout(NamedTuple):
    """Rows `[CLS] a [SEP]` or `[CLS] a [SEP] b [SEP]`, padded to the longest of the batch, each [R,S] int32.

    `token` is the index of each token in a's or b's values (0 if `in_a` and `in_b` are false).
    """

    input_ids: Tensor
    input_mask: Tensor
    segment_ids: Tensor
    token: Tensor
    in_a: Tensor  # [R,S] bool
    in_b: Tensor

    def features(self) -> dict[str, Tensor]:
        """Returns the model's inputs."""
        return {name: getattr(self, name) for name in ("input_ids", "input_mask", "segment_ids")}


def whole(ids: tf.RaggedTensor) -> Slices:
    """Returns slices that hold every token of ragged ids [B, (T)]."""
    return Slices(ids.values, tf.cast(ids.row_starts(), tf.int32), tf.cast(ids.row_lengths(), tf.int32))


def truncate_pair(a: Slices, b: Slices, max_tokens: Tensor | int) -> tuple[Slices, Slices, Tensor]:
    """Truncates both to `max_tokens` (a scalar, or [R]) as `packing.truncate_pair` does; also returns whether each row
    was cut [R].
    """
    half = (max_tokens + 1) // 2  # a's tokens if both are too long
    length_a = tf.minimum(a.length, tf.maximum(max_tokens - b.length, half))
    length_b = tf.minimum(b.length, tf.maximum(max_tokens - a.length, max_tokens - half))
    return a._replace(length=length_a), b._replace(length=length_b), a.length + b.length > max_tokens


def truncate(a: Slices, max_tokens: int) -> tuple[Slices, Tensor]:
    """Keeps the first `max_tokens` tokens of each row; also returns whether each row was cut [R]."""
    return a._replace(length=tf.minimum(a.length, max_tokens)), a.length > max_tokens


def keep(a: Slices, length: Tensor, part: Part) -> Slices:
    """Returns slices of `length` [R] tokens, chosen from slices as long or longer as in `packing.keep`."""
    if part == "head":
        return a._replace(length=length)
    last = tf.where(a.length > length, length if part == "tail" else length // 2, 0)
    end = a.start + a.length
    places = tf.concat([tf.ragged.range(a.start, a.start + length - last), tf.ragged.range(end - last, end)], 1)
    return Slices(tf.gather(a.values, places.values), tf.cast(places.row_starts(), tf.int32), length)


def lay_out(a: Slices, b: Slices | None, template: Template) -> Layout:
    """Lays out rows of one text or two in the template's form; an empty b gets no [SEP]."""
    if b is None:
        b = Slices(tf.zeros([0], tf.int32), tf.zeros_like(a.start), tf.zeros_like(a.length))
    first_sep = a.length[:, None] + 1
    last_sep = first_sep + template.separators - 1  # of those before b
    last = first_sep + tf.where(b.length > 0, b.length + template.separators, 0)[:, None]  # the place of the last [SEP]
    place = tf.range(tf.reduce_max(tf.concat([last, [[1]]], 0)) + 1)[None, :]  # [1,S]
    in_a = (place >= 1) & (place < first_sep)
    in_b = (place > last_sep) & (place < last)
    real = place <= last
    token = tf.where(in_a, place - 1 + a.start[:, None], tf.where(in_b, place - last_sep - 1 + b.start[:, None], 0))
    values = tf.concat([a.values, b.values, [template.pad_id]], 0)
    where = tf.where(in_a, token, tf.where(in_b, token + tf.size(a.values), tf.size(values) - 1))
    ids = tf.gather(values, where)
    ids = tf.where(tf.equal(place, 0), template.cls_id, ids)
    ids = tf.where(((place >= first_sep) & (place <= last_sep) | tf.equal(place, last)) & real, template.sep_id, ids)
    segments = tf.cast(real & (place > last_sep), tf.int32) * template.second_segment
    return Layout(ids, tf.cast(real, tf.int32), segments, token, in_a, in_b)


def pack_batch(
    ids_a: tf.RaggedTensor, ids_b: tf.RaggedTensor | None, template: Template, max_seq_length: int, part: Part = "head"
) -> tuple[Layout, Tensor]:
    """Packs a classifier's examples, truncated as in 2018 to the chosen `part` of each text; also returns whether each
    was cut [B].
    """
    a = whole(ids_a)
    if ids_b is None:
        cut_a, truncated = truncate(a, max_seq_length - template.extra(False))
        return lay_out(keep(a, cut_a.length, part), None, template), truncated
    b = whole(ids_b)
    room = max_seq_length - tf.where(b.length > 0, template.extra(True), template.extra(False))
    cut_a, cut_b, truncated = truncate_pair(a, b, room)
    return lay_out(keep(a, cut_a.length, part), keep(b, cut_b.length, part), template), truncated


def sliding_windows(lengths: Tensor, window: Tensor | int, stride: int) -> Windows:
    """Returns `packing.sliding_windows` over texts of `lengths` [B]; `window` is a scalar or [B].

    A text without tokens gets one empty window, so that every text has a row.
    """
    window = tf.broadcast_to(window, tf.shape(lengths))
    step = tf.minimum(window, stride)
    count = 1 + (tf.maximum(lengths - window, 0) + step - 1) // step
    text = tf.repeat(tf.range(tf.size(lengths)), count)
    number = tf.range(tf.size(text)) - tf.gather(tf.cumsum(count, exclusive=True), text)
    start = number * tf.gather(step, text)
    return Windows(text, start, tf.minimum(tf.gather(window, text), tf.gather(lengths, text) - start))


def max_context(windows: Windows, lengths: Tensor) -> Tensor:
    """Returns whether each window shows its tokens with the most context [R, longest window]; see
    `packing.is_max_context`.
    """
    within = tf.range(tf.reduce_max(tf.concat([windows.length, [0]], 0)))[None, :]  # [1,W]
    real = within < windows.length[:, None]
    context = tf.minimum(within, windows.length[:, None] - 1 - within)
    # In float64 and in 2018's order: rounding decides between scores that are equal on paper.
    score = tf.cast(context, tf.float64) + 0.01 * tf.cast(windows.length, tf.float64)[:, None]
    text_start = tf.gather(tf.cumsum(lengths, exclusive=True), windows.text)
    total = tf.reduce_sum(lengths)
    token = tf.where(real, (text_start + windows.start)[:, None] + within, total)  # [R,W]; `total` for padding
    best = tf.math.unsorted_segment_max(score, token, total + 1)
    row = tf.range(tf.size(windows.text))[:, None] + tf.zeros_like(within)
    candidate = tf.where(tf.equal(score, tf.gather(best, token)), row, tf.int32.max)
    first = tf.math.unsorted_segment_min(candidate, token, total + 1)
    return real & tf.equal(row, tf.gather(first, token))
