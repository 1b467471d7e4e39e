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

import beartype.door
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
    """Wraps a function: eager calls with shapes other than those annotated raise `jaxtyping.TypeCheckError`.

    jaxtyping's own wrapper checks parameters twice, with their binding a quarter of the time of small models. So it is
    called for its message alone, when a parameter does not fit.
    """
    import keras
    import tensorflow as tf

    parameters = inspect.signature(function).parameters
    hints = {name: hint for name, hint in inspect.get_annotations(function).items() if _is_shape(hint)}
    several = any(one.kind in (one.VAR_POSITIONAL, one.VAR_KEYWORD) for one in parameters.values())  # *args, **kwargs
    if several or any("{" in str(hint) for hint in hints.values()):  # sizes that are computed from arguments
        return _by_jaxtyping(function)
    wanted, result = hints.pop("return", None), f"{function.__module__}.{function.__qualname__}"
    places = [(name, place, hints[name]) for place, name in enumerate(parameters) if name in hints]
    reporting = functools.cache(lambda: _by_jaxtyping(function))

    @functools.wraps(function)
    def call(*args, **kwargs):
        if not tf.executing_eagerly() or _holds(keras.KerasTensor, (*args, *kwargs.values())):
            return function(*args, **kwargs)
        with jaxtyping.jaxtyped("context"):
            for name, place, hint in places:
                value = args[place] if place < len(args) else kwargs.get(name, parameters[name].default)
                if not _fits(value, hint):
                    return reporting()(*args, **kwargs)
            out = function(*args, **kwargs)
            if wanted is not None and not _fits(out, wanted):
                message = f"the return value of {result}: expected {wanted}, got {_shapes_of(out)}"
                raise jaxtyping.TypeCheckError(message)
        return out

    return call


def _by_jaxtyping(function: typing.Callable) -> typing.Callable:
    """Wraps a function by jaxtyping alone, for eager calls."""
    import keras
    import tensorflow as tf

    checked = jaxtyping.jaxtyped(function, typechecker=_check_shapes)

    @functools.wraps(function)
    def call(*args, **kwargs):
        symbolic = not tf.executing_eagerly() or _holds(keras.KerasTensor, (*args, *kwargs.values()))
        return (function if symbolic else checked)(*args, **kwargs)

    return call


def _holds(kind: type, values: tuple) -> bool:
    """Whether a value, or one inside a list or mapping, is of a kind."""
    import keras

    return any(
        any(isinstance(inner, kind) for inner in keras.tree.flatten(value))
        if isinstance(value, (dict, list, tuple))
        else isinstance(value, kind)
        for value in values
    )


def _fits(value, hint) -> bool:
    return isinstance(value, hint) if isinstance(hint, type) else beartype.door.is_bearable(value, hint)


def _shapes_of(value) -> str:
    import keras

    return str(keras.tree.map_structure(lambda one: (getattr(one, "dtype", ""), getattr(one, "shape", one)), value))


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
