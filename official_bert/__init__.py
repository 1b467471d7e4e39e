"""BERT of 2018 on TensorFlow and Keras 3: the way in from Python (docs/python.md).

Importing this imports nothing else; each name is loaded when it is first used.
"""

import importlib
import importlib.machinery
import os
import sys
import types
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from official_bert.interface.exporting import export
    from official_bert.interface.finetuning import fine_tune, load_run
    from official_bert.interface.predictor import Predictor
    from official_bert.interface.pretrained import load_encoder, load_model, load_tokenizer

_HOMES = {
    "Predictor": "predictor",
    "load_encoder": "pretrained",
    "load_model": "pretrained",
    "load_tokenizer": "pretrained",
    "export": "exporting",
    "fine_tune": "finetuning",
    "load_run": "finetuning",
}
__all__ = ["Predictor", "export", "fine_tune", "load_encoder", "load_model", "load_run", "load_tokenizer"]


def __getattr__(name: str) -> Any:
    """Imports the module that a name of `__all__` is in."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.interface.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])


# An import hook, because nothing else lets `keras.models.load_model` read files with our layers after a plain `import
# official_bert`, as docs/python.md promises: Keras has no entry point for packages with layers, and importing it here
# takes every command some seconds.
class _BesideKeras:
    """Registers our layers with Keras as soon as somebody imports it: `keras.models.load_model` then reads files that
    hold them.
    """

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Finds keras as the others do; what runs it registers ours too, unless one of our modules imports it, which
        registers itself.
        """
        spec = importlib.machinery.PathFinder.find_spec(name, path) if name == "keras" else None
        if spec and spec.loader:
            execute = spec.loader.exec_module

            def execute_and_register(module: types.ModuleType) -> None:
                execute(module)
                _register()

            spec.loader.exec_module = execute_and_register  # type: ignore[method-assign]
        return spec


def _register() -> None:
    begun = [
        name
        for name, module in [*sys.modules.items()]
        if getattr(getattr(module, "__spec__", None), "_initializing", False)
    ]
    if not any(name.startswith(f"{__name__}.") for name in begun):
        importlib.import_module(f"{__name__}.interface.keras_objects")


class _Beside:
    """Finds `official_bert.tools` and `official_bert.configs` in a checkout: the folders beside this one.

    Without it, a second checkout with `PYTHONPATH=$PWD` would import the tools of the one that is installed.
    """

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Looks in the package first, where an installation has them."""
        if name not in (f"{__name__}.tools", f"{__name__}.configs"):
            return None
        return importlib.machinery.PathFinder.find_spec(name, [*__path__, os.path.dirname(__path__[0])])


sys.meta_path.insert(0, _Beside())
_register() if "keras" in sys.modules else sys.meta_path.insert(0, _BesideKeras())
