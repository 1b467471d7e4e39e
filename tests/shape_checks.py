"""Checks annotated shapes and dtypes (`jaxtyping`) when tests call functions eagerly; conftest.py switches it on.

A function of `MODULES` whose annotations hold a type such as `Float[Any, "B S D"]` is wrapped when its module is
imported. All other annotations are mypy's. Inside graphs nothing is checked, because lengths are unknown there, and no
operation is added.

jaxtyping's `install_import_hook` is not used: it decorates nested functions too, at each call of the outer one, and
has beartype refuse `Self` as an annotation.
"""

import functools
import importlib.abc
import importlib.machinery
import inspect
import sys
import types
import typing

import beartype
import jaxtyping

# With all modules below them.
MODULES = (
    "official_bert.layers",
    "official_bert.models.encoder",
    "official_bert.objectives",
    "official_bert.training.step",
    "official_bert.tasks",
    "official_bert.serving",
)


def switch_on(modules: tuple[str, ...] = MODULES) -> None:
    """Wraps the functions of modules that are imported from now on."""
    sys.meta_path.insert(0, _Finder(modules))


class _Finder(importlib.abc.MetaPathFinder):
    """Finds the given modules as Python does, and has them loaded by `_Loader`."""

    def __init__(self, modules: tuple[str, ...]):
        self.modules = modules

    def find_spec(self, fullname, path=None, target=None):
        if not f"{fullname}.".startswith(tuple(f"{module}." for module in self.modules)):
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        if spec is not None and isinstance(spec.loader, importlib.machinery.SourceFileLoader):
            spec.loader = _Loader(spec.loader.name, spec.loader.path)
        return spec


class _Loader(importlib.machinery.SourceFileLoader):
    """Loads a module, then wraps its functions and the methods of its classes."""

    def exec_module(self, module):
        super().exec_module(module)
        for owner in (module, *(value for value in vars(module).values() if isinstance(value, type))):
            for name, value in list(vars(owner).items()):
                function = getattr(value, "__func__", value)  # of a static or class method
                if getattr(function, "__module__", None) == module.__name__ and _has_shapes(function):
                    checked = check_eagerly(function)
                    setattr(owner, name, checked if function is value else type(value)(checked))


def check_eagerly(function: typing.Callable) -> typing.Callable:
    """Wraps a function: eager calls with shapes other than those annotated raise `jaxtyping.TypeCheckError`."""
    import keras
    import tensorflow as tf

    checked = jaxtyping.jaxtyped(function, typechecker=_check_shapes)

    @functools.wraps(function)
    def call(*args, **kwargs):
        values = keras.tree.flatten((args, kwargs))
        symbolic = not tf.executing_eagerly() or any(isinstance(value, keras.KerasTensor) for value in values)
        return (function if symbolic else checked)(*args, **kwargs)

    return call


def _check_shapes(function: types.FunctionType) -> typing.Callable:
    """Has beartype check the shapes among a function's annotations."""
    function.__annotations__ = {name: hint for name, hint in function.__annotations__.items() if _is_shape(hint)}
    return beartype.beartype(function)


def _has_shapes(value) -> bool:
    return isinstance(value, types.FunctionType) and any(map(_is_shape, inspect.get_annotations(value).values()))


def _is_shape(hint) -> bool:
    """Whether a hint is or holds a type of jaxtyping."""
    is_array = isinstance(hint, type) and issubclass(hint, jaxtyping.AbstractArray)
    return is_array or any(map(_is_shape, typing.get_args(hint)))
