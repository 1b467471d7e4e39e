"""The activations of the feed-forward network and the heads (2018 `gelu`; Hendrycks and Gimpel 2016)."""

import math
from collections.abc import Callable, Mapping
from typing import Any

from jaxtyping import Float
from keras import ops

from official_bert.layers.speed import fused


@fused.compiled_in_training(fused.gelu)
def gelu(x: Float[Any, "..."], training: bool | None = None) -> Float[Any, "..."]:
    """Returns 0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))): GELU as 2018's code approximates it."""
    return ops.gelu(x, approximate=True)


@fused.compiled_in_training(fused.gelu_erf)
def gelu_erf(x: Float[Any, "..."], training: bool | None = None) -> Float[Any, "..."]:
    """Returns x Φ(x), Φ the normal distribution: the exact GELU of later implementations.

    It uses erf, because the gradient of `ops.gelu`, which uses erfc, takes a third more time.
    """
    return 0.5 * x * (1.0 + ops.erf(x * math.sqrt(0.5)))


ACTIVATIONS: Mapping[str, Callable] = {
    "gelu": gelu,
    "gelu_erf": gelu_erf,
    "relu": lambda x, training=None: ops.relu(x),
    "silu": lambda x, training=None: x * ops.sigmoid(x),  # LiteRT cannot save the gradient of `ops.silu`
    "tanh": lambda x, training=None: ops.tanh(x),
    "linear": lambda x, training=None: x,
}


def get_activation(name: str) -> Callable:
    """Returns the activation function of that name, called as `f(x, training=None)`.

    Raises ValueError with the known names for another name.
    """
    if name not in ACTIVATIONS:
        raise ValueError(f"hidden_act: expected one of {sorted(ACTIVATIONS)}, got {name!r}")
    return ACTIVATIONS[name]


class Activated:
    """The activation between the two products of a feed-forward network."""

    factor = 1  # numbers that the first product makes for each that the second one reads

    def __init__(self, name: str) -> None:
        self.function = get_activation(name)

    def __call__(self, rows: Float[Any, "R K"], training: bool | None = None) -> Float[Any, "R N"]:
        """Returns the activations of rows [R,N]."""
        return self.function(rows, training=training)


class Gated(Activated):
    """The activation of a gated unit: it multiplies the activated half of the first product by the other half (Shazeer
    2020; ModernBERT).
    """

    factor = 2

    def __call__(self, rows: Float[Any, "R K"], training: bool | None = None) -> Float[Any, "R N"]:
        """Returns the gated activations of rows [R,2N] -> [R,N]."""
        activated, gate = ops.split(rows, 2, axis=-1)
        return self.function(activated, training=training) * gate
