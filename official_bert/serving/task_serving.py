"""What the models of a task are served as."""

from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple, Protocol

import keras

from official_bert.config import Config
from official_bert.dotted_names import by_name


class ServedTask(Protocol):
    """What a served model asks its task."""

    Options: ClassVar[type]
    serving: ClassVar[str]

    @property
    def config(self) -> Config:
        """Its configuration."""

    @property
    def options(self) -> Any:
        """Its own options, an `Options`."""

    @property
    def head(self) -> str:
        """The kind of its model."""


class Serving(NamedTuple):
    """The served models of a task, which names one in `serving`; export and prediction alone ask for it."""

    classes: tuple[type, ...]  # of `ServedModel`, of which `make` returns one
    make: Callable[[Any, keras.Model, Any], Any]  # of a trained model and `ServingOptions`


def serving_of(task: ServedTask | type[ServedTask], name: str) -> Serving:
    """Returns how a task (or its class) is served. Raises ValueError, with the task's name, if it is not."""
    if not task.serving:
        raise ValueError(f"task {name} is not served")
    return by_name(task.serving)
