"""Layer normalization (Ba et al., 2016) over the last axis, in fewer passes over memory than Keras' form of it."""

from typing import Any

import keras
from jaxtyping import Float
from keras import ops


@keras.saving.register_keras_serializable("official_bert")
class LayerNormalization(keras.layers.LayerNormalization):
    """Keras' layer, its weights and settings, over the last axis alone.

    Keras writes it as x * scale + (beta - mean * scale), with scale = gamma / std for every number; without a compiler
    that is one more pass over memory, and two of its passes read the scale beside x. Here x - mean is computed once,
    for the variance and the result.
    """

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        # A built layer of Keras has its axis as a list, in its configuration too.
        if self.axis not in (-1, [-1]) or self.rms_scaling or not self.scale:
            raise ValueError(
                "expected axis=-1, scale=True and rms_scaling=False; keras.layers.LayerNormalization has the others"
            )

    def call(self, inputs: Float[Any, "*M D"]) -> Float[Any, "*M D"]:
        """[...,D] -> [...,D] of the layer's compute dtype; computed in float32 or better."""
        inputs = ops.cast(inputs, keras.backend.result_type(inputs.dtype, "float32"))
        centered = inputs - ops.mean(inputs, axis=-1, keepdims=True)
        variance = ops.mean(ops.square(centered), axis=-1, keepdims=True)
        normalized = centered * ops.rsqrt(variance + self.epsilon) * self.gamma
        return ops.cast(normalized + self.beta if self.center else normalized, self.compute_dtype)
