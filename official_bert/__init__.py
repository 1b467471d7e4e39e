"""BERT of 2018 on TensorFlow and Keras 3: the way in from Python (docs/python.md).

Importing this imports nothing else; each name is loaded when it is first used.
"""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from official_bert.finetuning import fine_tune
    from official_bert.predictor import Predictor
    from official_bert.pretrained import load_encoder, load_model, load_tokenizer

_HOMES = {"Predictor": "predictor", "load_encoder": "pretrained", "load_model": "pretrained", "load_tokenizer": "pretrained",
          "fine_tune": "finetuning"}
__all__ = ["Predictor", "fine_tune", "load_encoder", "load_model", "load_tokenizer"]


def __getattr__(name: str):
    """Imports the module that a name of `__all__` is in."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
