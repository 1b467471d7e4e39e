"""The one setting that changes how the layers compute: a context variable, read while a graph is traced.

A training step and an export set `computing` around their trace. Everything else gets the defaults, the plain layers.
"""

import contextlib
import contextvars
import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any

Overrides = Mapping[tuple[int, str], Callable]  # id of an object and the name of its method -> what is called instead


@dataclasses.dataclass(frozen=True)
class Computing:
    """The settings of how the layers compute."""

    # layers skip the padding of rows whose length is not known beforehand (`real_tokens`)
    removes_padding: bool = False
    compiles_every_length: bool = False  # compiled pieces are used for tensors of unknown shape too (`fused`)
    overrides: Overrides = dataclasses.field(default_factory=dict)  # of methods (`extension_points`)


_computing: contextvars.ContextVar[Computing] = contextvars.ContextVar("computing")
_PLAIN = Computing()


def current() -> Computing:
    """Returns the setting of this context."""
    return _computing.get(_PLAIN)


@contextlib.contextmanager
def computing(**changes: Any) -> Iterator[None]:
    """Sets fields of `Computing` for the graphs that are traced inside; the other fields keep their values."""
    token = _computing.set(dataclasses.replace(current(), **changes))
    try:
        yield
    finally:
        _computing.reset(token)
