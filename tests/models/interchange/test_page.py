"""docs/checkpoints.md lists the names of the tables."""

import importlib
import pathlib

import pytest

from official_bert.models.interchange.members.family import BERT

PAGE = pathlib.Path(__file__).parents[3] / "docs" / "checkpoints.md"
COLUMNS = {"tf1": 2, "hugging_face": 3, "keras_hub": 4, "tf_models": 5}


@pytest.mark.parametrize("name", COLUMNS)
def test_the_page_has_every_row_of_the_table(name):
    module = importlib.import_module(f"official_bert.models.interchange.projects.{name}")
    rows = (
        [*BERT.encoder, *(row for form in BERT.forms.values() for row in form.rows)]
        if name == "hugging_face"
        else module.TABLE.rows
    )
    lines = [
        line.split("|")
        for line in PAGE.read_text(encoding="utf-8").splitlines()
        if line.startswith("| `") and line.count("|") == 6
    ]
    shown = {row[1].strip(" `"): row[COLUMNS[name]].strip(" `") for row in lines}
    assert {ours: theirs for ours, theirs in shown.items() if theirs != "—"} == dict(rows)
