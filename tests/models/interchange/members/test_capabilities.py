"""docs/family.md: every mark of its tables stands for a case of a test that is there."""

import functools
import importlib.util
import inspect
import pathlib
import re

import pytest

ROOT = pathlib.Path(__file__).parents[4]
PAGE = (ROOT / "docs" / "family.md").read_text(encoding="utf-8")


def tables():
    """Returns the tables of marks, each (name of the first column, rows), with the tests of their columns; a row is
    {column: cell}.
    """
    found = []
    for block in re.findall(
        r"(?:^\|.*\n)+", PAGE[PAGE.index("## What is tested") : PAGE.index("Google's checkpoints")], re.MULTILINE
    ):
        header, _, *lines = (
            [cell.strip() for cell in line.strip().strip("|").split("|")] for line in block.splitlines()
        )
        found.append([dict(zip(header, line, strict=True)) for line in lines])
    assert len(found) == 4
    return [(found[place], {row["column"]: row["test"].strip("`") for row in found[place + 1]}) for place in (0, 2)]


@functools.cache
def cases(test):
    """Returns the values of all parameters of a test, those of its module's fixtures included."""
    path, _, name = test.partition("::")
    spec = importlib.util.spec_from_file_location(pathlib.Path(path).stem, ROOT / path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    function = getattr(module, name)
    values = [
        value for mark in getattr(function, "pytestmark", ()) if mark.name == "parametrize" for value in mark.args[1]
    ]
    fixtures = (getattr(module, argument, None) for argument in inspect.signature(function).parameters)
    values += [
        value
        for fixture in fixtures
        for value in getattr(getattr(fixture, "_fixture_function_marker", None), "params", None) or ()
    ]
    plain = (value.values if isinstance(value, type(pytest.param())) else value for value in values)
    return {str(part) for value in plain for part in (value if isinstance(value, tuple | list) else [value])}


def test_every_mark_is_a_case_of_a_test():
    for rows, tests in tables():
        first, *_ = rows[0]
        for row in rows:
            keys = {row[name].strip("`") for name in ("model", "`model_type`", "kind") if row.get(name)}
            for column, test in tests.items():
                cell = row[column]
                if cell.startswith("as "):
                    named = cell[3:].removeprefix("the ").strip("`")
                    assert any(other[column] == "x" for other in rows if named in other[first]), (row[first], column)
                else:
                    assert cell in ("x", ""), (row, column)  # empty: the case is there, but has not been run
                    own = keys if column == "classes" else keys - {row.get("`model_type`", "").strip("`")} or keys
                    assert any(case == key or case.startswith(f"{key}/") for case in cases(test) for key in own), (
                        row[first],
                        column,
                    )


def test_every_model_and_tokenizer_has_a_row():
    import made_tokenizers

    (members, _), (tokenizers, _) = tables()
    models = {path.name for path in (ROOT / "tests/golden/family").iterdir() if path.is_dir()}
    assert {row["model"].strip("`") for row in members} - {""} == models
    assert {row["kind"].strip("`") for row in tokenizers} == set(made_tokenizers.KINDS)
