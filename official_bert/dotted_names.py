"""Options by their names: what the core asks for without importing it."""

import importlib
from typing import Any


def by_name(name: str) -> Any:
    """Returns the object of a name `package.module:Object`, whose module is imported now.

    Callers give whole literals, which a test resolves, and the type of what comes back.
    """
    module, _, attribute = name.partition(":")
    return getattr(importlib.import_module(module), attribute)
