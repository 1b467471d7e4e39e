"""The base of served models whose texts may be longer than a row: overlapping windows over each text, run in chunks.

B texts, R rows (a text longer than the model has several windows), S tokens.
"""

from collections.abc import Callable, Mapping
from typing import ClassVar

import keras
import tensorflow as tf

from official_bert.serving.bounds import in_chunks, in_range, require
from official_bert.serving.served_model import ServedModel, Tensors
from official_bert.text import graph_packing
from official_bert.text.graph import GraphTokenizer


class ServedWindows(ServedModel):
    """A model that sees a text in windows, `doc_stride` tokens apart.

    `max_windows` is the most that one text may have. `tokens_at_once` bounds memory: rows go through the model in chunks of at most
    so many tokens, padding included (at least one row).
    """

    reads: ClassVar[tuple[str, ...]] = ("max_windows", "tokens_at_once")

    def __init__(self, model: keras.Model, tokenizer: GraphTokenizer, max_seq_length: int, *, doc_stride: int = 128,
                 max_windows: int = 256, tokens_at_once: int = 4096):
        super().__init__(model, tokenizer, max_seq_length)
        self.doc_stride, self.max_windows, self.tokens_at_once = doc_stride, max_windows, tokens_at_once

    def make_windows(self, name: str, lengths: tf.Tensor, room: tf.Tensor | int) -> graph_packing.Windows:
        """Returns the windows over texts of `lengths` [B] tokens, with room for `room` tokens each (one number, or [B]).

        Refuses a text that needs more than `max_windows`, by the name of its input.
        """
        windows = graph_packing.sliding_windows(lengths, room, self.doc_stride)
        count = tf.reduce_max(tf.math.bincount(windows.text, minlength=1))
        claim = in_range(f"{name}: expected", count, 0, self.max_windows, f"windows of {self.max_seq_length} tokens over a text")
        return require([claim], windows)

    def run_in_chunks(self, compute: Callable[[Tensors], Mapping[str, tf.Tensor]], rows: Tensors,
                      results: Mapping[str, tf.TensorSpec]) -> dict[str, tf.Tensor]:
        """Returns `compute(rows)` for rows of features [R,S], computed a chunk of rows at a time; see `in_chunks`."""
        total, length = tf.unstack(tf.shape(rows["input_ids"]))
        return in_chunks(lambda first, last: compute({name: value[first:last] for name, value in rows.items()}),
                         total, self.rows_at_once(length), results)

    def rows_at_once(self, length: tf.Tensor) -> tf.Tensor:
        """Returns how many rows of `length` tokens are computed together."""
        return tf.maximum(self.tokens_at_once // tf.maximum(length, 1), 1)
