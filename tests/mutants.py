"""Shows which small faults the tests notice: changes one expression at a time, and runs the tests of its folder.

    .venv/bin/python tests/mutants.py                       # 60 mutants
    .venv/bin/python tests/mutants.py --count 18 --seed 1   # others
    .venv/bin/python tests/mutants.py --tests ../old/tests  # the same mutants against other tests

Run by hand, because it takes half an hour. A mutant is caught if a test fails, or if the tests take twice their CPU
time; one that survives is the same code in other words, or lacks a test. Works on a copy of the checkout in a temporary
folder. TensorFlow is imported once, and each run of tests is a fork of this process.
"""

import argparse
import ast
import dataclasses
import os
import pathlib
import random
import re
import resource
import shutil
import sys
import tempfile
from collections.abc import Iterator

ROOT = pathlib.Path(__file__).resolve().parent.parent
# Subject, source, functions whose name matches, folder of tests.
SUBJECTS = (
    ("instances", "data/pretraining/instances.py", "make_rows", "data/pretraining"),
    ("instances", "data/pretraining/pairs.py", "", "data/pretraining"),
    ("instances", "data/pretraining/rows.py", "", "data/pretraining"),
    ("masking", "data/pretraining/masks.py", "", "data/pretraining"),
    ("masking", "data/pretraining/dynamic_masking.py", "", "data/pretraining"),
    ("masking", "data/pretraining/masking.py", "", "data/pretraining"),
    ("packing", "data/pretraining/packing.py", "", "data/pretraining"),
    ("packing", "text/packing.py", "", "text"),
    ("attention", "layers/attention.py", "", "layers"),
    ("attention", "layers/attention_mask.py", "", "layers"),
    ("attention", "layers/token_layout.py", "", "layers"),
    ("optimization", "training/optimization.py", "", "training"),
    ("optimization", "training/learning_rate.py", "", "training"),
    ("decoding", "tasks/squad/decoding.py", "^(?!decode$|null)", "tasks/squad"),
    ("decoding", "layers/relatives/crf.py", "best_path|_forward|_advance", "layers"),
    ("metrics", "tasks/squad/metrics.py", "^(?!_?best)", "tasks/squad"),
    ("metrics", "tasks/texts/metrics.py", "", "tasks/texts"),
    ("metrics", "tasks/retrieval/metrics.py", "", "tasks/retrieval"),
    ("null threshold", "tasks/squad/decoding.py", "^(decode|null_span)$", "tasks/squad"),
    ("null threshold", "tasks/squad/metrics.py", "best", "tasks/squad"),
    ("data position", "data/batches/record_order.py", "", "data"),
    ("data position", "data/batches/sources.py", "", "data"),
)
SYMBOLS = {
    ast.Add: ("+", "-"),
    ast.Sub: ("-", "+"),
    ast.Mult: ("*", "/"),
    ast.Div: ("/", "*"),
    ast.FloorDiv: ("//", "+"),
    ast.Mod: ("%", "+"),
    ast.Lt: ("<", "<="),
    ast.LtE: ("<=", "<"),
    ast.Gt: (">", ">="),
    ast.GtE: (">=", ">"),
    ast.Eq: ("==", "!="),
    ast.NotEq: ("!=", "=="),
    ast.BitAnd: ("&", "|"),
    ast.BitOr: ("|", "&"),
    ast.And: ("and", "or"),
    ast.Or: ("or", "and"),
}
NAMES = {
    "min": "max",
    "max": "min",
    "minimum": "maximum",
    "maximum": "minimum",
    "argmax": "argmin",
    "argmin": "argmax",
    "logical_and": "logical_or",
    "logical_or": "logical_and",
    "any": "all",
    "all": "any",
}
UNTOUCHED = (ast.JoinedStr, ast.Raise, ast.arguments, ast.AnnAssign)  # messages, defaults and annotations


@dataclasses.dataclass(frozen=True)
class Mutant:
    """A changed expression: bytes `start` to `end` of a source become `after`."""

    subject: str
    source: pathlib.Path
    tests: str
    line: int
    start: int
    end: int
    after: str

    def text(self) -> bytes:
        """Returns the changed source."""
        before = self.source.read_bytes()
        return before[: self.start] + self.after.encode() + before[self.end :]

    def __str__(self):
        texts = self.source.read_bytes(), self.text()
        before, after = (text.decode().splitlines()[self.line - 1].strip() for text in texts)
        return f"{self.subject:14} {self.source.relative_to(ROOT)}:{self.line}\n    - {before}\n    + {after}"


def changes(node: ast.AST) -> Iterator[tuple[tuple[int, int], tuple[int, int], str, str]]:
    """Yields (start, end, before, after): after replaces before, or all if that is "", between two (line, column)."""
    match node:
        case ast.BinOp() if type(node.op) in SYMBOLS:
            yield end_of(node.left), start_of(node.right), *SYMBOLS[type(node.op)]
        case ast.Compare(ops=[operator]) if type(operator) in SYMBOLS:
            yield end_of(node.left), start_of(node.comparators[0]), *SYMBOLS[type(operator)]
        case ast.BoolOp():
            yield end_of(node.values[0]), start_of(node.values[1]), *SYMBOLS[type(node.op)]
        case ast.UnaryOp(op=ast.Not() | ast.Invert()):
            yield start_of(node), start_of(node.operand), "", ""
        case ast.Constant(value=int() | float()):
            other = not node.value if isinstance(node.value, bool) else node.value + 1
            yield start_of(node), end_of(node), "", str(other)
        case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name)) if name in NAMES:
            line, column = end_of(node.func)
            yield (line, column - len(name)), (line, column), name, NAMES[name]
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, UNTOUCHED):
            yield from changes(child)


def start_of(node: ast.AST) -> tuple[int, int]:
    return node.lineno, node.col_offset


def end_of(node: ast.AST) -> tuple[int, int]:
    return node.end_lineno, node.end_col_offset


def mutants(subject: str, source: pathlib.Path, functions: str, tests: str) -> Iterator[Mutant]:
    """Yields all mutants of the functions whose name matches."""
    text = source.read_bytes()
    lines = [0, *(match.end() for match in re.finditer(b"\n", text))]
    matching = [
        node
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.FunctionDef) and re.search(functions, node.name)
    ]
    for statement in (statement for function in matching for statement in function.body):
        for (line, column), (last_line, last_column), before, after in changes(statement):
            start, end = lines[line - 1] + column, lines[last_line - 1] + last_column
            if before:
                start = text.index(before.encode(), start, end)
                end = start + len(before)
            yield Mutant(subject, source, tests, 1 + text.count(b"\n", 0, start), start, end, after)


def chosen(seed: int, count: int) -> list[Mutant]:
    """Chooses mutants by chance, as many of each subject as of each other one."""
    rng, of_subject = random.Random(seed), {}
    for subject, source, functions, tests in SUBJECTS:
        found = mutants(subject, ROOT / "official_bert" / source, functions, tests)
        of_subject.setdefault(subject, {}).update({(mutant.source, mutant.start): mutant for mutant in found})
    orders = [rng.sample(list(found.values()), len(found)) for found in of_subject.values()]
    return [order[turn] for turn in range(count) for order in orders if turn < len(order)][:count]


class Watch:
    """A plugin of pytest: runs the tests of the changed module first, and keeps the name of the test that failed."""

    def __init__(self, module: str):
        self.module, self.failed = module, ""

    def pytest_collection_modifyitems(self, items):
        items.sort(key=lambda item: self.module not in item.path.stem)

    pytest_collection_modifyitems.pytest_impl = {"trylast": True}

    def pytest_runtest_logreport(self, report):
        self.failed = self.failed or (report.failed and report.nodeid) or ""

    pytest_collectreport = pytest_runtest_logreport


def run_tests(copy: pathlib.Path, tests: str, module: str, seconds: int = 100_000) -> tuple[str, float]:
    """Runs a folder of tests in a fork; returns what failed ("" if nothing), and the CPU seconds."""
    reading, writing = os.pipe()
    process = os.fork()
    if not process:
        resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        os.chdir(copy)
        os.environ["PYTHONPATH"] = str(copy)
        ours = (ROOT, ROOT / "tests")
        sys.path[:] = [str(copy), *(path for path in sys.path if pathlib.Path(path or ".").resolve() not in ours)]
        output = os.open(os.devnull, os.O_WRONLY)
        os.dup2(output, 1), os.dup2(output, 2)
        import pytest

        watch = Watch(module)
        code = pytest.main(["-x", "-q", "-n", "0", "-m", "not slow", f"tests/{tests}"], plugins=[watch])
        os.write(writing, (watch.failed or ("" if code == 0 else "collection")).encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        failed = pipe.read()
    _, status, used = os.wait4(process, 0)  # with what its own processes used
    return failed or ("CPU time, or a crash" if status else ""), used.ru_utime + used.ru_stime


def main():
    """Prints the table."""
    flags = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    flags.add_argument("--seed", type=int, default=0)
    flags.add_argument("--count", type=int, default=60)
    flags.add_argument("--tests", type=pathlib.Path, default=ROOT / "tests", help="default: those of this checkout")
    given = flags.parse_args()
    import keras  # noqa: F401
    import tensorflow as tf  # noqa: F401

    with tempfile.TemporaryDirectory() as folder:
        copy = pathlib.Path(folder) / "copy"
        ignored = shutil.ignore_patterns(".git", ".venv", "build", "demo", "__pycache__", "tests")
        shutil.copytree(ROOT, copy, ignore=ignored, symlinks=True)
        shutil.copytree(given.tests, copy / "tests", ignore=shutil.ignore_patterns("__pycache__"))
        limits, caught = {}, 0
        mutants = chosen(given.seed, given.count)
        for mutant in mutants:
            if mutant.tests not in limits:
                failed, seconds = run_tests(copy, mutant.tests, "")
                if failed:
                    sys.exit(f"error: the tests of {mutant.tests} fail without a mutant: {failed}")
                limits[mutant.tests] = 20 + 2 * int(seconds)
                print(f"{mutant.tests}: {seconds:.0f} CPU seconds without a mutant", flush=True)
            path = copy / mutant.source.relative_to(ROOT)
            path.write_bytes(mutant.text())
            for compiled in (path.parent / "__pycache__").glob(f"{path.stem}.*"):
                compiled.unlink()
            failed, seconds = run_tests(copy, mutant.tests, path.stem, limits[mutant.tests])
            shutil.copy2(mutant.source, path)
            caught += bool(failed)
            print(f"{mutant}\n    {f'caught by {failed}' if failed else 'SURVIVED'} ({seconds:.0f} s)", flush=True)
        print(f"{caught} of {len(mutants)} mutants caught")


if __name__ == "__main__":
    main()
