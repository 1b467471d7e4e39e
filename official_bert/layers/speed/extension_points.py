"""Extension points: the methods of layers that an export, or another runtime, may compute in its own way.

A method is declared as one by `@extension_point`; `overridden` says what is called instead while a graph is traced. The
points:

| method | what overrides it |
|---|---|
| `BertEncoder.call` | requests of fewer than 8 tokens, padded |
| `Embeddings.call`, `Embeddings.read` | tables summed beforehand; gathers that every runtime has |
| `SelfAttention.call` | fused products, attention for few tokens |
| `TransformerLayer.feed_forward` | products in small pieces |
| `Dense.multiply` | a product of yours (docs/encoder.md) |
| `Reader.gather_rows` | one gather |
"""

import contextlib
import functools
from collections.abc import Callable, Mapping
from typing import Any

from official_bert.layers.speed.computing import computing, current


def extension_point(method: Callable) -> Callable:
    """Declares a method that `overridden` may replace."""
    name = method.__name__

    @functools.wraps(method)
    def run(self: Any, *args: Any, **kwargs: Any) -> Any:
        override = current().overrides.get((id(self), name))
        return method(self, *args, **kwargs) if override is None else override(*args, **kwargs)

    run.original = method  # type: ignore[attr-defined]
    return run


def original(owner: Any, name: str) -> Callable:
    """Returns an extension point as its class computes it, for an override that calls it."""
    return functools.partial(_declared(owner, name).original, owner)


def overridden(overrides: Mapping[tuple[Any, str], Callable]) -> contextlib.AbstractContextManager[None]:
    """Replaces the methods `(object, name)` by functions for the graphs that are traced inside; nested calls add to it.

    Raises TypeError for a method that is no extension point.
    """
    for owner, name in overrides:
        _declared(owner, name)
    return computing(
        overrides={
            **current().overrides,
            **{(id(owner), name): function for (owner, name), function in overrides.items()},
        }
    )


def _declared(owner: Any, name: str) -> Any:
    method = getattr(type(owner), name, None)
    if not hasattr(method, "original"):
        raise TypeError(f"{type(owner).__name__}.{name} is no extension point")
    return method
