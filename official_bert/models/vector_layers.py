"""The settings of text vectors in configurations and checkpoints: poolings, and the layers after them."""

import dataclasses
from collections.abc import Sequence
from typing import Literal

Pooling = Literal["cls", "mean", "max", "mean_sqrt_len_tokens", "weightedmean", "lasttoken"]
Poolings = Pooling | tuple[Pooling, ...]
LAYER_PREFIX = "vector_"  # of the names of layers and of their weights


@dataclasses.dataclass(frozen=True, kw_only=True)
class VectorLayer:
    """A layer after the pooling. A dense layer has `units`, an `activation` and optionally a bias."""

    kind: Literal["dense", "layer_norm", "normalize"]
    units: int = 0
    activation: Literal["linear", "tanh", "relu", "gelu", "sigmoid", "silu"] = "linear"
    use_bias: bool = True

    def __post_init__(self) -> None:
        if (self.kind == "dense") != (self.units > 0):
            raise ValueError(
                f"config.options.vector_layers: {self.kind}: expected units above 0 for dense alone, got {self.units}"
            )


def poolings_of(pooling: Poolings) -> tuple[Pooling, ...]:
    """Returns one or several poolings as a tuple."""
    return (pooling,) if isinstance(pooling, str) else tuple(pooling)


def vector_width(hidden_size: int, pooling: Poolings, layers: Sequence[VectorLayer]) -> int:
    """Returns the number of values in a vector."""
    return next((layer.units for layer in reversed(layers) if layer.units), hidden_size * len(poolings_of(pooling)))
