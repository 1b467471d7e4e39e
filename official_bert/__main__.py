"""The commands under one name: `official-bert pretrain --config=pretrain/small ...`.

Each runs the same main as `python -m official_bert.run_pretraining` or `python tools/build_vocab.py`; `official-bert
COMMAND --help` lists its flags.
"""

from official_bert.command_line import quiet_end

import ast
import difflib
import importlib.metadata
import importlib.util
import pathlib
import runpy
import sys

from official_bert.command_names import BY_ONE_NAME, COMMANDS, DISTRIBUTION


def main() -> None:
    """Runs the command that the first argument names, with the other arguments."""
    command, arguments = (sys.argv[1], sys.argv[2:]) if len(sys.argv) > 1 else ("--help", [])
    if command in ("--help", "-h", "help"):
        with quiet_end():
            print(overview())
    elif command == "--version":
        print(
            f"{DISTRIBUTION} {importlib.metadata.version(DISTRIBUTION)}, tensorflow "
            f"{importlib.metadata.version('tensorflow')}, keras {importlib.metadata.version('keras')}"
        )
    elif command in COMMANDS:
        sys.argv = [f"{DISTRIBUTION} {command}", *arguments]
        runpy.run_module(COMMANDS[command], {BY_ONE_NAME: command}, run_name="__main__", alter_sys=True)
    else:
        nearest = difflib.get_close_matches(command.replace("_", "-"), COMMANDS, n=3, cutoff=0.5)
        hint = f"perhaps {' or '.join(nearest)}" if nearest else f"expected one of {', '.join(COMMANDS)}"
        raise SystemExit(f"error: {DISTRIBUTION} has no command {command!r}: {hint}; {DISTRIBUTION} --help lists them")


def overview() -> str:
    """Returns a line for each command: its name and the first paragraph of its module's docstring, which is read,
    not imported.
    """
    width = max(map(len, COMMANDS))
    lines = [f"  {name:{width}}  {_summary(module)}" for name, module in COMMANDS.items()]
    return "\n".join(
        [
            f"usage: {DISTRIBUTION} COMMAND [--flag=value ...]",
            "",
            *lines,
            "",
            f"{DISTRIBUTION} COMMAND --help lists its flags.",
        ]
    )


def _summary(module: str) -> str:
    """Returns the first paragraph of the docstring of a module, in one line."""
    spec = importlib.util.find_spec(module)
    assert spec is not None and spec.origin is not None
    text = ast.get_docstring(ast.parse(pathlib.Path(spec.origin).read_text(encoding="utf-8")))
    assert text is not None
    return text.partition("\n\n")[0].replace("\n", " ")


if __name__ == "__main__":
    main()
