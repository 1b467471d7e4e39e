"""Rules checked in the sources: one direction of imports, no cycles, bounded files. A rule lists all offenders."""

import ast
import functools
import graphlib
import importlib
import importlib.util
import pathlib
import re

import pytest

from official_bert import run_folder

ROOT = pathlib.Path(__file__).parent.parent
PACKAGE = ROOT / "official_bert"
ORDER = [
    "dotted_names",
    "limits",
    "json_values",
    "storage",
    "long_work",
    "fields",
    "typed_values",
    "model_config",
    "training_config",
    "config",
    "command_names",
    "flags_of_2018",
    "command_line",
    "runtimes",
    "reports",
    "text",
    "run_folder",
    "data",
    "search",
    "layers",
    "models",
    "objectives",
    "training",
    "serving",
    "generation",
    "tasks",
    "runs",
    "interface",
    "main",
]
# imports nothing else, and only mains import it
APART = {"server": ("dotted_names", "config", "storage", "command_line", "runtimes", "server")}
# of tasks/: what families share
SHARED = ("task", "data", "answers", "calibration", "file_data", "ranking_data", "answering")
TENSORFLOW_PLACES = (
    "storage/remote_stores",
    "generation/",
    "text/graph",
    "data/record_files/records",
    "data/batches/sources",
    "data/pretraining/dynamic_masking",
    "data/pretraining/graph_reader",
    "data/pretraining/packing",
    "layers/speed/fused",
    "layers/speed/long_rows",
    "runtimes/model_weights",
    "runtimes/operations",
    "models/checkpoints",
    "models/interchange/",
    "objectives/",
    "training/",
    "serving/",
    "tasks/",
    "runs/",
    "interface/",
    "server/",
)
# Modules that ask whether a path lies on this machine, or in which store.
ASKING_WHERE = {
    "storage/files.py",
    "storage/remote_copies.py",
    "storage/remote_stores.py",
    "models/interchange/adapted_models/over_base.py",  # a stranger names the base
    "command_line.py",  # flags that only paths of this machine fit
    "models/interchange/prefixes.py",  # other paths may be names on a hub
    "run_folder.py",  # other stores know no locks
    "tools/generation/beam_generation.py",  # Beam knows stores of its own
}
# Modules where paths enter whose files are read by libraries on this machine alone.
RESOLVING = {
    "data/cache.py",
    "long_work/work_folder.py",
    "interface/predictor.py",
    "models/interchange/prefixes.py",
    "models/interchange/projects/keras_files.py",
    "run_folder.py",
    "server/listeners/gates.py",
    "server/models/servable.py",
    "serving/loading.py",
}
SOURCES = sorted([*PACKAGE.rglob("*.py"), *ROOT.glob("tools/**/*.py")])
ALL_CODE = SOURCES + sorted([*ROOT.glob("benchmarks/*.py"), *ROOT.glob("tests/**/*.py")])
MOST_LINES, MOST_MODULES = 500, 25  # of a file, of a folder: generous, so that the subject decides where code goes


@functools.cache
def tree(path: pathlib.Path) -> ast.Module:
    """Returns the syntax of a file."""
    return ast.parse(path.read_text(encoding="utf-8"))


@functools.cache
def nodes(path: pathlib.Path) -> list[ast.AST]:
    """Returns all nodes of the syntax of a file."""
    return list(ast.walk(tree(path)))


def room(path: pathlib.Path) -> str:
    """Returns the part of the package that a file belongs to."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return room_of_name(".".join(parts)) if parts[0] == "official_bert" else "main"


def room_of_name(name: str) -> str:
    """Returns the part of the package that a dotted name belongs to."""
    parts = name.split(".")
    known = (*ORDER, *APART)
    return parts[1] if len(parts) > 1 and parts[1] in known else "main"


@functools.cache
def imports(path: pathlib.Path) -> list[tuple[str, int]]:
    """Returns the dotted names that a file imports, at its top or inside functions, with their lines."""
    found = []
    for node in nodes(path):
        if isinstance(node, ast.Import):
            found += [(alias.name, node.lineno) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: relative import"
            found += [(f"{node.module}.{alias.name}", node.lineno) for alias in node.names]
    return found


def test_every_folder_is_a_room():
    folders = {path.parent.relative_to(PACKAGE).parts[0] for path in PACKAGE.rglob("*.py") if path.parent != PACKAGE}
    assert folders <= {*ORDER, *APART, "commands"}  # commands are mains


def test_imports_go_one_way():
    wrong = []
    for path in SOURCES:
        for name, line in imports(path):
            if name.split(".")[0] == "tools":
                wrong.append(f"{path}:{line}: expected official_bert.tools")
            elif is_of_tools(name) and path.is_relative_to(PACKAGE):
                wrong.append(f"{path}:{line}: only tools import from tools")
            elif name.startswith("official_bert.") and (why := wrong_import(room(path), family(path), name)):
                wrong.append(f"{path}:{line}: {why}")
    assert not wrong, "\n".join(wrong)


def test_training_knows_no_configuration_of_a_run():
    names = {name for path in (PACKAGE / "training").rglob("*.py") for name, _ in imports(path)}
    assert names & {"official_bert.training.recipe.Recipe"} and "official_bert.config.Config" not in names


def is_of_tools(name: str) -> bool:
    """Whether an imported name lies in `tools/`."""
    return f"{name}.".startswith("official_bert.tools.")


def test_no_module_imports_itself_through_others():
    paths = {
        ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
        for path in PACKAGE.rglob("*.py")
    }
    graph = {}
    for name, path in paths.items():
        there = {other if other in paths else other.rpartition(".")[0] for other, _ in imports(path)}
        # the package's own file imports nothing before it is asked
        graph[name] = (there & paths.keys()) - {name, "official_bert"}
    graphlib.TopologicalSorter(graph).prepare()  # raises CycleError, with the circle
    with pytest.raises(graphlib.CycleError):
        graphlib.TopologicalSorter(graph | {"official_bert.storage.files": {"official_bert.training.loop"}}).prepare()


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
    if own_family and there == "tasks" and (len(parts) < 3 or parts[2] not in (own_family, *SHARED)):
        return f"the family {own_family} imports another one's {name}"
    return ""


def test_few_modules_ask_where_a_path_lies():
    asks = {"files.is_remote", "stores.scheme_of", "stores.store_of", "stores.Store"}
    asking, resolving = set(), set()
    for path in SOURCES:
        names = {name.removeprefix("official_bert.storage.") for name, _ in imports(path)}
        names |= {
            f"{node.value.id}.{node.attr}"
            for node in nodes(path)
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)
        }
        where = str(path.relative_to(ROOT)).removeprefix("official_bert/")
        if names & asks:
            asking.add(where)
        if "stores.locate" in names:
            resolving.add(where)
    assert asking == ASKING_WHERE and resolving == RESOLVING


def test_tensorflow_stays_in_its_places():
    outside = [
        path
        for path in SOURCES
        if room(path) != "main" and not str(path.relative_to(PACKAGE)).startswith(TENSORFLOW_PLACES)
    ]
    wrong = [
        f"{path}:{line}: imports {name}"
        for path in outside
        for name, line in imports(path)
        if name.split(".")[0] in ("tensorflow", "tensorflow_text")
    ]
    assert not wrong, "\n".join(wrong)


def test_environment_is_read_in_one_place():
    # command_line.py sets a default for a command, and reads nothing.
    places = (PACKAGE / "training" / "machines" / "cluster.py", PACKAGE / "command_line.py")
    elsewhere = [path for path in SOURCES if path not in places and path.parent.name != "tools"]
    wrong = [
        f"{path}:{node.lineno}: reads the environment"
        for path in elsewhere
        for node in nodes(path)
        if isinstance(node, ast.Attribute) and node.attr in ("environ", "getenv")
    ]
    assert not wrong, "\n".join(wrong)


def test_files_and_folders_stay_below_a_generous_bound():
    lines = {path: len(path.read_text(encoding="utf-8").splitlines()) for path in ALL_CODE}
    modules = {
        folder: len([path for path in folder.glob("*.py") if path.name != "__init__.py"])
        for folder in {path.parent for path in PACKAGE.rglob("*.py")}
    }
    wrong = [f"{path}: {count} lines" for path, count in lines.items() if count > MOST_LINES]
    wrong += [f"{folder}: {count} modules" for folder, count in modules.items() if count > MOST_MODULES]
    assert not wrong, "\n".join(wrong)


def in_order(names: list[str]) -> list[str]:
    """Sorts names of the package's parts as imports go."""
    return sorted(names, key=ORDER.index)


def rooms_of_folders() -> set[str]:
    """Returns the parts of the package that are folders, but those that stand apart."""
    return {path.parent.name for path in PACKAGE.glob("*/__init__.py")} & set(ORDER)


def test_readme_draws_the_tree_in_the_order_of_imports():
    page = (ROOT / "README.md").read_text(encoding="utf-8")
    drawn = re.search(r"^official_bert/\n((?:[ +].*\n)+)", page, re.MULTILINE).group(1)
    names = [name for name in re.findall(r"^[ +] (\w+)(?:/|\.py)", drawn, re.MULTILINE) if name not in APART]
    names = ["main" if name == "commands" else name for name in names]
    assert names == in_order(names) and rooms_of_folders() <= {*names}
    assert server_imports(page) == set(APART["server"]) - {"server"}


def test_contributing_names_the_order_of_imports():
    page = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    order = re.search(r"\*\*One direction of imports\*\*: `(.*?)`", page, re.DOTALL).group(1)
    names = [name.strip() for name in order.replace("<-", ",").split(",")]
    assert names[-2:] == ["commands", "tools"]
    assert names[:-2] == in_order(names[:-2]) and rooms_of_folders() <= {*names}
    assert server_imports(page) == set(APART["server"]) - {"server"}
    assert {f"{MOST_LINES} lines", f"{MOST_MODULES} modules"} <= set(re.findall(r"\d+ \w+", " ".join(page.split())))


def server_imports(page: str) -> set[str]:
    """Returns what a page says that `server/` imports."""
    said = re.search(r"`server/`(?: imports)? only ((?:`\w+`(?:,| and)?\s*)+)", page).group(1)
    return set(re.findall(r"`(\w+)`", said))


def test_the_rules_catch_what_they_forbid(tmp_path):
    wrong = tmp_path / "wrong.py"
    wrong.write_text("from official_bert.training import loop\nimport tensorflow as tf\n")
    assert imports(wrong) == [("official_bert.training.loop", 1), ("tensorflow", 2)]
    assert room(PACKAGE / "text" / "vocab.py") == "text" and room(PACKAGE / "commands" / "run_export.py") == "main"
    assert wrong_import("text", "", "official_bert.training.loop") and not wrong_import(
        "training", "", "official_bert.text.vocab"
    )
    assert wrong_import("server", "", "official_bert.text.vocab")
    assert wrong_import("tasks", "", "official_bert.server.statuses")
    assert not wrong_import("server", "", "official_bert.config.x")
    assert not wrong_import("main", "", "official_bert.server.statuses")
    assert is_of_tools("official_bert.tools.client") and not is_of_tools("official_bert.tools_of_others")
    assert wrong_import("tasks", "squad", "official_bert.tasks.texts.base")
    assert not wrong_import("tasks", "squad", "official_bert.tasks.squad.reading")


@functools.cache
def functions(path: pathlib.Path) -> list[ast.FunctionDef]:
    """Returns the functions and methods of a file, nested ones too."""
    return [node for node in nodes(path) if isinstance(node, ast.FunctionDef)]


def reads_flags(node: ast.AST) -> bool:
    """Whether code reads a command's `FLAGS`."""
    return any(isinstance(part, ast.Name) and part.id == "FLAGS" for part in ast.walk(node))


def test_mains_of_commands_are_thin():
    mains = {
        path: sum(isinstance(part, ast.stmt) for part in ast.walk(node)) - 1
        for path in (*PACKAGE.glob("commands/*.py"), *ROOT.glob("tools/*.py"))
        for node in functions(path)
        if node.name == "main"
    }
    assert len(mains) > 25 and not {path: count for path, count in mains.items() if count > 25}


def test_flags_are_read_in_main_alone():
    sources = [path for path in SOURCES if reads_flags(tree(path))]
    reading = [
        f"{path}:{node.lineno}: {node.name}"
        for path in sources
        for node in functions(path)
        if node.name != "main" and reads_flags(node)
    ]
    lambdas = [
        f"{path}:{node.lineno}"
        for path in sources
        for node in nodes(path)
        if isinstance(node, ast.Lambda) and reads_flags(node)
    ]
    assert len(sources) > 25 and not reading + lambdas


def test_few_functions_take_the_path_of_a_run():
    taking = [
        f"{path}:{node.lineno}: {node.name}"
        for path in SOURCES
        for node in functions(path)
        if "output_dir"
        in {argument.arg for argument in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)}
    ]
    assert len(taking) <= 25, taking  # the others take a RunFolder


def test_the_names_of_a_runs_files_are_written_once():
    names = {
        value
        for name, value in vars(run_folder).items()
        if name.endswith("_FILE") and value not in ("checkpoint", ".lock")
    }
    # the vocabulary's
    homes = (PACKAGE / "run_folder.py", PACKAGE / "text" / "subwords" / "tokenizer_files.py")
    again = [
        f"{path}:{node.lineno}: {node.value}"
        for path in SOURCES
        if path not in homes
        for node in nodes(path)
        if isinstance(node, ast.Constant) and node.value in names
    ]
    assert "config.yaml" in names and not again


def test_tools_and_configurations_are_part_of_the_package():
    tools, configs = (importlib.import_module(f"official_bert.{name}") for name in ("tools", "configs"))
    for module, own in ((tools, "tools/create_pretraining_data.py"), (configs, "configs/model/base.yaml")):
        # one copy: that of the checkout, which names it so
        installed = pathlib.Path(module.__file__).parent.parent / own
        assert installed.is_file()
        assert installed.is_relative_to(ROOT)  # and not that of another checkout, which pip has installed
    assert importlib.util.find_spec("official_bert.tools.create_pretraining_data") is not None


def test_no_two_test_files_have_one_name():
    names = [path.name for path in (ROOT / "tests").rglob("test_*.py")]
    assert sorted(names) == sorted(set(names))  # pytest imports them by name
