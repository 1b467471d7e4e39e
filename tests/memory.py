"""How much memory a server holds."""

import contextlib
import pathlib
import re


def anonymous_memory(pid):
    """RssAnon of a process and its children, in kB."""
    with open(f"/proc/{pid}/status", encoding="ascii") as file:
        own = int(re.search(r"RssAnon:\s+(\d+) kB", file.read())[1])
    started: list[str] = []
    for path in pathlib.Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):  # the thread has ended
            started += path.read_text(encoding="ascii").split()
    return own + sum(anonymous_memory(child) for child in started)
