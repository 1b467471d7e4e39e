"""Finds the served models of a task."""

from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple, Protocol

import keras

from official_bert.config import Config
from official_bert.dotted_names import by_name


class ServedTask(Protocol):
    """The interface that a served model requires of its task."""

    Options: ClassVar[type]
    serving: ClassVar[str]

    @property
    def config(self) -> Config:
        """The task's configuration."""

    @property
    def options(self) -> Any:
        """The task's own options, an `Options`."""

    @property
    def answers(self) -> Any:
        """What the task makes of outputs."""

    @property
    def head(self) -> str:
        """The kind of the task's model."""


class Serving(NamedTuple):
    """The served models of a task, which names a `Serving` in `serving`; only export and prediction use it."""

    classes: tuple[type, ...]  # of `ServedModel`, of which `make` returns one
    make: Callable[[Any, keras.Model, Any], Any]  # of a trained model and `ServingOptions`


def serving_of(task: ServedTask | type[ServedTask], name: str) -> Serving:
    """Returns how a task (or its class) is served. Raises ValueError, with the task's name, if it is not."""
    if not task.serving:
        raise ValueError(f"task {name} is not served")
    return by_name(task.serving)
