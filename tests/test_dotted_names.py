"""The names by which the package asks for its options: each exists, and they are few."""

import ast
import pathlib
import re

import pytest
from reach import DOTTED_NAME, imports, path_of, tree

from official_bert.dotted_names import by_name

ROOT = pathlib.Path(__file__).parent.parent
SOURCES = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
    for path in (ROOT / "official_bert").rglob("*.py")
}
# The text is looked at first: this is done whenever tests are collected.
ASKING = [
    module
    for module, path in SOURCES.items()
    if "dotted_names" in path.read_text(encoding="utf-8") and "official_bert.dotted_names" in imports(module)
]
NAMING = [module for module in SOURCES if module.startswith("official_bert.tasks.")]
MOST_NAMES = 60
# What is no literal there: a user's own task and its served models, a task's `serving`, packages and kinds of a table.
OF_OTHERS = {
    ("official_bert.tasks.loading", "name"),
    ("official_bert.tasks.pretraining.task", "kind"),
    ("official_bert.text.subwords.japanese", "name"),
    ("official_bert.serving.task_serving", "task.serving"),
}


def calls_in(module: ast.Module) -> list[ast.Call]:
    """Returns the places where a module asks by name: calls of `by_name`, or calls that are given it."""
    return [
        node
        for node in ast.walk(module)
        if isinstance(node, ast.Call) and "by_name" in [ast.unparse(part) for part in (node.func, *node.args)]
    ]


def literals(module: str) -> set[str]:
    """Returns the dotted names in a module's strings."""
    constants = (node.value for node in ast.walk(tree(module)) if isinstance(node, ast.Constant))
    return {text for text in constants if isinstance(text, str) and DOTTED_NAME.fullmatch(text)}


def defined_in(module: str) -> set[str]:
    """Returns the names that the top level of a module defines."""
    names = set()
    for node in tree(module).body:
        targets = (
            node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
        )
        names |= {part.id for target in targets for part in ast.walk(target) if isinstance(part, ast.Name)}
        names |= {node.name} if isinstance(node, (ast.ClassDef, ast.FunctionDef)) else set()
    return names


def wrong_name(name: str) -> str:
    """Says why a dotted name means nothing; "" if it means something."""
    module, _, attribute = name.partition(":")
    if path_of(module) is None:
        return f"{name}: there is no module {module}"
    return f"{name}: {module} defines no {attribute}" if attribute and attribute not in defined_in(module) else ""


def test_each_name_of_an_option_exists_and_they_are_few():
    names = {name for module in {*ASKING, *NAMING} for name in literals(module)}
    assert not list(filter(None, map(wrong_name, sorted(names))))
    assert len(names) <= MOST_NAMES, sorted(names)


def untyped(module: ast.Module) -> list[int]:
    """Returns the lines where what comes back by name, or an attribute of it, has no type: it is assigned to a name
    that the function does not annotate, returned as Any, or used at once.
    """
    parents = {child: node for node in ast.walk(module) for child in ast.iter_child_nodes(node)}
    lines = []
    for call in calls_in(module):
        node = call
        while isinstance(parents[node], (ast.Attribute, ast.IfExp, ast.Await)):
            node = parents[node]
        used = function = parents[node]
        while not isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Module)):
            function = parents[function]
        annotated = {ast.unparse(part.target) for part in ast.walk(function) if isinstance(part, ast.AnnAssign)}
        has_type = isinstance(used, (ast.AnnAssign, ast.Expr))
        has_type |= isinstance(used, ast.Assign) and {*map(ast.unparse, used.targets)} <= annotated
        has_type |= isinstance(used, ast.Return) and ast.unparse(function.returns or ast.Name("Any")) != "Any"
        if not has_type:
            lines.append(call.lineno)
    return lines


def test_what_comes_back_by_name_has_a_type():
    assert not [f"{SOURCES[module]}:{line}" for module in ASKING for line in untyped(tree(module))]
    for line, is_typed in {
        "return by_name('a:b')": True,
        "return by_name('a:b')(1)": False,
        "by_name('a')": True,
        "x = by_name('a:b')": False,
        "x: X = by_name('a').b if y else None": True,
        "x: X; x = by_name('a').b": True,
        "y = await f(by_name, 'a')": False,
    }.items():
        assert (not untyped(ast.parse(f"async def f() -> X:\n    {line}"))) == is_typed, line
    assert untyped(ast.parse("def f() -> Any:\n    return by_name('a:b')"))


def test_names_are_whole_literals():
    given = {
        (module, ast.unparse(argument))
        for module in ASKING
        for call in calls_in(tree(module))
        for argument in call.args
        if not isinstance(argument, (ast.Constant, ast.Subscript))
        and not ast.unparse(argument).isupper()
        and ast.unparse(argument) != "by_name"
        and ast.unparse(call.func) == "by_name"
    }
    assert given == OF_OTHERS
    joined = [
        f"{path}:{node.lineno}"
        for module, path in SOURCES.items()
        if re.search(r"[\"']official_bert\.", path.read_text(encoding="utf-8"))
        for node in ast.walk(tree(module))
        if isinstance(node, ast.JoinedStr) and ast.unparse(node).lstrip("f'\"").startswith("official_bert.")
    ]
    assert not joined


def test_two_files_alone_import_by_name():
    ways = ("import_module", "__import__", "exec_module")
    importing = {
        module
        for module, path in SOURCES.items()
        if re.search("|".join([*ways, "__getattr__"]), path.read_text(encoding="utf-8"))
        for node in ast.walk(tree(module))
        if getattr(node, "attr", getattr(node, "id", "")) in ways
        or (isinstance(node, ast.FunctionDef) and node.name == "__getattr__" and node in tree(module).body)
    }
    assert importing == {"official_bert", "official_bert.dotted_names"}


def test_a_name_is_a_module_or_what_a_module_defines():
    assert by_name("official_bert.dotted_names:by_name") is by_name
    assert by_name("official_bert.dotted_names").by_name is by_name
    with pytest.raises(ModuleNotFoundError):  # the option says what is missing
        by_name("official_bert.no_such_module:Name")
    assert wrong_name("official_bert.no_such_module:Name") and wrong_name("official_bert.storage.files:no_such_name")
    assert not wrong_name("official_bert.storage.files:exists")
