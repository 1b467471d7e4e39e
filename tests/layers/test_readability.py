"""The layers stay readable: short calls, few arguments, fields that `help` lists, and no key of a relative where the
paper stands.
"""

import ast
import pathlib

import pytest

from official_bert.interface import keras_objects  # noqa: F401  (imports every layer)
from official_bert.layers.configured import Configured
from official_bert.model_config import OF_RELATIVES

PACKAGE = pathlib.Path(__file__).parent.parent.parent / "official_bert"
PAPER = sorted((PACKAGE / "layers").glob("*.py"))


def methods(path, name):
    """Returns (class, method) for each method of that name in a file."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return [
        (node.name, part)
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
        for part in node.body
        if isinstance(part, ast.FunctionDef) and part.name == name
    ]


@pytest.mark.parametrize(
    ("file", "owner", "most"),
    [
        ("models/encoder.py", "BertEncoder", 20),
        ("layers/attention.py", "SelfAttention", 10),
        ("layers/transformer.py", "TransformerLayer", 10),
    ],
)
def test_the_calls_of_the_paper_are_short(file, owner, most):
    [call] = [method for name, method in methods(PACKAGE / file, "call") if name == owner]
    assert call.end_lineno - call.lineno + 1 <= most


def test_no_constructor_has_more_than_six_arguments():
    files = [
        *(PACKAGE / "layers").rglob("*.py"),
        PACKAGE / "models/encoder.py",
        PACKAGE / "models/stack.py",
        PACKAGE / "models/reader.py",
    ]
    long = [
        f"{path.name}: {owner}"
        for path in files
        for owner, method in methods(path, "__init__")
        if len(method.args.args) + len(method.args.kwonlyargs) - 1 > 6
    ]
    assert not long


def test_no_call_of_the_paper_reads_a_key_of_a_relative():
    read = [
        f"{path.name}: {owner}: {key}"
        for path in PAPER
        for owner, method in methods(path, "call")
        for key in OF_RELATIVES
        if f"'{key}'" in ast.dump(method) or f"attr='{key}'" in ast.dump(method)
    ]
    assert not read


def every_subclass(cls):
    return {sub for direct in cls.__subclasses__() for sub in (direct, *every_subclass(direct))}


def test_help_lists_the_fields_of_a_layer():
    layers = every_subclass(Configured)
    assert len(layers) > 8
    for layer in layers:
        text = " ".join(cls.__doc__ for cls in layer.__mro__ if issubclass(cls, Configured))
        missing = [field for field in layer.FIELDS if f"`{field}`" not in text]
        assert not missing, f"{layer.__name__}: {missing}"
