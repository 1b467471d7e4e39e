"""Checks user-defined parts: a task when it is imported, an objective before the first step."""

import inspect
from collections.abc import Collection, Iterator, Mapping
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from official_bert.objectives.objective import Batch, Objective, is_own
from official_bert.tasks.answers import Answers
from official_bert.tasks.data import Data
from official_bert.tasks.task import TaskBase

# What tasks had before they had an `objective` and a `serving`.
OF_OBJECTIVES: Mapping[str, str] = {
    "losses": "losses",
    "loss_names": "names",
    "loss_weights": "weights",
    "counters": "counters",
    "counter_names": "counter_names",
    "predictions": "predictions",
    "predicted": "predicted",
}
OF_SERVING = {"served", "served_classes"}
WRONG_CODE = (KeyError, IndexError, TypeError, ValueError, AttributeError, tf.errors.OpError)


def refuse_uncalled(cls: type[TaskBase]) -> None:
    """Raises ValueError, with the replacement, for a method that nothing calls and that would silently have no
    effect.
    """
    for name, replacement in uncalled(cls):
        raise ValueError(
            f"{cls.__module__}: class {cls.__qualname__}: expected no {name}, which nothing calls: {replacement} "
            "(docs/make_it_your_own.md)"
        )


def uncalled(cls: type[TaskBase]) -> Iterator[tuple[str, str]]:
    """Yields the names that a task defines although nothing calls them there, and their replacements; such an override
    would silently have no effect.
    """
    for name, value in vars(cls).items():
        if name in OF_OBJECTIVES:
            yield (
                name,
                f"give a class like those in official_bert/objectives its own {OF_OBJECTIVES[name]}, and return it "
                "from `objective`, with others in a Sum",
            )
        if name in OF_SERVING:
            yield (
                name,
                "make a Serving of your classes of served models and of what makes one, and name it in `serving`",
            )
        if name == "flops":
            yield name, "return a Recipe with your `flops` from `recipe`"
        if name == "data" and inspect.isfunction(value):
            yield name, "give a `Data` its own `sources`, and name it: data = property(MyData)"
        for part, default in (("data", Data), ("answers", Answers)):
            owner = getattr(cls, part).fget if isinstance(getattr(cls, part), property) else default
            owner = owner if isinstance(owner, type) else default
            if not name.startswith("_") and hasattr(owner, name) and not hasattr(TaskBase, name) and name != "config":
                yield (
                    name,
                    f"give a class derived from {owner.__module__}.{owner.__qualname__} its own {name}, and name it: "
                    f"{part} = property(...)",
                )


def check_objective(objective: Objective, model: keras.Model, batch: Batch) -> None:
    """Raises ValueError, naming method and shape, for a user-defined objective that training cannot use."""
    weights, others = (
        [variable.value for variable in variables]
        for variables in (model.trainable_variables, model.non_trainable_variables)
    )
    outputs, _ = model.stateless_call(weights, others, dict(batch), training=True)
    for part in filter(is_own, objective.parts):
        _check_part(part, outputs, batch)


def _check_part(part: Objective, outputs: Mapping[str, tf.Tensor], batch: Batch) -> None:
    weights = _call(part, "weights", part.names, batch)
    for name, pair in _call(part, "losses", part.names, outputs, batch).items():
        _check_numbers(part, "losses", name, pair)
        _check_numbers(part, "weights", name, (weights[name],))
        if not np.isclose(pair[1], weights[name]):
            raise ValueError(
                f"{_name(part)}.weights: expected the weight of {name} that losses gives, {float(pair[1]):g}, got "
                f"{float(weights[name]):g}"
            )
    for name, pair in _call(part, "counters", part.counter_names, outputs, batch).items():
        _check_numbers(part, "counters", name, pair)
    rows = len(batch["example_weights"])
    for name, value in _call(part, "predictions", None, outputs, batch).items():
        if _axes(value)[:1] != [rows]:
            raise ValueError(
                f"{_name(part)}.predictions: expected a value of {name} for each of the {rows} rows of a batch, got "
                f"the shape {_axes(value)}"
            )


def _call(part: Objective, method: str, names: Collection[str] | None, *arguments: Any) -> dict[str, Any]:
    """Calls a method; its results must have these names."""
    try:
        values = getattr(part, method)(*arguments)
    except WRONG_CODE as error:
        shapes = "; ".join(
            ", ".join(f"{name} {_axes(value)}" for name, value in sorted(argument.items())) for argument in arguments
        )
        raise ValueError(
            f"{_name(part)}.{method}: {type(error).__name__}: {str(error).splitlines()[0]}; it was given {shapes}"
        ) from None
    if not isinstance(values, Mapping) or (names is not None and {*values} != {*names}):
        wanted = "a dict" if names is None else f"a dict of {list(names)}"
        raise ValueError(f"{_name(part)}.{method}: expected {wanted}, got {values if names is None else [*values]}")
    return dict(values)


def _check_numbers(part: Objective, method: str, name: str, numbers: Any) -> None:
    wanted = "a number" if method == "weights" else "a sum and a weight"
    if not isinstance(numbers, tuple) or len(numbers) != (1 if method == "weights" else 2):
        got = f"{type(numbers).__name__} {numbers}"
        raise ValueError(f"{_name(part)}.{method}: expected {wanted} of {name}, got {got}")
    if any(_axes(number) for number in numbers):
        shapes = " and ".join(f"{_axes(number)}" for number in numbers)
        raise ValueError(f"{_name(part)}.{method}: expected {wanted} of {name}, without axes, got the shape {shapes}")


def _name(part: Objective) -> str:
    return f"{type(part).__module__}.{type(part).__qualname__}"


def _axes(value: Any) -> list[int]:
    return list(np.shape(value))
