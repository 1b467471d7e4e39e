"""The base of served models that see a long text in overlapping windows."""

from typing import Any, ClassVar

import keras
import tensorflow as tf
from jaxtyping import Int

from official_bert.serving.bounds import in_range, require
from official_bert.serving.served_model import ServedModel
from official_bert.text import graph_packing
from official_bert.text.graph_loading import AnyGraphTokenizer


class ServedWindows(ServedModel):
    """The base of models that split a text longer than a row into overlapping windows, `doc_stride` tokens apart.

    A text has at most `max_windows` windows. `tokens_at_once` bounds memory: rows pass through the model in groups of
    at most this many tokens, with padding (at least one row).
    """

    reads: ClassVar[tuple[str, ...]] = ("max_windows", "tokens_at_once")

    def __init__(
        self,
        model: keras.Model,
        tokenizer: AnyGraphTokenizer,
        max_seq_length: int,
        *,
        doc_stride: int = 128,
        max_windows: int = 256,
        tokens_at_once: int = 4096,
    ):
        super().__init__(model, tokenizer, max_seq_length)
        self.doc_stride, self.max_windows, self.tokens_at_once = doc_stride, max_windows, tokens_at_once

    def make_windows(self, name: str, lengths: Int[Any, " B"], room: Int[Any, " B"] | int) -> graph_packing.Windows:
        """Returns the windows over texts of `lengths` [B] tokens, each of `room` tokens (one number, or [B]).

        A text that needs more than `max_windows` fails with the name of its input.
        """
        windows = graph_packing.sliding_windows(lengths, room, self.doc_stride)
        count = tf.reduce_max(tf.math.bincount(windows.text, minlength=1))
        claim = in_range(
            f"{name}: expected", count, 0, self.max_windows, f"windows of {self.max_seq_length} tokens over a text"
        )
        return require([claim], windows)
