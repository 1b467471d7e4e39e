"""What the layers of an encoder compute in files of other runtimes: the same numbers by fewer operations, those that every runtime has.

As in the SavedModels (`served_layers`), but heads are transposed, which other runtimes do faster than to gather them.
"""

import contextlib

import tensorflow as tf

from official_bert.layers.embeddings import Embeddings
from official_bert.layers.speed.extension_points import original, overridden
from official_bert.layers.token_layout import TokenLayout
from official_bert.models.encoder import BertEncoder
from official_bert.serving.served_layers import ServedAttention, Values, served_layers


class PortableAttention(ServedAttention):
    """`ServedAttention` with transposed heads."""

    def __call__(self, x, attention_mask, queries=None, training=None):
        """x [B,S,D], attention_mask a `TokenLayout` (or [B,1,1 or Q,S]), queries [B,Q,D] or None for x -> [B,Q,D]."""
        del training  # false
        layout = TokenLayout.of(attention_mask, queries)
        attention_mask, bias = layout.mask, layout.positions.bias(self.layer, None, None)
        batch, length = (tf.shape(attention_mask)[axis] for axis in (0, 3))
        count = length if queries is None else tf.shape(queries)[1]
        rows = tf.reshape(x, [-1, self.width])
        if queries is None:
            q, k, v = tf.split(self._product("all")(rows), 3, axis=1)
        else:
            q = self._product("query")(tf.reshape(queries, [-1, self.width]))
            k, v = tf.split(self._product("keys and values")(rows), 2, axis=1)
        shape = [self.heads, self.width // self.heads]
        q = tf.transpose(tf.reshape(q, [batch, count, *shape]), [0, 2, 1, 3])         # [B,N,Q,H]
        k, v = (tf.transpose(tf.reshape(part, [batch, length, *shape]), [0, 2, 1, 3]) for part in (k, v))
        context = tf.transpose(self.attend(q, k, v, attention_mask, bias), [0, 2, 1, 3])
        return tf.reshape(self.merge(tf.reshape(context, [-1, self.width])), [batch, count, self.width])


@contextlib.contextmanager
def portable_layers(encoder: BertEncoder):
    """Graphs that are traced here have these operations."""
    values = Values()
    overrides, _ = served_layers(encoder, values.product, values, tf.float32, PortableAttention)
    tables = encoder.embeddings
    if type(tables) is Embeddings:  # Keras' `take` also counts from the end of a table
        read = original(tables, "read")
        overrides[tables, "read"] = lambda name, places: (
            read(name, places) if isinstance(places, slice) else
            tf.gather(tf.convert_to_tensor(getattr(tables, name)), places))
    with overridden(overrides):
        yield
