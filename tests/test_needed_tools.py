"""A test whose tool is missing is skipped with a command that installs it."""

import pathlib
import re
import tomllib

import needed_tools
import pytest

ROOT = pathlib.Path(__file__).parent.parent
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


@pytest.mark.parametrize("tools", needed_tools.COMMANDS, ids=lambda tools: pathlib.Path(tools[0]).name)
def test_a_missing_tool_is_named_with_its_command(tools, monkeypatch):
    monkeypatch.setattr(needed_tools, "is_installed", lambda tool: tool != tools[-1])
    command = r"(apt-get install|pip install|make) \S+"
    with pytest.raises(pytest.skip.Exception, match=rf"^{re.escape(tools[-1])} is not installed: {command}"):
        needed_tools.need(*tools)


def test_the_commands_are_those_of_this_repository():
    makefiles = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "Makefile", *ROOT.glob("make/*.mk")))
    for command in needed_tools.COMMANDS.values():
        program, *_, last = command.split()
        if program == "make":
            assert re.search(rf"^{last}:", makefiles, re.MULTILINE), command
        elif program == "pip":
            extra = re.fullmatch(r"'\.\[(\w+)\]'", last)
            table = PYPROJECT["project"]["optional-dependencies"] if extra else PYPROJECT["dependency-groups"]
            assert (extra[1] if extra else last) in table, command


def test_programs_modules_and_paths_are_found(tmp_path):
    assert needed_tools.is_installed("sh") and needed_tools.is_installed("pytest")
    assert not needed_tools.is_installed(str(tmp_path / "pytest")) and not needed_tools.is_installed("no_such_tool")
