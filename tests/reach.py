"""What the core's commands reach by imports, in tokens; `make lint` fails if one reaches more than its bound.

    python tests/reach.py                        # every use, its bound, and what it reaches through dotted names too
    python tests/reach.py glue --why data/tagged # the shortest chain of imports to each file whose path begins so

A use is a command with the task that it loads. An import counts wherever it stands, also inside a function: a reader is
led into it. What stands below `if TYPE_CHECKING` does not count, nor a name for `by_name`, which is no import.
Tokens are Python's, without comments, docstrings and line ends.
"""

import argparse
import ast
import collections
import functools
import pathlib
import re
import sys
import tokenize

ROOT = pathlib.Path(__file__).parent.parent
UNCOUNTED = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
DOTTED_NAME = re.compile(r"official_bert(\.\w+)+(:\w+)?")
TASKS = "official_bert.tasks.loading"  # names all tasks, of which a use loads one
# By use: its modules, and the most tokens that they reach.
USES = {
    "pretraining": (("commands.run_pretraining", "tasks.pretraining.task"), 165_500),
    "glue": (("commands.run_classifier", "tasks.texts.glue"), 169_000),
    "squad": (("commands.run_squad", "tasks.squad.task"), 172_500),
    "ner": (("commands.run_finetuning", "tasks.tagging.task"), 189_500),
    "features": (("commands.extract_features",), 67_000),
    "export": (("commands.run_export", "tasks.texts.glue"), 209_500),
    "predict": (("commands.run_predict", "tasks.texts.glue"), 210_500),
}


def path_of(module: str) -> pathlib.Path | None:
    """Returns the file of a module; None if there is none of this name."""
    base = ROOT / module.replace(".", "/")
    return next((path for path in (base.with_suffix(".py"), base / "__init__.py") if path.is_file()), None)


@functools.cache
def tree(module: str) -> ast.Module:
    """Returns the syntax of a module."""
    return ast.parse(path_of(module).read_text(encoding="utf-8"))


def nodes(node: ast.AST):
    """Yields every node that may run: of `if TYPE_CHECKING:` only those below its `else:`."""
    types_only = isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING")
    for child in node.orelse if types_only else ast.iter_child_nodes(node):
        yield child
        yield from nodes(child)


@functools.cache
def imports(module: str) -> frozenset[str]:
    """Returns the modules of the package that a module imports, and the packages around them."""
    names = []
    for node in nodes(tree(module)):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names += [f"{node.module}.{alias.name}" for alias in node.names]
    return with_packages(names)


@functools.cache
def names_in(module: str) -> frozenset[str]:
    """Returns the dotted names of the package in a module's strings."""
    texts = (node.value for node in ast.walk(tree(module)) if isinstance(node, ast.Constant))
    return frozenset(text for text in texts if isinstance(text, str) and DOTTED_NAME.fullmatch(text))


def with_packages(names) -> frozenset[str]:
    """Returns the modules in dotted names, and the packages around them."""
    parts = (name.partition(":")[0].split(".") for name in names if name.startswith("official_bert"))
    found = {".".join(part[:count]) for part in parts for count in range(1, len(part) + 1)}
    return frozenset(module for module in found if path_of(module))


def reached(modules, named: bool = False) -> dict[str, str]:
    """Returns every module that is reached, and the one that imports it; with `named`, through dotted names too."""
    starts = [f"official_bert.{module}" for module in modules]
    importer, waiting = dict.fromkeys(starts, ""), collections.deque(starts)
    while waiting:
        here = waiting.popleft()
        names = names_in(here) if named and here != TASKS else ()
        for there in sorted(imports(here) | with_packages(names)):
            if there not in importer:
                importer[there] = here
                waiting.append(there)
    return importer


@functools.cache
def tokens(module: str) -> int:
    """Counts the tokens of a module."""
    bodies = [node.body for node in ast.walk(tree(module)) if isinstance(getattr(node, "body", None), list)]
    strings = {body[0].lineno for body in bodies if body and ast.unparse(body[0])[0] in "'\""}
    with open(path_of(module), encoding="utf-8") as file:
        return sum(
            token.type not in UNCOUNTED and not (token.type == tokenize.STRING and token.start[0] in strings)
            for token in tokenize.generate_tokens(file.readline)
        )


def chain(importer: dict[str, str], module: str) -> str:
    """Returns how a module is reached, as a line."""
    names = [module]
    while importer[names[-1]]:
        names.append(importer[names[-1]])
    return " <- ".join(name.removeprefix("official_bert.") for name in names)


def main() -> None:
    """Prints what each use reaches. Ends with status 1 if one reaches more than its bound."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("use", nargs="*", choices=[[], *USES], help="all if none is given")
    parser.add_argument("--why", metavar="PATH", help="below the package, such as data/tagged")
    asked, is_over = parser.parse_args(), False
    for use in asked.use or USES:
        modules, most = USES[use]
        importer, named = reached(modules), reached(modules, named=True)
        total = sum(map(tokens, importer))
        is_over |= total > most
        print(f"{use:12}{total:8,} tokens of at most {most:,}; {sum(map(tokens, named)):,} with dotted names")
        beginning = f"official_bert/{asked.why}".replace("/", ".").removesuffix(".py")
        for module in sorted(importer) if asked.why else ():
            if module.startswith(beginning):
                print(f"  {chain(importer, module)}")
    sys.exit("error: a use reaches more than its bound; --why PATH names the imports" if is_over else 0)


if __name__ == "__main__":
    main()
