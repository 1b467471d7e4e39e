"""Rules checked in the sources: one direction of imports, and files and folders of a readable size."""

import ast
import functools
import graphlib
import importlib
import importlib.util
import pathlib

import pytest

from official_bert.models import run_folder

ROOT = pathlib.Path(__file__).parent.parent
PACKAGE = ROOT / "official_bert"
ORDER = ["archives", "stores", "files", "copies", "fields", "typed_values", "model_config",
         "optimizer_config", "distillation_config", "config", "command_line",
         "runtimes", "reports", "text", "data", "layers", "models", "training", "serving", "tasks", "interface", "main"]
APART = {"server": ("config", "files", "copies", "command_line", "runtimes", "server")}  # imports nothing else, and only mains import it
TENSORFLOW_PLACES = ("stores", "text/graph", "data/records", "data/sources", "data/pretraining/dynamic_masking",
                     "data/pretraining/graph_reader", "data/pretraining/packing", "data/pretraining/record_lengths",
                     "layers/speed/fused", "layers/speed/long_rows",
                     "models/checkpoints", "models/interchange/", "training/", "serving/", "tasks/", "interface/", "server/")
SOURCES = sorted([*PACKAGE.rglob("*.py"), *ROOT.glob("tools/*.py")])


@functools.cache
def tree(path: pathlib.Path) -> ast.Module:
    """Returns the syntax of a file."""
    return ast.parse(path.read_text(encoding="utf-8"))


def room(path: pathlib.Path) -> str:
    """Returns the part of the package that a file belongs to."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return room_of_name(".".join(parts)) if parts[0] == "official_bert" else "main"


def room_of_name(name: str) -> str:
    """Returns the part of the package that a dotted name belongs to."""
    parts = name.split(".")
    known = (*ORDER, *APART)
    return parts[1] if len(parts) > 1 and parts[1] in known else "main"


def imports(path: pathlib.Path) -> list[tuple[str, int]]:
    """Returns the dotted names that a file imports, at its top or inside functions, with their lines."""
    found = []
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Import):
            found += [(alias.name, node.lineno) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: relative import"
            found += [(f"{node.module}.{alias.name}", node.lineno) for alias in node.names]
    return found


def test_every_folder_is_a_room():
    folders = {path.parent.relative_to(PACKAGE).parts[0] for path in PACKAGE.rglob("*.py") if path.parent != PACKAGE}
    assert folders <= {*ORDER, *APART, "commands"}  # commands are mains


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_go_one_way(path):
    here = room(path)
    for name, line in imports(path):
        assert name.split(".")[0] != "tools", f"{path}:{line}: nothing imports from tools"
        if name.split(".")[0] == "official_bert" and name.count("."):
            assert not (why := wrong_import(here, family(path), name)), f"{path}:{line}: {why}"


def test_no_module_imports_itself_through_others():
    paths = {".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path for path in PACKAGE.rglob("*.py")}
    graph = {}
    for name, path in paths.items():
        there = {other if other in paths else other.rpartition(".")[0] for other, _ in imports(path)}
        graph[name] = (there & paths.keys()) - {name, "official_bert"}  # the package's own file imports nothing before it is asked
    graphlib.TopologicalSorter(graph).prepare()  # raises CycleError, with the circle
    with pytest.raises(graphlib.CycleError):
        graphlib.TopologicalSorter(graph | {"official_bert.files": {"official_bert.training.loop"}}).prepare()


def family(path: pathlib.Path) -> str:
    """The folder of tasks/ in which a file lies, "" for the others."""
    parts = path.relative_to(ROOT).parts
    return parts[2] if parts[:2] == ("official_bert", "tasks") and len(parts) == 4 else ""


def wrong_import(here: str, own_family: str, name: str) -> str:
    """What is wrong with importing `name` in a room; "" if nothing is."""
    there = room_of_name(name)
    if here in APART:
        return "" if there in APART[here] else f"{here} stands apart and imports {name}"
    if there in APART:
        return "" if here == "main" else f"{here} imports {name}, which stands apart"
    if ORDER.index(there) > ORDER.index(here):
        return f"{here} imports {name}"
    parts = name.split(".")
    if own_family and there == "tasks" and (len(parts) < 3 or parts[2] != own_family):
        return f"the family {own_family} imports another one's {name}"
    return ""


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
    # command_line.py sets a default for a command, and reads nothing.
    if path not in (PACKAGE / "training" / "running" / "cluster.py", PACKAGE / "command_line.py"):
        for node in ast.walk(tree(path)):
            named = isinstance(node, ast.Attribute) and node.attr in ("environ", "getenv")
            assert not named, f"{path}:{node.lineno}: reads the environment"


@pytest.mark.parametrize("path", SOURCES + sorted([*ROOT.glob("benchmarks/*.py"), *ROOT.glob("tests/**/*.py")]),
                         ids=lambda path: str(path.relative_to(ROOT)))
def test_no_file_is_longer_than_400_lines(path):
    assert len(path.read_text(encoding="utf-8").splitlines()) <= 400


def test_the_rules_catch_what_they_forbid(tmp_path):
    wrong = tmp_path / "wrong.py"
    wrong.write_text("from official_bert.training import loop\nimport tensorflow as tf\n")
    assert imports(wrong) == [("official_bert.training.loop", 1), ("tensorflow", 2)]
    assert room(PACKAGE / "text" / "vocab.py") == "text" and room(PACKAGE / "commands" / "run_export.py") == "main"
    assert wrong_import("text", "", "official_bert.training.loop") and not wrong_import("training", "", "official_bert.text.vocab")
    assert wrong_import("server", "", "official_bert.text.vocab") and wrong_import("tasks", "", "official_bert.server.client")
    assert not wrong_import("server", "", "official_bert.config.x") and not wrong_import("main", "", "official_bert.server.client")
    assert wrong_import("tasks", "squad", "official_bert.tasks.texts.base")
    assert not wrong_import("tasks", "squad", "official_bert.tasks.squad.reading")


def test_no_folder_has_more_than_18_modules():
    for folder in {path.parent for path in PACKAGE.rglob("*.py")}:
        assert len([path for path in folder.glob("*.py") if path.name != "__init__.py"]) <= 18, folder


def functions(path: pathlib.Path) -> list[ast.FunctionDef]:
    """Returns the functions and methods of a file, nested ones too."""
    return [node for node in ast.walk(tree(path)) if isinstance(node, ast.FunctionDef)]


def reads_flags(node: ast.AST) -> bool:
    """Whether code reads a command's `FLAGS`."""
    return any(isinstance(part, ast.Name) and part.id == "FLAGS" for part in ast.walk(node))


def test_flags_are_read_in_main_alone():
    reading = [f"{path}:{node.lineno}: {node.name}" for path in SOURCES for node in functions(path)
               if node.name != "main" and reads_flags(node)]
    lambdas = [f"{path}:{node.lineno}" for path in SOURCES for node in ast.walk(tree(path))
               if isinstance(node, ast.Lambda) and reads_flags(node)]
    assert not reading + lambdas


def test_few_functions_take_the_path_of_a_run():
    taking = [f"{path}:{node.lineno}: {node.name}" for path in SOURCES for node in functions(path)
              if "output_dir" in {argument.arg for argument in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)}]
    assert len(taking) <= 25, taking  # the others take a RunFolder


def test_the_names_of_a_runs_files_are_written_once():
    names = {value for name, value in vars(run_folder).items() if name.endswith("_FILE") and value not in ("checkpoint", ".lock")}
    homes = (PACKAGE / "models" / "run_folder.py", PACKAGE / "text" / "subwords" / "tokenizer_files.py")  # the vocabulary's
    again = [f"{path}:{node.lineno}: {node.value}" for path in SOURCES if path not in homes
             for node in ast.walk(tree(path)) if isinstance(node, ast.Constant) and node.value in names]
    assert "config.yaml" in names and not again


def test_tools_and_configurations_are_part_of_the_package():
    tools, configs = (importlib.import_module(f"official_bert.{name}") for name in ("tools", "configs"))
    for module, own in ((tools, "tools/create_pretraining_data.py"), (configs, "configs/model/base.yaml")):
        installed = pathlib.Path(module.__file__).parent.parent / own  # one copy: that of the checkout, which names it so
        assert installed.is_file()
    assert importlib.util.find_spec("official_bert.tools.create_pretraining_data") is not None


def test_no_two_test_files_have_one_name():
    names = [path.name for path in (ROOT / "tests").rglob("test_*.py")]
    assert sorted(names) == sorted(set(names))  # pytest imports them by name
