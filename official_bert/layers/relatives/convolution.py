"""The convolution over the embeddings that DeBERTa v2 adds to the rows after its first layer (He et al. 2021)."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import keras
from jaxtyping import Float
from keras import ops

from official_bert.layers.activations import get_activation
from official_bert.layers.configured import Configured
from official_bert.layers.layer_norm import LayerNormalization
from official_bert.layers.speed.fused import Dropout
from official_bert.model_config import BERT_BASE, ModelConfig


@keras.saving.register_keras_serializable("official_bert")
class Convolution(Configured):
    """Convolves T neighbouring rows, then applies the activation, a residual sum and layer norm. B batch, S sequence, D
    hidden size, T neighbours.

    Fields: `convolution` (T), `convolution_act`, `hidden_size`, `hidden_dropout_prob`, `initializer_range`,
    `layer_norm_epsilon`, `biases`.
    """

    FIELDS: ClassVar[Sequence[str]] = (
        "convolution",
        "convolution_act",
        "hidden_size",
        "hidden_dropout_prob",
        "initializer_range",
        "layer_norm_epsilon",
        "biases",
    )
    SYNONYMS: ClassVar[Mapping[str, str]] = {**Configured.SYNONYMS, "tokens": "convolution", "act": "convolution_act"}

    def __init__(self, config: ModelConfig = BERT_BASE, **fields: Any) -> None:
        super().__init__(config, **fields)
        self.kernel_initializer = self.initializer()
        self.dropout = Dropout(self.config.hidden_dropout_prob, dtype=self.dtype_policy)
        self.layer_norm = LayerNormalization(
            epsilon=self.config.layer_norm_epsilon,
            center=self.config.biases,
            name="LayerNorm",
            dtype=self.dtype_policy,
        )

    def build(self, *_: Any) -> None:
        """Makes the weights."""
        tokens, width = self.config.convolution, self.config.hidden_size
        self.kernel = self.add_weight(shape=(tokens, width, width), initializer=self.kernel_initializer, name="kernel")
        self.bias = self.add_weight(shape=(width,), initializer="zeros", name="bias") if self.config.biases else None
        self.layer_norm.build((None, None, width))
        self.built = True

    def call(
        self,
        x: Float[Any, "B S D"],
        embedded: Float[Any, "B S D"],
        input_mask: Any,
        instance_ids: Any = None,
        training: bool | None = None,
    ) -> Float[Any, "B S D"]:
        """Returns LayerNorm(x + act(convolution of the embeddings)), [B,S,D].

        x [B,S,D] are the rows after the layer, `embedded` [B,S,D] the embeddings, `input_mask` is [B,S]. Packed rows
        read only rows of their instance.
        """
        length = ops.shape(embedded)[1]
        owners = (
            ops.cast(input_mask, "int32")
            if instance_ids is None
            else ops.where(ops.cast(input_mask, "bool"), instance_ids + 1, 0)
        )
        half, total = self.config.convolution // 2, 0.0
        numbers = ops.pad(owners, [(0, 0), (half, half)])  # 0: nothing there
        rows = ops.pad(embedded, [(0, 0), (half, half), (0, 0)])
        for place in range(self.config.convolution):
            near = ops.logical_and(numbers[:, place : place + length] == owners, owners > 0)
            shifted = rows[:, place : place + length] * ops.cast(ops.expand_dims(near, 2), embedded.dtype)
            total = total + ops.matmul(shifted, ops.cast(self.kernel[place], self.compute_dtype))
        total = total if self.bias is None else total + ops.cast(self.bias, self.compute_dtype)
        added = get_activation(self.config.convolution_act)(self.dropout(total, training=training))
        return self.layer_norm(x + added)
