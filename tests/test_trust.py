"""No file that someone else could have written is ever executed: the calls that would do so are banned, in all of the
repository.
"""

import ast
import pathlib
import re
import unicodedata

import pytest

ROOT = pathlib.Path(__file__).parent.parent
FOLDERS = ("official_bert", "tools", "benchmarks", "configs", "deploy", "docs", "tests")
SOURCES = sorted([*(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py")), *ROOT.glob("*.py")])
# Modules whose files are programs when they are read.
BANNED_MODULES = {
    "pickle",
    "_pickle",
    "cPickle",
    "cloudpickle",
    "dill",
    "joblib",
    "marshal",
    "shelve",
    "jsonpickle",
    "runpy",
    "imp",
}
BANNED_CALLS = {
    "eval",
    "exec",
    "compile",
    "__import__",
    "torch.load",
    "yaml.load",
    "yaml.load_all",
    "yaml.unsafe_load",
    "yaml.full_load",
    "yaml.Loader",
    "yaml.UnsafeLoader",
    "yaml.FullLoader",
    "os.system",
    "os.popen",
    "importlib.import_module",
}
BANNED_METHODS = {"read_pickle", "unsafe_load", "unsafe_load_all", "exec_module", "enable_unsafe_deserialization"}
BANNED_KEYWORDS = {
    ("allow_pickle", True),
    ("safe_mode", False),
    ("trust_remote_code", True),
    ("weights_only", False),
    ("shell", True),
}

IMPORTS = {"importlib.import_module", "exec_module", "runpy"}  # in tests, of modules of this repository alone

# Every use that stands, with its reason.
ALLOWED = {
    ("official_bert/__init__.py", "importlib.import_module"): "modules of this package, from a table of that file",
    ("official_bert/__init__.py", "exec_module"): "that of keras, which somebody imports, after which our layers are "
    "registered",
    ("official_bert/__main__.py", "runpy"): "the commands of this package",
    ("official_bert/interface/finetuning.py", "eval"): "an argument of that name: data to evaluate on",
    (
        "official_bert/dotted_names.py",
        "importlib.import_module",
    ): "parts of this package, named in its sources (test_dotted_names.py), and a module of the user's own for --task, "
    "which is a program",
    (
        "benchmarks/step_contenders.py",
        "importlib.import_module",
    ): "asks whether the packages of the peers are installed",
    ("benchmarks/conformance/answer.py", "importlib.import_module"): "an adapter in its own folder",
    ("benchmarks/conformance/expected.py", "exec_module"): "docs/bert_in_one_file.py",
    ("benchmarks/conformance/judge.py", "importlib.import_module"): "an adapter in its own folder",
    ("docs/write_promises.py", "runpy"): "the commands of this package",
    ("tests/models/interchange/test_hugging_face.py", "pickle"): "writes hostile files, and reads none",
    ("tests/models/interchange/test_older_checkpoints.py", "pickle"): "writes files, and reads none",
    ("tests/test_docs.py", "exec"): "the examples in this repository's pages",
    ("tests/text/test_compiling.py", "compile"): "a function that the test itself writes",
    ("tests/text/test_compiling.py", "exec"): "a function that the test itself writes",
    ("tests/text/test_fast_tokenization.py", "pickle"): "an object of the same process, in the form in which worker "
    "processes get it",
    **{
        (f"official_bert/{name}.py", "runpy"): "runs the command of that name in this package"
        for name in (
            "extract_features",
            "run_classifier",
            "run_export",
            "run_finetuning",
            "run_predict",
            "run_pretraining",
            "run_squad",
            "serve",
        )
    },
}


def name_of(node: ast.AST) -> str:
    """The dotted name of an expression; "" for one that has none."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        return f"{name_of(node.value) or '?'}.{node.attr}"
    return ""


NAMES = {*BANNED_MODULES, *BANNED_CALLS, *BANNED_METHODS, *(keyword for keyword, _ in BANNED_KEYWORDS)}


def holds_a_banned_name(source: str) -> bool:
    """Whether all words of a banned name occur in a source; without them, no use of it can. Most files are parsed in
    vain otherwise. Python reads identifiers in the form NFKC.
    """
    words = set(re.findall(r"\w+", unicodedata.normalize("NFKC", source)))
    return any(words.issuperset(name.split(".")) for name in NAMES)


def executing_calls(source: str) -> list[tuple[str, int]]:
    """What in a source may execute the content of a file, under any name that it was imported by, with its line."""
    tree, aliases, uses = ast.parse(source), {}, []
    for node in ast.walk(tree):
        imported = node.names if isinstance(node, (ast.Import, ast.ImportFrom)) else ()
        for alias in imported:
            whole = alias.name if isinstance(node, ast.Import) else f"{node.module}.{alias.name}"
            is_top = isinstance(node, ast.Import) and not alias.asname
            aliases[alias.asname or alias.name.split(".")[0]] = whole.split(".")[0] if is_top else whole
            if whole.split(".")[0] in BANNED_MODULES:
                uses.append((whole.split(".")[0], node.lineno))
    for node in ast.walk(tree):
        if isinstance(node, (ast.Name, ast.Attribute)):
            first, dot, rest = name_of(node).partition(".")
            name = f"{aliases.get(first, first)}{dot}{rest}"
            if name in BANNED_CALLS and isinstance(node.ctx, ast.Load):
                uses.append((name, node.lineno))
            elif (last := name.rpartition(".")[2]) in BANNED_METHODS:
                uses.append((last, node.lineno))
        for keyword in node.keywords if isinstance(node, ast.Call) else ():
            if isinstance(keyword.value, ast.Constant) and (keyword.arg, keyword.value.value) in BANNED_KEYWORDS:
                uses.append((f"{keyword.arg}={keyword.value.value}", node.lineno))
    return uses


def test_no_file_is_executed_but_for_the_exceptions():
    used = {
        (path.relative_to(ROOT).as_posix(), use): line
        for path in SOURCES
        if holds_a_banned_name(text := path.read_text(encoding="utf-8"))
        for use, line in executing_calls(text)
        if not (use in IMPORTS and path.is_relative_to(ROOT / "tests"))
    }
    for (path, use), line in used.items():
        assert (path, use) in ALLOWED, f"{path}:{line}: {use} may execute what someone else wrote"
    assert set(ALLOWED) <= set(used), "exceptions that nothing needs"


@pytest.mark.parametrize(
    "source, use",
    [
        ("import pickle as p\np.loads(b'')", "pickle"),
        ("from pickle import Unpickler", "pickle"),
        ("import numpy as n\nn.load(f, allow_pickle=True)", "allow_pickle=True"),
        ("import torch\ntorch.load('a')", "torch.load"),
        ("from torch import load as read\nread('a')", "torch.load"),
        ("import yaml as y\ny.load(text, y.Loader)", "yaml.load"),
        ("from yaml import unsafe_load", "unsafe_load"),
        ("eval(text)", "eval"),
        ("frame = pandas.read_pickle('a')", "read_pickle"),
        ("import marshal", "marshal"),
        ("import shelve", "shelve"),
        ("run = exec", "exec"),
        ("import subprocess\nsubprocess.run(text, shell=True)", "shell=True"),
    ],
)
def test_a_banned_call_is_seen_under_any_name(source, use):
    if source.endswith("unsafe_load"):
        source += "\nunsafe_load(text)"
    assert holds_a_banned_name(source)
    assert use in {name.rpartition(".")[2] if use == "unsafe_load" else name for name, _ in executing_calls(source)}
