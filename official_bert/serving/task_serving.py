"""The served models of a task, and the interface that they need of it."""

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
        """The options of this task, an instance of `Options`."""

    @property
    def answers(self) -> Any:
        """The task's `Answers`, which turn a model's outputs into answers."""

    @property
    def head(self) -> str:
        """The kind of the task's model."""


class Serving(NamedTuple):
    """The served models of a task. A task names its `Serving` in `serving`; only export and prediction import it."""

    classes: tuple[type, ...]  # of `ServedModel`, of which `make` returns one
    make: Callable[[Any, keras.Model, Any], Any]  # of a trained model and `ServingOptions`


def serving_of(task: ServedTask | type[ServedTask], name: str) -> Serving:
    """Returns the `Serving` of a task (or its class). Raises ValueError with the task's name if it cannot be served."""
    if not task.serving:
        raise ValueError(f"task {name} cannot be served")
    return by_name(task.serving)
