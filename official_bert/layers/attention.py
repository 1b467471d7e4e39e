"""Multi-head self-attention, and the one mask that every layer of an encoder gets.

B batch, S sequence, Q query rows, N heads, H head size, D = N * H hidden size.
"""

import math

import keras
from keras import ops

from official_bert.layers import fused
from official_bert.layers.real_tokens import ALL, AllTokens
from official_bert.layers.recomputation import recomputed
from official_bert.layers.visibility import LONG, Visibility, windows_around, windows_of
from official_bert.model_config import BERT_BASE

BLOCK = 2 ** 22  # weights of attention that are there at a time if they are recomputed: 16 MB


def truncated_normal(stddev: float) -> keras.initializers.Initializer:
    """2018 `create_initializer`."""
    return keras.initializers.TruncatedNormal(stddev=stddev)


def make_attention_mask(input_mask, instance_ids=None, left_to_right=False):
    """Makes the mask of visible rows: input_mask [B,S] -> [B,1,1,S]; with instance_ids [B,S] or left to right [B,1,S,S]; true = visible.

    Rows of packed instances see their own instance only; left to right, a row sees itself and the rows before it. What padding rows
    see does not matter.
    """
    # Not [:, None, None, :]: those are strided slices, which LiteRT lacks.
    mask = ops.expand_dims(ops.expand_dims(ops.cast(input_mask, "bool"), 1), 1)       # [B,1,1,S]
    if left_to_right:
        places = ops.arange(ops.shape(input_mask)[1])
        mask = ops.logical_and(mask, ops.expand_dims(places, 1) >= ops.expand_dims(places, 0))  # [B,1,S,S]
    if instance_ids is None:
        return mask
    return ops.logical_and(mask, (instance_ids[:, :, None] == instance_ids[:, None, :])[:, None])


def visible_softmax(scores, attention_mask):
    """scores [B,N,Q,S], attention_mask [B,1,1 or Q,S] (true = visible) -> the weights of attention [B,N,Q,S], in float32."""
    return ops.softmax(ops.where(attention_mask, ops.cast(scores, "float32"), fused.UNSEEN), axis=-1)


class Projection(keras.layers.EinsumDense):
    """An EinsumDense over a row's last axes, computed as one matrix product, which is faster than an einsum and its gradients."""

    def call(self, x):
        """x [B,S,...] -> [B,S,...]."""
        batch, length, *contracted = ops.shape(x)
        width, new_shape = math.prod(self.kernel.shape[:len(contracted)]), self.kernel.shape[len(contracted):]
        product = ops.matmul(ops.reshape(x, (-1, width)), ops.reshape(self.kernel, (width, -1)))
        return ops.reshape(product if self.bias is None else product + ops.reshape(self.bias, (-1,)), (batch, length, *new_shape))


@keras.saving.register_keras_serializable("official_bert")
class SelfAttention(keras.layers.Layer):
    """Multi-head self-attention without residual or layer norm (paper 3; 2018 `attention_layer`).

    Scores are the sum of `score_terms` products: with 3, those of rows with distances too (`distance_scores`).
    With `recompute`, training keeps no tensor of [Q,S]: the backward pass makes the weights again, a few rows of the batch at a time.
    Of long rows there is none at all: given a `Visibility` as its mask, it takes queries by blocks, or by windows if there is one.
    """

    def __init__(self, num_heads=BERT_BASE.num_attention_heads, hidden_size=BERT_BASE.hidden_size,
                 dropout=BERT_BASE.attention_probs_dropout_prob, initializer_range=BERT_BASE.initializer_range, recompute=False,
                 score_terms=1, biases=True, distance_projections=False, **kwargs):
        super().__init__(**kwargs)
        if hidden_size % num_heads:
            raise ValueError(f"hidden_size: expected a multiple of {num_heads} heads, got {hidden_size}")
        self.settings = {"num_heads": num_heads, "hidden_size": hidden_size, "dropout": dropout,
                         "initializer_range": initializer_range, "recompute": recompute, "score_terms": score_terms,
                         "biases": biases, "distance_projections": distance_projections}
        head_size = hidden_size // num_heads
        self.scale = (score_terms * head_size) ** -0.5
        self.query, self.key, self.value, *of_distances = (
            Projection("bsd,dnh->bsnh", (None, num_heads, head_size), bias_axes="nh" if biases else None, name=name,
                                     kernel_initializer=truncated_normal(initializer_range), dtype=self.dtype_policy)
            for name in ("query", "key", "value", *(("distance_query", "distance_key") if distance_projections else ())))
        self.distance_query, self.distance_key = of_distances or (None, None)
        self.merge_heads = Projection("bqnh,nhd->bqd", (None, hidden_size), bias_axes="d" if biases else None, name="output",
                                                    kernel_initializer=truncated_normal(initializer_range),
                                                    dtype=self.dtype_policy)
        # The softmax and its dropout stay in float32 under every precision policy.
        self.dropout = fused.Dropout(dropout, dtype="float32")

    def build(self, input_shape, *_):
        """Makes the weights of the four products."""
        for projection in (self.query, self.key, self.value, self.distance_query, self.distance_key):
            if projection is not None:
                projection.build(input_shape)
        self.merge_heads.build((None, None, *self.value.compute_output_shape(input_shape)[2:]))
        self.built = True

    def call(self, x, attention_mask, queries=None, bias=None, distances=None, distance_rows=None, tokens: AllTokens = ALL, training=None):
        """x [B,S,D], attention_mask a `Visibility` or [B,1,1 or Q,S] (true = visible), queries [B,Q,D] or None for x -> [B,Q,D].

        `bias` [B or 1,N,Q,S] is added to the scores, and so is what queries and keys have to do with `distances` [R,D], of which pair
        Q,S has row `distance_rows` [B or 1,Q,S]. If `tokens` are real ones alone, x, and without queries the result, is [1,T,D].
        """
        visible = attention_mask if isinstance(attention_mask, Visibility) else None
        if visible and visible.window and (x.shape[1] is None or x.shape[1] > visible.window):
            return self._call_by_windows(x, visible, tokens, training)
        q, k = self._queries_and_keys(x, queries, visible, tokens)                    # [B,N,Q,H], [B,N,S,H]
        if distances is not None:
            bias = self.distance_scores(q, k, distances, distance_rows)
        v = self._by_head(tokens.put(self.value(x)))                                  # [B,N,S,H]
        if visible and bias is None and (k.shape[2] is None or k.shape[2] > LONG):
            context = fused.attend_in_turn(q, k, v, visible.mask, self.dropout, training)
        else:
            mask = visible.mask() if visible else attention_mask
            recomputes = self.settings["recompute"] and training and queries is None
            context = (self._attend_in_blocks if recomputes else self._attend)(q, k, v, mask, bias, training)  # [B,N,Q,H]
        rows = ops.transpose(context, (0, 2, 1, 3))                                   # [B,Q,N,H]
        return self.merge_heads(tokens.take(rows) if queries is None else rows)       # [B,Q,D]

    def _call_by_windows(self, x, visible, tokens, training):
        """`call` for all rows, of which the wanted ones are returned: each window of queries sees three windows of keys."""
        places, visible = visible.places, visible.of_layer(visible.window, visible.rotary)
        q, k = visible.turned(tokens.put(self.query(x) * self.scale), tokens.put(self.key(x)))  # [B,S,N,H]
        q = self._by_head(windows_of(q, visible.window))                              # [B*K,N,W,H]
        k, v = (self._by_head(windows_around(rows, visible.window)) for rows in (k, tokens.put(self.value(x))))  # [B*K,N,3W,H]
        attend = self._attend_in_blocks if self.settings["recompute"] and training else self._attend
        context = attend(q, k, v, visible.mask_of_windows(), None, training)             # [B*K,N,W,H]
        batch, length = ops.shape(visible.input_mask)
        rows = ops.reshape(self._by_head(context), (batch, -1, *context.shape[1::2]))[:, :length]  # [B,S,N,H]
        return self.merge_heads(tokens.take(rows) if places is None else ops.take_along_axis(rows, ops.expand_dims(places, (2, 3)), axis=1))

    def scores(self, x, queries=None):
        """x [B,S,D], queries [B,Q,D] or None for x -> how well each query fits each row, before mask and softmax, [B,N,Q,S]."""
        return self._products(*self._queries_and_keys(x, queries))

    def distance_scores(self, q, k, distances, rows):
        """Returns how well queries fit distances and distances fit keys (He et al. 2021, 3.1): [B,N,Q,S].

        q [B,N,Q,H], scaled, k [B,N,S,H], distances [R,D], rows [B or 1,Q,S]: R products a row, not S, then a choice among them.
        """
        distances = ops.expand_dims(distances, 0)
        query, key = (self.query, self.key) if self.distance_query is None else (self.distance_query, self.distance_key)
        of_queries, of_keys = self._by_head(query(distances) * self.scale), self._by_head(key(distances))  # [1,N,R,H]
        rows = ops.broadcast_to(ops.expand_dims(rows, 1), (*ops.shape(q)[:3], ops.shape(k)[2]))           # [B,N,Q,S]
        to_distance = ops.take_along_axis(self._products(q, of_keys), rows, axis=3)
        from_distance = ops.take_along_axis(self._products(k, of_queries), ops.transpose(rows, (0, 1, 3, 2)), axis=3)  # [B,N,S,Q]
        return to_distance + ops.transpose(from_distance, (0, 1, 3, 2))

    def _queries_and_keys(self, x, queries, visible=None, tokens: AllTokens = ALL):
        """[B,N,Q,H], scaled, and [B,N,S,H]."""
        q, k = self.query(x if queries is None else queries) * self.scale, tokens.put(self.key(x))
        q = tokens.put(q) if queries is None else q
        q, k = visible.turned(q, k) if visible else (q, k)
        return self._by_head(q), self._by_head(k)

    @staticmethod
    def _by_head(x):
        """[B,S,N,H] -> [B,N,S,H]."""
        return ops.transpose(x, (0, 2, 1, 3))

    @staticmethod
    def _products(q, k):
        """[B,N,Q,H], [B,N,S,H] -> [B,N,Q,S]."""
        return ops.matmul(q, ops.transpose(k, (0, 1, 3, 2)))

    def _attend(self, q, k, v, mask, bias, training):
        """q [B,N,Q,H], k and v [B,N,S,H] -> what each head attends to, [B,N,Q,H]."""
        scores = self._products(q, k)                                                 # [B,N,Q,S]
        scores = scores if bias is None else scores + bias
        if training and fused.pays(scores):
            weights = fused.attention_weights(scores, mask, self.dropout, self.compute_dtype)
        else:
            weights = ops.cast(self.dropout(visible_softmax(scores, mask), training=training), self.compute_dtype)
        return ops.matmul(weights, v)

    def _attend_in_blocks(self, q, k, v, mask, bias, training):
        """`_attend` for a few rows of the batch at a time, of which queries, keys and values are kept for the backward pass."""
        batch, heads, length, _ = q.shape
        rows = batch if None in (batch, length) else max(1, BLOCK // (heads * length * length))
        sites = [self.dropout.seed_generator.state] if self.settings["dropout"] else []

        def attend(mask, *parts):  # numbers are arguments of the recomputed function, because gradients flow to arguments alone
            return recomputed(lambda q, k, v, *bias: self._attend(q, k, v, mask, *(bias or (None,)), training), (), sites, *parts)
        parts = (mask, q, k, v) if bias is None else (mask, q, k, v, bias)
        if rows is None or rows >= batch:
            return attend(*parts)
        return ops.concatenate([attend(*(part if part.shape[0] == 1 else part[first:first + rows] for part in parts))
                                for first in range(0, batch, rows)])

    def compute_output_shape(self, x_shape, attention_mask_shape=None, queries_shape=None):
        """[B,Q,D]."""
        return queries_shape or x_shape

    def get_config(self):
        return super().get_config() | self.settings
