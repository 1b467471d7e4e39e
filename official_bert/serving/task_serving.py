"""What the models of a task are served as."""

from collections.abc import Callable
from typing import Any, NamedTuple

import keras

from official_bert.dotted_names import by_name
from official_bert.training.task import TaskBase


class Serving(NamedTuple):
    """The served models of a task, which names one in `serving`; export and prediction alone ask for it."""

    classes: tuple[type, ...]  # of `ServedModel`, of which `make` returns one
    make: Callable[[TaskBase, keras.Model, Any], Any]  # of a trained model and `ServingOptions`


def serving_of(task: TaskBase | type[TaskBase], name: str) -> Serving:
    """Returns how a task (or its class) is served. Raises ValueError, with the task's name, if it is not."""
    if not task.serving:
        raise ValueError(f"task {name} is not served")
    return by_name(task.serving)
