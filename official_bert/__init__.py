"""BERT of 2018 on TensorFlow and Keras 3: the way in from Python (docs/python.md).

Importing this imports nothing else; each name is loaded when it is first used.
"""

import importlib
import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from official_bert.interface.finetuning import fine_tune
    from official_bert.interface.predictor import Predictor
    from official_bert.interface.pretrained import load_encoder, load_model, load_tokenizer

# `python -m official_bert.run_pretraining` is commands/run_pretraining.py, and so for the other commands.
__path__.append(os.path.join(__path__[0], "commands"))
_HOMES = {"Predictor": "predictor", "load_encoder": "pretrained", "load_model": "pretrained", "load_tokenizer": "pretrained",
          "fine_tune": "finetuning"}
__all__ = ["Predictor", "fine_tune", "load_encoder", "load_model", "load_tokenizer"]


def __getattr__(name: str):
    """Imports the module that a name of `__all__` is in."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.interface.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
