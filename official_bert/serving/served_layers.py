"""Replacements for an encoder's layers in exported graphs: the same numbers with fewer operations.

The identities are exact up to rounding:
* A key's bias adds the same to all scores of a query, so the softmax cancels it.
* The weights of a query add up to 1. So the bias of values is a constant in every head's result, and moves into the
  bias of the product that merges the heads.
* The scale of scores moves into the weights of the queries.
* Queries, keys and values are one product.
* A row's head is a run of neighbouring numbers, so heads are gathered, which is faster than a transposition for any
  number of rows.
* Only attention computes padding, in groups of rows with more tokens than a short text (`layers/speed/real_tokens`).
* A masked score gets -1e9 added, instead of being replaced by it.
* Position and segment embeddings are one table of sums.
* Wanted rows are gathered by one operation instead of Keras' six.

B batch, S sequence, Q query rows, N heads, H head size, D = N * H hidden size.
"""

import contextlib
import hashlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from jaxtyping import Bool, Float, Int
from keras import ops

from official_bert.layers.attention import SelfAttention
from official_bert.layers.attention_mask import UNSEEN
from official_bert.layers.dense import Dense
from official_bert.layers.embeddings import Embeddings
from official_bert.layers.speed.real_tokens import RealTokens
from official_bert.layers.token_layout import LONG, TokenLayout
from official_bert.model_config import ModelConfig
from official_bert.models.encoder import BertEncoder

Value = Callable[[], tf.Tensor | tf.Variable]
Product = Callable[[tf.Tensor], tf.Tensor]  # rows [M,K] -> [M,N]
MakeProduct = Callable[[np.ndarray, np.ndarray | None], Product]  # of a kernel [K,N] and a bias [N]
Overrides = dict[tuple[Any, str], Callable]  # an object and the name of an extension point -> what is called instead
MOST_SUMS = 1 << 16  # rows in a table of sums of positions and segments


class Values:
    """Holds the weights that a graph reads: variables, or with `constants`, in graphs traced within `few`, constants.

    With `are_shared`, equal values share one variable, for graphs of several models.
    """

    def __init__(self, constants: bool = False, are_shared: bool = False):
        self.constants, self.variables, self._are_constants = constants, list[tf.Variable](), False
        self.are_shared, self._known = are_shared, dict[tuple, tf.Variable]()

    @contextlib.contextmanager
    def few(self) -> Iterator[None]:
        """Makes graphs traced in this context use constants, which oneDNN packs once for all small numbers of rows."""
        self._are_constants = self.constants
        try:
            yield
        finally:
            self._are_constants = False

    def keep(self, value: np.ndarray, dtype: tf.DType, is_table: bool = False) -> Value:
        """Returns a function that returns the value as a tensor of the graph being traced; a table is never a
        constant.
        """
        value = np.ascontiguousarray(value, dtype.as_numpy_dtype)
        key = (dtype, value.shape, hashlib.sha256(value.tobytes()).digest() if self.are_shared else len(self.variables))
        if (variable := self._known.get(key)) is None:
            with tf.init_scope():
                variable = self._known[key] = tf.Variable(value, trainable=False)
            self.variables.append(variable)
        if is_table or not self.constants:  # no second copy of the weights stays in memory
            return lambda: variable
        return lambda: tf.constant(value) if self._are_constants else variable

    def constant(self, value: np.ndarray) -> Callable[[], tf.Tensor]:
        """Returns a function that returns the value as a constant of the graph being traced, one per graph."""
        value, tensors = np.ascontiguousarray(value), dict[tf.Graph, tf.Tensor]()

        def read() -> tf.Tensor:
            graph = tf.compat.v1.get_default_graph()
            if graph not in tensors:
                tensors[graph] = tf.constant(value)
            return tensors[graph]

        return read

    def product(self, kernel: np.ndarray, bias: np.ndarray | None, dtype: tf.DType = tf.float32) -> Product:
        """Returns the function that multiplies rows with a kernel and adds a bias, in a type."""
        weights, added = self.keep(kernel, dtype), None if bias is None else self.keep(bias, dtype)

        def multiply(rows: tf.Tensor) -> tf.Tensor:
            result = tf.matmul(rows, weights())
            return result if added is None else tf.nn.bias_add(result, added())

        return multiply


def kernel_and_bias(layer: Dense) -> tuple[np.ndarray, np.ndarray | None]:
    """Returns a dense layer's kernel as a matrix [K,N] and its bias [N]."""
    return layer.kernel.numpy().reshape(-1, layer.units), None if layer.bias is None else layer.bias.numpy().reshape(-1)


def with_adapters(product: Product, parts: Sequence[tuple[Dense, float]], shift: np.ndarray | None = None) -> Product:
    """Returns a product plus the outputs of its parts' adapters; the parts are adjacent layers with scale factors.

    Adapters read rows [M,K] with a shift [K].
    """
    if all(layer.adapter is None for layer, _ in parts):
        return product

    def multiply(rows: tf.Tensor) -> tf.Tensor:
        read = rows if shift is None else rows + tf.cast(shift, rows.dtype)
        added = [
            tf.zeros([tf.shape(rows)[0], layer.units], rows.dtype)
            if layer.adapter is None
            else layer.adapter(read) * factor
            for layer, factor in parts
        ]
        return product(rows) + tf.concat(added, 1)

    return multiply


class ServedAttention:
    """Computes `SelfAttention.call` for layers without windows whose relative positions are at most a bias.

    With `is_shared`, graphs with and without separate queries read the same kernel: slices of the joint product.
    """

    def __init__(
        self, layer: SelfAttention, make: MakeProduct, is_shared: bool = False, softmax: Callable = tf.nn.softmax
    ):
        self.is_shared, self.softmax = is_shared, softmax
        self.layer, self.heads, self.width = layer, layer.config.num_attention_heads, layer.config.hidden_size
        (query, query_bias), (key, _), (value, value_bias) = map(kernel_and_bias, (layer.query, layer.key, layer.value))
        merge, merge_bias = kernel_and_bias(layer.merge_heads)
        scale, none = np.float32(layer.scale), np.zeros(self.width, np.float32)
        # A bias of zeros: TensorFlow's product with a bias keeps weights arranged, and the one without does not.
        query_bias = none if query_bias is None else query_bias * scale
        self._kernels = {
            "query": (query * scale, query_bias),
            "keys and values": (np.concatenate([key, value], axis=1), np.concatenate([none, none])),
        }
        self._kernels["all"] = tuple(np.concatenate(parts, axis=-1) for parts in zip(*self._kernels.values()))
        self._parts = {"query": [(layer.query, layer.scale)], "keys and values": [(layer.key, 1.0), (layer.value, 1.0)]}
        self._parts["all"] = [part for parts in self._parts.values() for part in parts]
        self._make, self._products = make, dict[str, Product]()
        self.merge = with_adapters(
            make(merge, None if merge_bias is None else merge_bias + value_bias @ merge),
            [(layer.merge_heads, 1.0)],
            value_bias,
        )

    def __call__(
        self,
        x: Float[Any, "_ _ D"],
        layout: TokenLayout | Bool[Any, "B 1 #Q S"],
        queries: Float[Any, "B Q D"] | None = None,
        training: bool | None = None,
    ) -> Float[Any, "_ _ D"]:
        """x [B,S,D], layout a `TokenLayout` (or [B,1,1 or Q,S]), queries [B,Q,D] or None for x -> [B,Q,D].

        Without padding, x is [1,T,D], and so is the result without queries.
        """
        del training  # false
        layout = TokenLayout.of(layout, queries)
        mask, tokens, bias = layout.mask, layout.tokens, layout.positions.bias(self.layer, None, None)
        # the same tensor in all layers: computed once
        batch, length = (tf.shape(mask)[axis] for axis in (0, 3))
        numbers, places = (
            (tokens.numbers, tokens.places) if isinstance(tokens, RealTokens) else self._all(batch, length)
        )
        if queries is None:
            query_rows, count, rows = x, length, self._heads_of(self._product("all"), x)
            q, k, v = (tf.gather(rows, self._places(numbers, part, 3)) for part in range(3))
        else:
            query_rows, count, rows = queries, tf.shape(queries)[1], self._heads_of(self._product("keys and values"), x)
            query_numbers, places = self._all(batch, count)
            q = tf.gather(self._heads_of(self._product("query"), queries), self._places(query_numbers, 0, 1))
            k, v = (tf.gather(rows, self._places(numbers, part, 2)) for part in range(2))
        context = tf.reshape(self.attend(q, k, v, mask, bias), [-1, self.width // self.heads])  # [B*N*Q,H]
        merged = self.merge(tf.reshape(tf.gather(context, self._back(places, count)), [-1, self.width]))
        return tf.reshape(merged, tf.shape(query_rows))

    def attend(
        self,
        q: Float[Any, "B N Q H"],
        k: Float[Any, "B N S H"],
        v: Float[Any, "B N S H"],
        mask: Bool[Any, "B 1 #Q S"],
        bias: Float[Any, "#B N #Q S"] | None,
    ) -> Float[Any, "B N Q H"]:
        """q [B,N,Q,H], k and v [B,N,S,H], mask [B,1,1 or Q,S] -> the context of each head, [B,N,Q,H]."""
        scores = tf.matmul(q, k, transpose_b=True)  # [B,N,Q,S]
        return tf.matmul(tf.cast(self.softmax(self.masked(scores, mask, bias)), v.dtype), v)

    @staticmethod
    def masked(
        scores: Float[Any, "B N Q S"], mask: Bool[Any, "B 1 #Q S"], bias: Float[Any, "#B N #Q S"] | None
    ) -> Float[Any, "B N Q S"]:
        """Returns the scores plus bias in float32, with unseen tokens masked out."""
        scores = tf.cast(scores if bias is None else scores + bias, tf.float32)
        return scores + tf.where(mask, 0.0, UNSEEN)

    def _product(self, name: str) -> Product:
        """Returns a product. It is made when a graph first needs it."""
        if self.is_shared and name != "all":
            whole, first = self._product("all"), 0 if name == "query" else self.width
            return lambda rows: whole(rows)[:, first : first + self.width * len(self._parts[name])]
        if name not in self._products:
            self._products[name] = with_adapters(self._make(*self._kernels[name]), self._parts[name])
        return self._products[name]

    def _heads_of(self, product: Product, x: Float[Any, "_ _ D"]) -> Float[Any, "M H"]:
        """Returns the heads [B*S*...,H] of a product of rows x [B,S,D]."""
        return tf.reshape(product(tf.reshape(x, [-1, self.width])), [-1, self.width // self.heads])

    @staticmethod
    def _all(batch: Int[Any, ""], count: Int[Any, ""]) -> tuple[Int[Any, "B Q"], Int[Any, " M"]]:
        """Returns the number of each row [B,Q] and the place of each number [B*Q] if no rows are left out."""
        places = tf.range(batch * count)
        return tf.reshape(places, [batch, count]), places

    def _places(self, numbers: Int[Any, "B S"], part: int, parts: int) -> Int[Any, "B N S"]:
        """Returns the places [B,N,S] of the heads of a part (queries, keys or values) among those of all parts
        [T*parts*N], for rows with these `numbers` [B,S].
        """
        return numbers[:, None] * (parts * self.heads) + (tf.range(self.heads) + part * self.heads)[:, None]

    def _back(self, places: Int[Any, " T"], count: Int[Any, ""]) -> Int[Any, " M"]:
        """Returns the places [T*N], among attention's heads [B*N*Q], of the heads of rows at `places` among the B*Q
        rows.
        """
        first = places // count * (self.heads * count) + places % count
        return tf.reshape(first[:, None] + tf.range(self.heads) * count, [-1])


class ServedTables:
    """Computes `Embeddings.call` with a table of the sums of position and segment embeddings."""

    def __init__(self, layer: Embeddings, values: Values, dtype: tf.DType):
        positions, segments = (
            layer.read(name, slice(None)).numpy() for name in ("position_embeddings", "token_type_embeddings")
        )
        self.layer, self.longest = layer, len(positions)
        self.sums = values.keep((segments[:, None] + positions).reshape(-1, positions.shape[1]), dtype, is_table=True)

    def __call__(
        self,
        input_ids: Int[Any, "B S"],
        segment_ids: Int[Any, "B S"],
        position_ids: Int[Any, "#B S"] | None = None,
        task_type_ids: Int[Any, "B S"] | None = None,
        training: bool | None = None,
    ) -> Float[Any, "B S D"]:
        """input_ids, segment_ids, position_ids [B,S] (positions None: 0 to S-1) -> [B,S,D]."""
        del task_type_ids, training  # a model without tasks; false
        places = tf.range(tf.shape(input_ids)[1]) if position_ids is None else position_ids
        words = ops.cast(self.layer.read("word_embeddings", input_ids), "float32")
        summed = words + tf.cast(tf.gather(self.sums(), segment_ids * self.longest + places), tf.float32)
        rows = self.layer.layer_norm(tf.cast(summed, self.layer.compute_dtype))
        return rows if self.layer.projection is None else self.layer.projection(rows)


def has_plain_attention(config: ModelConfig) -> bool:
    """Returns whether `ServedAttention` can compute a model's attention.

    It can if the model has no windows, no rotary or disentangled positions, no norms of queries and keys, and no rows
    longer than `LONG`.
    """
    others = config.window or config.rotary or config.position_buckets or config.query_key_norm
    return not (others or config.longest_row > LONG)


def served_layers(
    encoder: BertEncoder,
    make: MakeProduct,
    values: Values,
    dtype: tf.DType,
) -> tuple[Overrides, set[int]]:
    """Returns the replacements for an encoder and its layers, and the ids of the Keras variables that graphs no longer
    read.

    Layers without plain attention stay as they are.
    """
    config, computed = encoder.config, set[int]()
    overrides: Overrides = {(encoder.reader, "gather_rows"): lambda x, positions: tf.gather(x, positions, batch_dims=1)}
    if encoder.attention is None and has_plain_attention(config):  # a subclass may have its own
        for layer in encoder.transformer_layers:
            overrides[layer.attention, "call"] = ServedAttention(layer.attention, make, values.are_shared)
            products = (layer.attention.query, layer.attention.key, layer.attention.value, layer.attention.merge_heads)
            computed |= {id(weight) for product in products for weight in (product.kernel, product.bias)}
    summed = {"position_embeddings", "token_type_embeddings"} <= set(encoder.embeddings.tables)
    counted = config.first_position or config.task_type_vocab_size  # positions of real tokens alone; a third table
    if summed and not counted and config.type_vocab_size * config.max_position_embeddings <= MOST_SUMS:
        overrides[encoder.embeddings, "call"] = ServedTables(encoder.embeddings, values, dtype)
        computed |= {id(encoder.embeddings.position_embeddings), id(encoder.embeddings.token_type_embeddings)}
    return overrides, computed


def tables_of(encoder: BertEncoder) -> list[keras.Variable]:
    """Returns the weights that are read by row lookup, and those of recurrent layers, whose loops copy constants."""
    tables = [getattr(encoder.embeddings, name) for name in encoder.embeddings.tables]
    parts = [part for part in (encoder.relative_positions, *encoder.bilstms) if part is not None]
    return [*tables, *(weight for part in parts for weight in part.weights)]
