"""Hides the output of converters and runtimes, from Python and C++, while a model is exported."""

import contextlib
import logging
import os
import sys
import tempfile
from collections.abc import Iterator
from typing import IO


@contextlib.contextmanager
def hidden_output() -> Iterator[IO[str]]:
    """Yields a file to which standard output and standard error are redirected."""
    before = logging.root.manager.disable
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as file:
        sys.stdout.flush()
        sys.stderr.flush()
        copies = {number: os.dup(number) for number in (1, 2)}
        try:
            for number in copies:
                os.dup2(file.fileno(), number)
            logging.disable()  # in notebooks, Python's standard error is another: deprecations, each optimisation
            yield file
        finally:
            logging.disable(before)
            for number, copy in copies.items():
                os.dup2(copy, number)
                os.close(copy)
