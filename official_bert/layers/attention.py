"""Multi-head self-attention (paper 3; Vaswani et al. 2017, 3.2; 2018 `attention_layer`).

B batch, S sequence, Q query rows, N heads, H head size, D = N * H hidden size.
"""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import keras
from jaxtyping import Bool, Float
from keras import ops

from official_bert.layers.attention_mask import masked_softmax
from official_bert.layers.configured import Configured
from official_bert.layers.dense import Dense
from official_bert.layers.speed import fused
from official_bert.layers.speed.extension_points import extension_point
from official_bert.layers.speed.recomputation import recomputed
from official_bert.layers.token_layout import TokenLayout, swap_heads
from official_bert.model_config import BERT_BASE, ModelConfig

BLOCK = 2**22  # attention weights held at a time if they are recomputed: 16 MB


def scaled_dot_product(q: Float[Any, "B N Q H"], k: Float[Any, "#B N S H"]) -> Float[Any, "B N Q S"]:
    """Returns the scores q k^T; the caller has scaled the queries by 1 / sqrt(H)."""
    return ops.matmul(q, ops.transpose(k, (0, 1, 3, 2)))


@fused.compiled_in_training(fused.attention_weights)
def attention_weights(
    scores: Float[Any, "B N Q S"],
    mask: Bool[Any, "#B 1 #Q S"],
    dropout: fused.Dropout,
    dtype: Any,
    training: bool | None = None,
) -> Float[Any, "B N Q S"]:
    """Returns the softmax over visible tokens after dropout, cast to `dtype` (paper A.2: dropout on all layers)."""
    return ops.cast(dropout(masked_softmax(scores, mask), training=training), dtype)


def attend(
    q: Float[Any, "B N Q H"],
    k: Float[Any, "B N S H"],
    v: Float[Any, "B N S H"],
    mask: Bool[Any, "#B 1 #Q S"],
    bias: Any,
    dropout: fused.Dropout,
    training: bool | None = None,
) -> Float[Any, "B N Q H"]:
    """Returns softmax(q k^T + bias) v over the visible tokens (Vaswani et al. 2017, equation 1)."""
    scores = scaled_dot_product(q, k)  # [B,N,Q,S]
    scores = scores if bias is None else scores + bias
    weights = attention_weights(scores, mask, dropout, v.dtype, training=training)  # [B,N,Q,S]
    return ops.matmul(weights, v)


def attend_recomputed(
    q: Float[Any, "B N Q H"],
    k: Float[Any, "B N S H"],
    v: Float[Any, "B N S H"],
    mask: Bool[Any, "#B 1 #Q S"],
    bias: Any,
    dropout: fused.Dropout,
    training: bool | None = None,
) -> Float[Any, "B N Q H"]:
    """Returns the result of `attend` without keeping a [Q,S] tensor.

    The backward pass recomputes the attention weights for a few rows of the batch at a time.
    """
    if not training:
        return attend(q, k, v, mask, bias, dropout)
    batch, heads, length, _ = q.shape
    rows = batch if None in (batch, length) else max(1, BLOCK // (heads * length * length))
    sites = [dropout.seed_generator.state] if dropout.rate else []

    def recompute(mask: Any, *tensors: Any) -> Any:  # tensors are arguments, because gradients flow to arguments alone
        def run(q: Any, k: Any, v: Any, bias: Any = None) -> Any:
            return attend(q, k, v, mask, bias, dropout, training)

        return recomputed(run, (), sites, *tensors)

    tensors = (mask, q, k, v) if bias is None else (mask, q, k, v, bias)
    if rows is None or rows >= batch:
        return recompute(*tensors)
    blocks = [
        [tensor if tensor.shape[0] == 1 else tensor[first : first + rows] for tensor in tensors]
        for first in range(0, batch, rows)
    ]
    return ops.concatenate([recompute(*block) for block in blocks])


@keras.saving.register_keras_serializable("official_bert")
class SelfAttention(Configured):
    """Multi-head self-attention without residual or layer norm (paper 3; 2018 `attention_layer`).

    Fields: `num_attention_heads` (or `num_heads`), `hidden_size`, `attention_probs_dropout_prob` (or `dropout`),
    `initializer_range`, `biases` (of the products, unless `unbiased` is `products`). With `recompute`, training keeps
    no tensor of [Q,S]. Raises ValueError if `hidden_size` is not a multiple of the heads.
    """

    FIELDS: ClassVar[Sequence[str]] = (
        "num_attention_heads",
        "hidden_size",
        "attention_probs_dropout_prob",
        "initializer_range",
        "biases",
        "unbiased",
    )
    SYNONYMS: ClassVar[Mapping[str, str]] = {**Configured.SYNONYMS, "dropout": "attention_probs_dropout_prob"}
    score_terms = 1  # number of products that are summed to the scores

    def __init__(self, config: ModelConfig = BERT_BASE, recompute: bool = False, **fields: Any) -> None:
        super().__init__(config, **fields)
        self.recompute, num_heads, hidden_size = recompute, self.config.num_attention_heads, self.config.hidden_size
        if hidden_size % num_heads:
            raise ValueError(f"hidden_size: expected a multiple of {num_heads} heads, got {hidden_size}")
        head_size = hidden_size // num_heads
        self.scale = (self.score_terms * head_size) ** -0.5
        self.query, self.key, self.value = (
            self.dense((num_heads, head_size), name) for name in ("query", "key", "value")
        )
        self.make_more_products()
        self.merge_heads = self.dense(hidden_size, "output", contracted_axes=2)
        # The softmax and its dropout stay in float32 under every precision policy.
        self.dropout = fused.Dropout(self.config.attention_probs_dropout_prob, dtype="float32")
        self.kernel = attend_recomputed if recompute else attend

    def dense(self, output_shape: Any, name: str, kind: type[Dense] = Dense, **options: Any) -> Dense:
        """Returns a dense layer with this layer's biases, initializer and dtype."""
        return kind(
            output_shape,
            use_bias=self.config.product_biases,
            kernel_initializer=self.initializer(),
            name=name,
            dtype=self.dtype_policy,
            **options,
        )

    def make_more_products(self) -> None:
        """Makes the additional products of a subclass.

        It runs between value and output: the order of creation decides the initial values under a seed.
        """

    def build(self, x_shape: Any, *_: Any) -> None:
        """Makes the weights of the products."""
        for product in (self.query, self.key, self.value):
            product.build(x_shape)
        self.merge_heads.build((None, None, *self.value.row_shape))
        self.built = True

    @extension_point
    def call(
        self, x: Float[Any, "_ _ D"], layout: Any, queries: Any = None, training: bool | None = None
    ) -> Float[Any, "_ _ D"]:
        """Returns what queries [B,Q,D], by default x [B,S,D], see; layout: `TokenLayout` or mask [B,1,1 or Q,S]."""
        layout = TokenLayout.of(layout, queries)
        q = self.query(layout.query_rows(x, queries)) * self.scale  # [B,Q,N,H]
        q, k, v = layout.split_heads(q, self.key(x), self.value(x))  # [B,N,Q,H], [B,N,S,H] twice
        context = self.attend(layout, q, k, v, training)  # [B,N,Q,H]
        return self.merge_heads(layout.merge_rows(context))  # [B,Q,D]

    def attend(self, layout: TokenLayout, q: Any, k: Any, v: Any, training: bool | None = None) -> Any:
        """Returns the attention output [B,N,Q,H] of q [B,N,Q,H], k and v [B,N,S,H]. It decides what computes it: blocks
        of queries in long rows, a kernel that recomputes its weights in the backward pass, or `attend`.
        """
        bias = layout.bias(self, q, k)
        if bias is None and layout.blocks is not None:
            return layout.blocks(q, k, v, self.dropout, training)
        kernel = self.kernel if layout.query_positions is None else attend  # few rows need no recomputation
        return kernel(q, k, v, layout.mask_of_queries(), bias, self.dropout, training=training)

    def scores(self, x: Float[Any, "B S D"]) -> Float[Any, "B N S S"]:
        """Returns the scaled scores [B,N,S,S] of every pair of tokens, before mask and softmax."""
        return scaled_dot_product(swap_heads(self.query(x) * self.scale), swap_heads(self.key(x)))

    def compute_output_shape(self, x_shape: Any, layout_shape: Any = None, queries_shape: Any = None) -> Any:
        """Returns the shape [B,Q,D]."""
        return queries_shape or x_shape

    def get_config(self) -> dict[str, Any]:
        return super().get_config() | {"recompute": self.recompute}
