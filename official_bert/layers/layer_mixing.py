"""Mixes the layers of a frozen encoder to features of words (paper 5.3, table 7)."""

from typing import Any, Literal

import keras
from jaxtyping import Float
from keras import ops

Features = Literal["embeddings", "last", "second_to_last", "weighted_sum", "sum", "concat"]


def chosen_layers(features: Features, count: int, num_layers: int) -> list[int]:
    """Returns the numbers of the layers to mix: 0 is the embedding output, `num_layers` the last layer.

    Sums and concatenations use the last `count` layers, or all layers without the embeddings if `count` is 0. Raises
    ValueError if the encoder has too few layers.
    """
    if features in ("embeddings", "last", "second_to_last"):
        layer = {"embeddings": 0, "last": num_layers, "second_to_last": num_layers - 1}[features]
        return [layer]
    if not 0 <= count <= num_layers:
        raise ValueError(
            f"config.options.feature_layers: expected 0 (all) to {num_layers}, the encoder's layers, got {count}"
        )
    return list(range(num_layers - (count or num_layers) + 1, num_layers + 1))


@keras.saving.register_keras_serializable("official_bert")
class LayerMixing(keras.layers.Layer):
    """Mixes the layer outputs of each word: [B,W,N,D] -> [B,W,D], or [B,W,N*D] by concatenation.

    B batch, W words, N layers, D hidden size. The weighted sum learns a softmax over layers and one factor for all
    (Peters et al., 2018, section 3.2).
    """

    def __init__(self, features: Features = "weighted_sum", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.features = features

    def build(self, input_shape: Any) -> None:
        """Makes the layer weights and the factor of the weighted sum; all layers begin with equal weights."""
        if self.features == "weighted_sum":
            self.layer_weights = self.add_weight(shape=(input_shape[-2],), initializer="zeros", name="layer_weights")
            self.scale = self.add_weight(shape=(), initializer="ones", name="scale")
        self.built = True

    def call(self, x: Float[Any, "B W N D"]) -> Float[Any, "B W _"]:
        """Returns the mixed features of x [B,W,N,D] -> [B,W,D or N*D]."""
        if self.features == "weighted_sum":
            weights = ops.cast(ops.softmax(self.layer_weights) * self.scale, x.dtype)
            return ops.einsum("bwnd,n->bwd", x, weights)
        if self.features == "sum":
            return ops.sum(x, axis=2)
        return ops.concatenate([x[:, :, index] for index in range(x.shape[2])], axis=-1)

    def compute_output_shape(self, input_shape: Any) -> tuple:
        """Returns the shape [B,W,D or N*D]."""
        width = input_shape[2] * input_shape[3] if self.features == "concat" else input_shape[3]
        return (*input_shape[:2], width)

    def get_config(self) -> dict[str, Any]:
        return super().get_config() | {"features": self.features}
