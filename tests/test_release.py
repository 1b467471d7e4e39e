"""The release: one table of optional dependencies, a lock file without hosts, wheels that are one file each time."""

from official_bert.command_line import EXTRAS, missing_extra

import json
import os
import re
import shutil
import subprocess
import tomllib
import zipfile

import pytest
import yaml
from commands import ROOT
from needed_tools import UV, need
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
PROJECT = PYPROJECT["project"]
OPTIONAL = PROJECT["optional-dependencies"]
LOCKED = re.compile(r"([a-z0-9.-]+)==(\S+)( ; [^:]+)? \\")


def locked():
    return [line for line in (ROOT / "requirements.lock").read_text(encoding="utf-8").splitlines() if line]


def test_optional_dependencies_stand_in_one_table():
    assert [path.name for path in ROOT.glob("requirements*.txt")] == ["requirements.txt"]
    assert set(EXTRAS) <= set(OPTIONAL)
    assert re.search(r"^EXTRAS := (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)[1].split(",") == list(OPTIONAL)
    for path in (*ROOT.glob("official_bert/**/*.py"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("*.md")):
        assert not re.search(r"requirements-\w+\.txt", path.read_text(encoding="utf-8")), path


def test_messages_name_the_extra():
    for extra, modules in EXTRAS.items():
        for module in modules:
            assert f"'official-bert[{extra}]'" in missing_extra(module) and f"'.[{extra}]'" in missing_extra(module)


def test_the_lock_file_has_versions_and_hashes_alone():
    for line in locked():
        assert LOCKED.fullmatch(line) or re.fullmatch(r"    --hash=sha256:[0-9a-f]{64}( \\)?", line), line


def test_the_lock_file_is_within_the_ranges_of_all_that_is_required():
    versions = {}
    for match in filter(None, map(LOCKED.fullmatch, locked())):
        versions.setdefault(match[1], []).append(match[2])
    for line in [*PROJECT["dependencies"], *(line for lines in OPTIONAL.values() for line in lines)]:
        wanted = Requirement(line)
        found = versions.get(canonicalize_name(wanted.name), [])
        assert found and all(wanted.specifier.contains(version) for version in found), line


def test_a_release_is_verified_before_it_is_published():
    workflow = yaml.safe_load((ROOT / ".github/workflows/release.yml").read_text(encoding="utf-8"))
    jobs = workflow["jobs"]
    assert workflow[True] == {"push": {"tags": ["v*"]}}  # `on` is true in YAML 1.1
    assert (jobs["verify"]["needs"], jobs["publish"]["needs"]) == ("build", "verify")
    assert any("make wheel-twice" in step.get("run", "") for step in jobs["build"]["steps"])
    assert any("official-bert verify" in step.get("run", "") for step in jobs["verify"]["steps"])
    assert jobs["publish"]["permissions"] == {"id-token": "write"} and workflow["permissions"] == {"contents": "read"}
    assert jobs["verify"]["strategy"]["matrix"]["python"] == ["3.11", "3.12", "3.13"]


@pytest.mark.slow
def test_two_builds_are_one_file_with_a_list_of_what_it_requires(tmp_path):
    need(UV)
    wheels = []
    for number, place in enumerate(("first", "second/below")):
        for part in ("official_bert", "tools", "configs"):
            ignored = shutil.ignore_patterns("__pycache__", "*.egg-info", "*.nbi", "*.nbc")
            shutil.copytree(ROOT / part, tmp_path / place / part, ignore=ignored)
        for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
            shutil.copy(ROOT / name, tmp_path / place)
        for path in (tmp_path / place).rglob("*"):
            os.utime(path, (10**9 + number, 10**9 + number))
        out = tmp_path / "dist" / place
        subprocess.run([UV, "build", "--quiet", "--wheel", "--out-dir", out, tmp_path / place], check=True, timeout=300)
        wheels += out.glob("*.whl")
    first, second = wheels
    assert first.read_bytes() == second.read_bytes()
    with zipfile.ZipFile(first) as wheel:
        (name,) = [name for name in wheel.namelist() if "/sboms/" in name]
        bill = json.loads(wheel.read(name))
        assert any(
            entry.startswith(f"{name},sha256=") for entry in wheel.read(name.split("/")[0] + "/RECORD").decode().split()
        )
    assert bill["metadata"]["component"]["version"] == PROJECT["version"]
    required = {Requirement(line).name for line in PROJECT["dependencies"]}
    scopes = {component["name"]: component["scope"] for component in bill["components"]}
    assert {name for name, scope in scopes.items() if scope == "required"} == {
        canonicalize_name(name) for name in required
    }
    assert all(canonicalize_name(Requirement(line).name) in scopes for lines in OPTIONAL.values() for line in lines)
