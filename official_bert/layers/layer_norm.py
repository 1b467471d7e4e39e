"""Layer normalization (Ba et al., 2016) over the last axis, in fewer passes over memory than Keras needs."""

from typing import Any

import keras
from jaxtyping import Float
from keras import ops


@keras.saving.register_keras_serializable("official_bert")
class LayerNormalization(keras.layers.LayerNormalization):
    """Layer normalization over the last axis, with the weights and settings of Keras' layer.

    Keras computes x * scale + (beta - mean * scale), with scale = gamma / std for every number. Without a compiler that
    takes one more pass over memory, and two of its passes read the scale beside x. This layer computes x - mean once,
    for the variance and the result.

    Raises ValueError for another axis, `rms_scaling=True` or `scale=False`.
    """

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        # A built layer of Keras has its axis as a list, in its configuration too.
        if self.axis not in (-1, [-1]) or self.rms_scaling or not self.scale:
            raise ValueError(
                "expected axis=-1, scale=True and rms_scaling=False; keras.layers.LayerNormalization has the others"
            )

    def call(self, inputs: Float[Any, "*M D"]) -> Float[Any, "*M D"]:
        """Returns the normalized inputs [...,D] in the compute dtype; the computation uses at least float32."""
        inputs = ops.cast(inputs, keras.backend.result_type(inputs.dtype, "float32"))
        centered = inputs - ops.mean(inputs, axis=-1, keepdims=True)
        variance = ops.mean(ops.square(centered), axis=-1, keepdims=True)
        normalized = centered * ops.rsqrt(variance + self.epsilon) * self.gamma
        return ops.cast(normalized + self.beta if self.center else normalized, self.compute_dtype)
