"""The layers of an encoder in the order in which they are computed, each a step `(x, attention_mask, queries, training)
-> x`.

BERT's steps are its layers. Relatives wrap them: a window, a convolution after the first layer, a norm after the last;
a training step wraps them in recomputation. ALBERT has one layer several times. B batch, S sequence, Q query rows, D
hidden size.
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
    """The steps of an encoder; not a layer, so that the names of its weights do not depend on how the steps are
    wrapped.
    """

    def __init__(self, steps: list[Step]) -> None:
        self.steps = steps


@dataclasses.dataclass(frozen=True)
class InWindows:
    """A step whose tokens see a window only."""

    step: Step

    def __call__(
        self, x: Float[Any, "_ _ D"], attention_mask: TokenLayout, queries: Any = None, training: bool | None = None
    ) -> Float[Any, "_ _ D"]:
        return self.step(x, attention_mask=attention_mask.windowed, queries=queries, training=training)


@dataclasses.dataclass(frozen=True)
class Recomputed:
    """A layer whose activations the backward pass computes again; of few rows it keeps them."""

    layer: keras.layers.Layer

    def __call__(
        self, x: Float[Any, "_ _ D"], attention_mask: TokenLayout, queries: Any = None, training: bool | None = None
    ) -> Float[Any, "_ _ D"]:
        if queries is not None or not training:
            return self.layer(x, attention_mask=attention_mask, queries=queries, training=training)
        positions = attention_mask.positions
        seeds = [variable for variable in self.layer.variables if variable.name == "seed_generator_state"]

        def run(x: Any, *learned: Any) -> Any:
            layout = dataclasses.replace(attention_mask, positions=positions.with_learned(*learned))
            return self.layer(x, attention_mask=layout, training=True)

        return recomputed(run, self.layer.weights, seeds, x, *positions.learned)


@dataclasses.dataclass(frozen=True)
class WithConvolution:
    """A step with a convolution over the embeddings after it (DeBERTa v2)."""

    step: Step
    convolution: keras.layers.Layer

    def __call__(
        self, x: Float[Any, "_ _ D"], attention_mask: TokenLayout, queries: Any = None, training: bool | None = None
    ) -> Float[Any, "_ _ D"]:
        layout, inputs = attention_mask, attention_mask.inputs
        x = layout.pad(self.step(x, attention_mask=layout, queries=queries, training=training))
        return layout.unpad(
            self.convolution(x, inputs.embedded, inputs.input_mask, inputs.instance_ids, training=training)
        )


@dataclasses.dataclass(frozen=True)
class Normalized:
    """A step with a layer norm after it (ModernBERT)."""

    step: Step
    layer_norm: keras.layers.Layer

    def __call__(
        self, x: Float[Any, "_ _ D"], attention_mask: TokenLayout, queries: Any = None, training: bool | None = None
    ) -> Float[Any, "_ _ D"]:
        return self.layer_norm(self.step(x, attention_mask=attention_mask, queries=queries, training=training))
