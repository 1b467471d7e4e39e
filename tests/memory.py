"""How much memory a server holds."""

import pathlib
import re


def anonymous_memory(pid):
    """RssAnon of a process and its children, in kB."""
    with open(f"/proc/{pid}/status", encoding="ascii") as file:
        own = int(re.search(r"RssAnon:\s+(\d+) kB", file.read())[1])
    started = [path.read_text(encoding="ascii").split() for path in pathlib.Path(f"/proc/{pid}/task").glob("*/children")]
    return own + sum(anonymous_memory(child) for children in started for child in children)
