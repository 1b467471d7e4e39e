"""The pooler with a layer norm, of ModernBERT: its classifiers, taggers and head for words all begin with it."""

from typing import Any

from jaxtyping import Float

from official_bert.layers.dense import Dense
from official_bert.layers.layer_norm import LayerNormalization


class NormalizedPooler(Dense):
    """A product, its activation and a layer norm, without bias if the product has none: [...,D] -> [...,D]."""

    def __init__(self, units: int, epsilon: float = 1e-5, **options: Any) -> None:
        super().__init__(units, **options)
        self.layer_norm = LayerNormalization(
            epsilon=epsilon, center=self.use_bias, name="LayerNorm", dtype=self.dtype_policy
        )

    def build(self, input_shape: Any) -> None:
        """Makes the weights of both."""
        super().build(input_shape)
        self.layer_norm.build((*input_shape[:-1], self.units))

    def call(self, x: Float[Any, "*M D"]) -> Float[Any, "*M D"]:
        """[...,D] -> [...,D]."""
        return self.layer_norm(super().call(x))
