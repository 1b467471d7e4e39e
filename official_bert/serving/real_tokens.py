"""An encoder's layers in TensorFlow's ops, over real tokens only: the form in which they are exported.

Products and layer norms work on a matrix of the real tokens of all rows; only attention sees rows with padding. The rows of a matrix
are brought to their heads and back by one gather each, with places that are computed once for all layers: TensorFlow's transpose of
oneDNN has a fixed cost that exceeds the product of a short text.

B batch, S sequence, T real tokens in all, Q wanted rows of the last layer, N heads, H head size, D = N * H hidden size.
"""

import contextlib
import functools
from collections.abc import Iterator
from typing import NamedTuple

import tensorflow as tf

from official_bert.models.encoder import BertEncoder

FEW_TOKENS = 256  # below, layer norms are faster step by step


class Heads(NamedTuple):
    """Where the parts of a matrix [T,D] that belong to a head stand among the heads of rows [B,N,S,H], and back."""

    split: tf.Tensor  # [B,N,S]: which of the T * N parts
    merge: tf.Tensor  # [T,N]: which of the B * N * S places

    @classmethod
    def of(cls, tokens: tf.Tensor, places: tf.Tensor, count: int):
        """Makes the table for `count` heads: tokens [B,S] are rows of the matrix, places [T] their places in the batch, row by row."""
        head, length = tf.range(count), tf.shape(tokens)[1]
        merge = (places // length * count * length + places % length)[:, None] + head * length
        return cls(tokens[:, None, :] * count + head[:, None], merge)

    def to_heads(self, matrix: tf.Tensor, size: int) -> tf.Tensor:
        """[T,D] -> [B,N,S,H]."""
        return tf.gather(tf.reshape(matrix, [-1, size]), self.split)

    def to_tokens(self, heads: tf.Tensor, width: int) -> tf.Tensor:
        """[B,N,S,H] -> [T,D]."""
        return tf.reshape(tf.gather(tf.reshape(heads, [-1, heads.shape[-1]]), self.merge), [-1, width])


@contextlib.contextmanager
def on_real_tokens(encoder: BertEncoder) -> Iterator[None]:
    """Lets an encoder compute its layers in this form, without dropout, while the context lasts: while a graph is traced.

    Rows behind the last real token of a text get a copy of that token's outputs. Packed rows and other positions are not served.
    """
    encoder.run_layers = functools.partial(_run_layers, encoder)
    try:
        yield
    finally:
        del encoder.run_layers


def real_lengths(input_mask: tf.Tensor, wanted: tf.Tensor | None = None) -> tf.Tensor:
    """Returns how many tokens [B] of rows with a mask [B,S] are computed: up to the last real or wanted one, at least one."""
    lengths = tf.maximum(tf.reduce_max(input_mask * tf.range(1, tf.shape(input_mask)[1] + 1), axis=1), 1)
    return lengths if wanted is None else tf.maximum(lengths, tf.reduce_max(wanted, axis=1) + 1)


def _run_layers(encoder: BertEncoder, inputs, wanted=None, training=None):
    """Does what `BertEncoder.run_layers` does."""
    assert not training and not {"position_ids", "instance_ids"} & set(inputs)
    input_mask, count = inputs["input_mask"], encoder.settings["num_attention_heads"]
    rows, length = tf.unstack(tf.shape(input_mask))
    lengths = real_lengths(input_mask, wanted)
    steps = tf.range(length)
    first = tf.cumsum(lengths, exclusive=True)[:, None]
    tokens = first + tf.minimum(steps, lengths[:, None] - 1)                          # [B,S]
    places = tf.cast(tf.where(tf.reshape(steps < lengths[:, None], [-1])), tf.int32)[:, 0]                # [T]
    x = embedded = _embed(encoder.embeddings, inputs, places, length)
    # Not minus infinity, as in `SelfAttention`. Added: TensorFlow fuses product, factor and sum into one operation.
    hidden = tf.where(tf.cast(input_mask, tf.bool), 0.0, -1e9)[:, None, None, :]      # [B,1,1,S]
    heads = Heads.of(tokens, places, count)
    ordered = encoder.settings["attention"] == "left_to_right"
    mask = tf.minimum(hidden, _behind(steps[None], steps)) if ordered else hidden     # [B,1,1 or S,S]
    outputs = []
    for layer in encoder.transformer_layers:
        if wanted is not None and layer is encoder.transformer_layers[-1]:
            width = tf.shape(wanted)[1]
            every = tf.range(rows * width)                                            # [B*Q]
            mask = tf.minimum(hidden, _behind(wanted, steps)) if ordered else hidden
            queries = tf.gather(x, tf.reshape(first + wanted, [-1]))                  # [B*Q,D]
            x = _run_layer(layer, x, heads, mask, queries, Heads.of(tf.reshape(every, [rows, width]), every, count))
            outputs.append(tf.reshape(x, [rows, width, x.shape[-1]]))
        else:
            x = _run_layer(layer, x, heads, mask, x, heads)                           # [T,D]
            outputs.append(tf.gather(x, tokens))
    return tf.gather(embedded, tokens), outputs


def _behind(places: tf.Tensor, steps: tf.Tensor) -> tf.Tensor:
    """Returns what is added to the scores of rows at places [B or 1,Q] for tokens at steps [S]: [B or 1,1,Q,S], -1e9 for those behind."""
    return tf.where(steps > places[:, None, :, None], -1e9, 0.0)


def _embed(embeddings, inputs, places: tf.Tensor, length: tf.Tensor) -> tf.Tensor:
    """Returns the embeddings [T,D] of the tokens at places [T] of the batch."""
    ids, segments = (tf.gather(tf.reshape(inputs[name], [-1]), places) for name in ("input_ids", "segment_ids"))
    summed = (tf.gather(embeddings.word_embeddings.value, ids) + tf.gather(embeddings.token_type_embeddings.value, segments)
              + tf.gather(embeddings.position_embeddings.value, places % length))
    return _normalize(tf.cast(summed, embeddings.compute_dtype), embeddings.layer_norm)


def _run_layer(layer, x: tf.Tensor, heads: Heads, mask: tf.Tensor, rows: tf.Tensor, row_heads: Heads) -> tf.Tensor:
    """Runs a layer for the rows [T or B*Q,D] of x [T,D]."""
    attention, width = layer.attention, x.shape[-1]
    size = width // attention.settings["num_heads"]
    query = row_heads.to_heads(_project(rows, attention.query), size)                 # [B,N,S or Q,H]
    key, value = (heads.to_heads(_project(x, part), size) for part in (attention.key, attention.value))   # [B,N,S,H]
    scores = tf.cast(tf.matmul(query, key, transpose_b=True), tf.float32) * attention.scale + mask
    weights = tf.cast(tf.nn.softmax(scores), value.dtype)
    context = row_heads.to_tokens(tf.matmul(weights, value), width)
    rows = _normalize(rows + _project(context, attention.merge_heads), layer.attention_layer_norm)
    expanded = layer.activation(_project(rows, layer.intermediate))
    return _normalize(rows + _project(expanded, layer.output_dense), layer.output_layer_norm)


def _project(x: tf.Tensor, layer) -> tf.Tensor:
    """Returns the product of a matrix with a layer's weights, whatever their shape, and its bias."""
    kernel = tf.reshape(tf.cast(layer.kernel.value, x.dtype), [x.shape[-1], -1])
    return tf.nn.bias_add(tf.matmul(x, kernel), tf.reshape(tf.cast(layer.bias.value, x.dtype), [-1]))


def _normalize(x: tf.Tensor, layer_norm) -> tf.Tensor:
    """Returns the layer norm of a matrix [T,D], computed in the form that is faster for so many rows."""
    values, gamma, beta = (tf.cast(part, tf.float32) for part in (x, layer_norm.gamma.value, layer_norm.beta.value))
    arguments = (values, gamma, beta, layer_norm.epsilon)
    found = tf.cond(tf.shape(x)[0] < FEW_TOKENS, lambda: _normalize_few(*arguments), lambda: _normalize_many(*arguments))
    return tf.cast(tf.ensure_shape(found, [None, x.shape[-1]]), x.dtype)


def _normalize_few(x: tf.Tensor, gamma: tf.Tensor, beta: tf.Tensor, epsilon: float) -> tf.Tensor:
    """Does it step by step: oneDNN's operation has a fixed cost above that of these."""
    centred = x - tf.reduce_mean(x, axis=1, keepdims=True)
    variance = tf.reduce_mean(tf.square(centred), axis=1, keepdims=True)
    return centred * (tf.math.rsqrt(variance + epsilon) * gamma) + beta


def _normalize_many(x: tf.Tensor, gamma: tf.Tensor, beta: tf.Tensor, epsilon: float) -> tf.Tensor:
    """Does it in the form that TensorFlow's optimizer replaces by oneDNN's: a batch norm in training mode, with rows for channels.

    The optimizer knows another form too, `x * a + (beta - mean * a)`, and loses its epsilon.
    """
    rows, width = tf.shape(x)[0], x.shape[-1]
    nothing = tf.constant([], tf.float32)
    values = tf.reshape(x, tf.stack([1, rows, width, 1]))
    values = tf.raw_ops.FusedBatchNormV3(x=values, scale=tf.fill([rows], 1.0), offset=tf.fill([rows], 0.0), mean=nothing, variance=nothing,
                                         epsilon=epsilon, data_format="NCHW", is_training=True).y
    return tf.reshape(values, tf.shape(x)) * gamma + beta
