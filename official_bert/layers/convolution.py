"""The convolution over the embeddings that DeBERTa v2 adds to the rows after its first layer (He et al. 2021)."""

import keras
from keras import ops

from official_bert.layers.attention import truncated_normal
from official_bert.layers.fused import Dropout
from official_bert.layers.layer_norm import LayerNormalization
from official_bert.layers.transformer import get_activation
from official_bert.model_config import BERT_BASE


@keras.saving.register_keras_serializable("official_bert")
class Convolution(keras.layers.Layer):
    """A sum of products of neighbouring rows, activated, added and normalized. B batch, S sequence, D hidden size, T neighbours."""

    def __init__(self, tokens=3, hidden_size=BERT_BASE.hidden_size, act="tanh", dropout=BERT_BASE.hidden_dropout_prob,
                 initializer_range=BERT_BASE.initializer_range, layer_norm_epsilon=BERT_BASE.layer_norm_epsilon, biases=True, **kwargs):
        super().__init__(**kwargs)
        self.settings = {"tokens": tokens, "hidden_size": hidden_size, "act": act, "dropout": dropout,
                         "initializer_range": initializer_range, "layer_norm_epsilon": layer_norm_epsilon, "biases": biases}
        self.kernel_initializer = truncated_normal(initializer_range)
        self.dropout = Dropout(dropout, dtype=self.dtype_policy)
        self.layer_norm = LayerNormalization(epsilon=layer_norm_epsilon, center=biases, name="LayerNorm", dtype=self.dtype_policy)

    def build(self, *_):
        """Makes the weights."""
        tokens, width = self.settings["tokens"], self.settings["hidden_size"]
        self.kernel = self.add_weight(shape=(tokens, width, width), initializer=self.kernel_initializer, name="kernel")
        self.bias = self.add_weight(shape=(width,), initializer="zeros", name="bias") if self.settings["biases"] else None
        self.layer_norm.build((None, None, width))
        self.built = True

    def call(self, x, embedded, input_mask, instance_ids=None, training=None):
        """x, the rows after the layer, and embedded [B,S,D], input_mask [B,S] -> [B,S,D]; packed rows see those of their instance."""
        length = ops.shape(embedded)[1]
        owners = ops.cast(input_mask, "int32") if instance_ids is None else ops.where(input_mask > 0, instance_ids + 1, 0)
        half, total = self.settings["tokens"] // 2, 0.0
        numbers = ops.pad(owners, [(0, 0), (half, half)])                                # 0: nothing there
        rows = ops.pad(embedded, [(0, 0), (half, half), (0, 0)])
        for place in range(self.settings["tokens"]):
            near = ops.logical_and(numbers[:, place:place + length] == owners, owners > 0)
            shifted = rows[:, place:place + length] * ops.cast(ops.expand_dims(near, 2), embedded.dtype)
            total = total + ops.matmul(shifted, ops.cast(self.kernel[place], self.compute_dtype))
        total = total if self.bias is None else total + ops.cast(self.bias, self.compute_dtype)
        added = get_activation(self.settings["act"])(self.dropout(total, training=training))
        return self.layer_norm(x + added)

    def get_config(self):
        return super().get_config() | self.settings
