"""The dense layer, which computes every product of rows with weights in the encoder."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import keras
from jaxtyping import Float
from keras import ops

from official_bert.layers.speed.extension_points import extension_point


class Dense(keras.layers.Layer):
    """A dense layer: act(x W + b).

    A row may have several axes. A kernel [D,N,H] maps a row of D to N heads of H numbers; a kernel [N,H,D] maps heads
    back to a row (`contracted_axes=2`). Both run as one matrix product, which is faster than an einsum and its
    gradients. Another implementation may replace `multiply`. The output of an `adapter` is added
    (`layers/adapters.py`).
    """

    def __init__(
        self,
        output_shape: int | Sequence[int],
        contracted_axes: int = 1,
        use_bias: bool = True,
        kernel_initializer: Any = "glorot_uniform",
        activation: Callable | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.row_shape = (output_shape,) if isinstance(output_shape, int) else tuple(output_shape)
        self.contracted_axes, self.use_bias, self.activation = contracted_axes, use_bias, activation
        self.kernel_initializer = keras.initializers.get(kernel_initializer)

        self.adapter: Callable | None = None

    def build(self, input_shape: Sequence[int | None]) -> None:
        """Makes kernel and bias for rows of the shape `input_shape[-contracted_axes:]`."""
        self.kernel = self.add_weight(
            shape=(*input_shape[-self.contracted_axes :], *self.row_shape),
            initializer=self.kernel_initializer,
            name="kernel",
        )
        self.bias = self.add_weight(shape=self.row_shape, initializer="zeros", name="bias") if self.use_bias else None
        self.built = True

    @property
    def units(self) -> int:
        """The number of outputs for each row."""
        return math.prod(self.row_shape)

    def call(self, x: Float[Any, "..."]) -> Float[Any, "..."]:
        """Returns act(x W + b) of x [...,K] -> [...,N]; K or N may be several axes."""
        if len(self.kernel.shape) == 2:
            product = self.multiply(x)
        else:
            batch_shape = ops.shape(x)[: -self.contracted_axes]
            width = math.prod(self.kernel.shape[: self.contracted_axes])
            product = ops.reshape(self.multiply(ops.reshape(x, (-1, width))), (*batch_shape, *self.row_shape))
        return product if self.activation is None else self.activation(product)

    @extension_point
    def multiply(self, rows: Float[Any, "*M K"]) -> Float[Any, "*M N"]:
        """Returns rows [...,K] times the kernel as a matrix [K,N], plus the bias [N]."""
        if len(self.kernel.shape) == 2:
            product = ops.matmul(rows, self.kernel)
            product = product if self.bias is None else ops.add(product, self.bias)
        else:
            product = ops.matmul(rows, ops.reshape(self.kernel, (rows.shape[-1], -1)))
            product = product if self.bias is None else product + ops.reshape(self.bias, (-1,))
        return product if self.adapter is None else product + self.adapter(rows)

    def compute_output_shape(self, input_shape: Sequence[int | None]) -> tuple[int | None, ...]:
        """Returns the shape [...,N]."""
        return (*input_shape[: -self.contracted_axes], *self.row_shape)
