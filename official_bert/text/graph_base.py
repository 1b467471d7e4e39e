"""Base of all tokenizers in TensorFlow: the facts of the tokenizer on the host, and lookup tables by character.

N characters of the whole batch.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from official_bert.text.packing import Template
from official_bert.text.tokenizer import Tokenizer

PAGE_BITS = 8
CODES = 0x110000


def traced_once(method: Callable) -> Callable:
    """Wraps a tokenizer's method of texts [B] in one function that all graphs share, because tracing it takes as long
    as tracing a small encoder. Eager calls stay as they are.
    """
    traced = tf.function(method, autograph=False, input_signature=[tf.TensorSpec([None], tf.string)])

    @functools.wraps(method)
    def call(self: tf.Module, text: tf.Tensor) -> Any:
        return method(self, text) if tf.executing_eagerly() else traced.__get__(self, type(self))(text)

    return call


class HostFacts(tf.Module):
    """The facts of a host tokenizer that its TensorFlow form exposes, too."""

    resources: Sequence[Any] = ()  # what a SavedModel must hold besides constants

    def __init__(self, host: Tokenizer):
        super().__init__()
        self.host, self.vocab = host, host.vocab
        self.vocab_file, self.do_lower_case = host.vocab_file, host.do_lower_case

    @property
    def tokens(self) -> list[str]:
        """The tokens in the order of their ids, "" for ids without one."""
        return [self.host.inv_vocab.get(index, "") for index in range(self.host.size)]

    @property
    def template(self) -> Template:
        """The form of rows."""
        return self.host.template

    def special_id(self, role: str) -> int:
        """Returns the id of the special token in the role of BERT's [MASK], ..."""
        return self.host.special_id(role)


class CharacterTable:
    """A table with a value for each code point, stored in pages of 256, because many pages are equal."""

    def __init__(self, values: np.ndarray):
        """`values` [CODES]."""
        numbers: dict[bytes, int] = {}  # of different pages; `np.unique` would take a second
        page_of = [numbers.setdefault(page.tobytes(), len(numbers)) for page in values.reshape(-1, 1 << PAGE_BITS)]
        with tf.init_scope():
            self._values = tf.constant(np.frombuffer(b"".join(numbers), values.dtype))
            self._page_starts = tf.constant(np.array(page_of, np.int32) << PAGE_BITS)

    def __call__(self, codes: tf.Tensor) -> tf.Tensor:
        """Returns the values of characters [N]."""
        page_starts = tf.gather(self._page_starts, tf.bitwise.right_shift(codes, PAGE_BITS))
        return tf.gather(self._values, page_starts + tf.bitwise.bitwise_and(codes, (1 << PAGE_BITS) - 1))


def begins_row(row_splits: tf.Tensor, count: tf.Tensor) -> tf.Tensor:
    """Returns whether each of `count` characters is the first of its text: bool [N+1], one behind the last included."""
    nowhere = tf.zeros([count + 1], tf.bool)
    return tf.tensor_scatter_nd_update(nowhere, row_splits[:, None], tf.ones_like(row_splits, tf.bool))
