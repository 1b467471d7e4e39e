"""Writes the tables of docs/promises.md: the flags of each command, and the signatures of exported models.

.venv/bin/python docs/write_promises.py
"""

import pathlib
import runpy
from collections.abc import Iterable, Iterator

from absl import flags

from official_bert.__main__ import COMMANDS
from official_bert.dotted_names import by_name
from official_bert.serving.served_model import ServedModel
from official_bert.tasks.loading import MODULES

ROOT = pathlib.Path(__file__).parent.parent
PAGE = ROOT / "docs" / "promises.md"
BEGIN = "## Tables"  # what stands below this heading is written here


def flags_of(module: str) -> list[str]:
    """Returns the names of the flags that a command defines, in the order of the alphabet."""
    others = set(flags.FLAGS)
    path = ROOT / f"{module.replace('.', '/').replace('official_bert/tools', 'tools')}.py"
    runpy.run_path(str(path), run_name=path.stem)
    names = sorted(set(flags.FLAGS) - others)
    for name in names:
        delattr(flags.FLAGS, name)
    return names


def served_models(cls: type[ServedModel] = ServedModel) -> Iterator[type[ServedModel]]:
    """Yields the kinds of exported models: the subclasses that name their outputs."""
    for subclass in cls.__subclasses__():
        if subclass.__module__.startswith("official_bert.") and "outputs" in vars(subclass):
            yield subclass
        yield from served_models(subclass)


def row(first: str, *lists: Iterable[str]) -> str:
    """Returns a row of a table, with lists of names in its cells."""
    return f"| {' | '.join([first, *(', '.join(f'`{name}`' for name in names) for names in lists)])} |"


def tables() -> str:
    """Returns both tables."""
    for name in MODULES.values():
        by_name(by_name(name).serving)
    commands = [row(f"`{name}`", [f"--{flag}" for flag in flags_of(module)]) for name, module in COMMANDS.items()]
    models = sorted(row(cls.__name__.removeprefix("Served"), cls.text_inputs, cls.outputs) for cls in served_models())
    return "\n".join(
        [
            "### Commands and flags",
            "",
            "| `official-bert` | flags |",
            "|---|---|",
            *commands,
            "",
            "### Signatures of `text` models",
            "",
            "| model | inputs | outputs |",
            "|---|---|---|",
            *models,
            "",
        ]
    )


def page() -> str:
    """Returns the page with its tables anew."""
    prose = PAGE.read_text(encoding="utf-8").partition(BEGIN)[0]
    return f"{prose}{BEGIN}\n\n`make options` writes these tables.\n\n{tables()}"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
