"""A product with a layer norm: ModernBERT's pooler, and queries and keys of JinaBERT for code."""

from typing import Any

from jaxtyping import Float
from keras import ops

from official_bert.layers.dense import Dense
from official_bert.layers.layer_norm import LayerNormalization


class NormalizedDense(Dense):
    """A product, its activation and a layer norm over all numbers of a row, without bias if the product has none."""

    def __init__(self, output_shape: Any, epsilon: float = 1e-5, **options: Any) -> None:
        super().__init__(output_shape, **options)
        self.layer_norm = LayerNormalization(
            epsilon=epsilon, center=self.use_bias, name="LayerNorm", dtype=self.dtype_policy
        )

    def build(self, input_shape: Any) -> None:
        """Makes the weights of the product and the layer norm."""
        super().build(input_shape)
        self.layer_norm.build((*input_shape[:-1], self.units))

    def call(self, x: Float[Any, "*M K"]) -> Float[Any, "..."]:
        """Returns the normalized outputs [...,N] of x [...,K]; N may be several axes."""
        product = super().call(x)
        if len(self.row_shape) == 1:
            return self.layer_norm(product)
        rows = ops.reshape(product, (*ops.shape(x)[:-1], self.units))
        return ops.reshape(self.layer_norm(rows), ops.shape(product))
