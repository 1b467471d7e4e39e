"""The house rules that can be read off the sources: one direction of imports, files of a readable length."""

import ast
import pathlib

import pytest

ROOT = pathlib.Path(__file__).parent.parent
PACKAGE = ROOT / "official_bert"
ORDER = ["config", "text", "data", "layers", "models", "training", "tasks", "serving", "main"]
TENSORFLOW_PLACES = ("text/graph", "data/records", "data/input_pipeline", "data/dynamic_masking", "models/checkpoints",
                     "models/interchange/", "training/", "tasks/", "serving/")
SOURCES = sorted([*PACKAGE.rglob("*.py"), *ROOT.glob("tools/*.py")])


def room(path: pathlib.Path) -> str:
    """The part of the house in which a file lies."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    if parts[0] != "official_bert":
        return "main"
    if len(parts) == 2:
        return parts[1] if parts[1] in ORDER else "main"
    return parts[1]


def imports(path: pathlib.Path) -> list[tuple[str, int]]:
    """Dotted names that a file imports, at its top or inside functions, with their lines."""
    found = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found += [(alias.name, node.lineno) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: relative import"
            found += [(f"{node.module}.{alias.name}", node.lineno) for alias in node.names]
    return found


def test_every_room_is_known():
    assert {room(path) for path in SOURCES if path.name != "__init__.py"} <= set(ORDER)


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_go_one_way(path):
    here = room(path)
    if path == PACKAGE / "__init__.py":
        here = "config"
    for name, line in imports(path):
        parts = name.split(".")
        if parts[0] == "tools":
            pytest.fail(f"{path}:{line}: nothing imports from tools")
        if parts[0] != "official_bert" or len(parts) < 2:
            continue
        there = parts[1] if parts[1] in ORDER else "main"
        assert ORDER.index(there) <= ORDER.index(here), f"{path}:{line}: {here} imports {name}"
        if here == "tasks" and there == "tasks" and path.name != "__init__.py":
            pytest.fail(f"{path}:{line}: a task imports no sibling")


@pytest.mark.parametrize("path", [path for path in SOURCES if room(path) != "main"],
                         ids=lambda path: str(path.relative_to(ROOT)))
def test_tensorflow_stays_in_its_places(path):
    inside = str(path.relative_to(PACKAGE))
    if not inside.startswith(TENSORFLOW_PLACES):
        for name, line in imports(path):
            assert name.split(".")[0] not in ("tensorflow", "tensorflow_text"), f"{path}:{line}: imports {name}"


@pytest.mark.parametrize("path", [path for path in SOURCES if path.parent.name != "tools"],
                         ids=lambda path: str(path.relative_to(ROOT)))
def test_environment_is_read_in_one_place(path):
    # config.py sets a default for a command, and reads nothing.
    if path not in (PACKAGE / "training" / "distribution.py", PACKAGE / "config.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            named = isinstance(node, ast.Attribute) and node.attr in ("environ", "getenv")
            assert not named, f"{path}:{node.lineno}: reads the environment"


@pytest.mark.parametrize("path", SOURCES + sorted(ROOT.glob("benchmarks/*.py")),
                         ids=lambda path: str(path.relative_to(ROOT)))
def test_no_file_is_longer_than_400_lines(path):
    assert len(path.read_text(encoding="utf-8").splitlines()) <= 400


def test_the_rules_catch_what_they_forbid(tmp_path):
    wrong = tmp_path / "wrong.py"
    wrong.write_text("from official_bert.training import loop\nimport tensorflow as tf\n")
    assert imports(wrong) == [("official_bert.training.loop", 1), ("tensorflow", 2)]
    assert room(PACKAGE / "text" / "vocab.py") == "text" and room(PACKAGE / "run_export.py") == "main"
