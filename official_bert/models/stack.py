"""The layers of an encoder in the order of computation, each a step `(x, layout, queries, training) -> x`.

BERT's steps are its layers. Relatives wrap them: with a window, with a convolution after the first layer, with a norm
after the last. A training step wraps them with recomputation. ALBERT repeats one layer. B batch, S sequence, Q query
rows, D hidden size.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import keras
from jaxtyping import Float

from official_bert.layers.speed.recomputation import recomputed
from official_bert.layers.token_layout import TokenLayout

Step = Callable[..., Any]  # a `TransformerLayer`, or one of the classes below


class Stack:
    """The steps of an encoder. It is not a layer, so that the names of weights do not depend on the wrapping."""

    def __init__(self, steps: list[Step]) -> None:
        self.steps = steps


@dataclasses.dataclass(frozen=True)
class InWindows:
    """A step with windowed attention."""

    step: Step

    def __call__(
        self, x: Float[Any, "_ _ D"], layout: TokenLayout, queries: Any = None, training: bool | None = None
    ) -> Float[Any, "_ _ D"]:
        return self.step(x, layout=layout.windowed, queries=queries, training=training)


@dataclasses.dataclass(frozen=True)
class Recomputed:
    """A layer whose activations the backward pass recomputes; for a few query rows it keeps them."""

    layer: keras.layers.Layer

    def __call__(
        self, x: Float[Any, "_ _ D"], layout: TokenLayout, queries: Any = None, training: bool | None = None
    ) -> Float[Any, "_ _ D"]:
        if queries is not None or not training:
            return self.layer(x, layout=layout, queries=queries, training=training)
        positions = layout.positions
        seeds = [variable for variable in self.layer.variables if variable.name == "seed_generator_state"]

        def run(x: Any, *learned: Any) -> Any:
            relearned = dataclasses.replace(layout, positions=positions.with_learned(*learned))
            return self.layer(x, layout=relearned, training=True)

        return recomputed(run, self.layer.weights, seeds, x, *positions.learned)


@dataclasses.dataclass(frozen=True)
class WithConvolution:
    """A step followed by a convolution over the embeddings (DeBERTa v2)."""

    step: Step
    convolution: keras.layers.Layer

    def __call__(
        self, x: Float[Any, "_ _ D"], layout: TokenLayout, queries: Any = None, training: bool | None = None
    ) -> Float[Any, "_ _ D"]:
        inputs = layout.inputs
        x = layout.pad(self.step(x, layout=layout, queries=queries, training=training))
        return layout.unpad(
            self.convolution(x, inputs.embedded, inputs.input_mask, inputs.instance_ids, training=training)
        )


@dataclasses.dataclass(frozen=True)
class Normalized:
    """A step followed by a layer norm (ModernBERT)."""

    step: Step
    layer_norm: keras.layers.Layer

    def __call__(
        self, x: Float[Any, "_ _ D"], layout: TokenLayout, queries: Any = None, training: bool | None = None
    ) -> Float[Any, "_ _ D"]:
        return self.layer_norm(self.step(x, layout=layout, queries=queries, training=training))
