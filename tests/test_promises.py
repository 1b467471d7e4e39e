"""docs/promises.md names what the code has: names, commands, flags, files of a run, signatures."""

import importlib.util
import pathlib
import re

import pytest
from absl import flags
from commands import forget_own_flags

import official_bert
from official_bert import run_folder
from official_bert.reports import page as report

ROOT = pathlib.Path(__file__).parent.parent
PAGE = (ROOT / "docs/promises.md").read_text(encoding="utf-8")


@pytest.fixture
def no_flags():
    """Takes away the flags of commands that other tests have loaded."""
    others = forget_own_flags()
    yield
    for name, flag in others.items():
        flags.FLAGS[name] = flag


def test_the_tables_have_all_flags_and_signatures(no_flags):
    spec = importlib.util.spec_from_file_location("write_promises", ROOT / "docs" / "write_promises.py")
    write_promises = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(write_promises)
    page = write_promises.page()
    assert page == PAGE, "make options writes them anew"
    assert "checkpoint" in write_promises.flags_of("official_bert.commands.run_export")


def test_the_python_names_are_those_of_the_package():
    row = re.search(r"^\| Python names \|(.*?)\|", PAGE, re.MULTILINE)[1]
    assert re.findall(r"`(\w+)`", row) == official_bert.__all__
    reference = (ROOT / "docs/reference/interface.md").read_text(encoding="utf-8")
    for name in official_bert.__all__:
        assert re.search(rf"auto\w+:: official_bert\.[\w.]+\.{name}$", reference, re.MULTILINE), name


def test_every_file_of_a_run_is_promised_or_called_a_note():
    section = PAGE.partition("## Files of a run")[2].partition("## Version")[0]
    table = [line.split(" | ")[0] for line in section.splitlines() if line.startswith("| `")]
    sentences = re.search(r"The vocabulary .*are notes", section, re.DOTALL)[0]
    names = re.findall(r"`([\w.*-]+)/?`", "\n".join([*table, sentences]))
    constants = {
        value
        for module in (run_folder, report)
        for name, value in vars(module).items()
        if name.endswith(("_FILE", "_FOLDER"))
    }
    assert {name for name in names if not name.startswith(("ckpt-N.", "vocab.txt"))} == constants
    assert names.count("ckpt-N.index") == 1 and run_folder.CHECKPOINT == "ckpt"
