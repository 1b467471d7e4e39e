"""Options by their names: what the core asks for without importing it."""

import importlib
from typing import Any


def by_name(name: str) -> Any:
    """Returns the object of a name `package.module:Object`, or the module of `package.module`, which is imported now.

    Callers give whole literals, which a test resolves, and the type of what comes back.
    """
    path, _, attribute = name.partition(":")
    module = importlib.import_module(path)
    return getattr(module, attribute) if attribute else module
