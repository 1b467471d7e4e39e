"""What CI runs: all steps within its time, one shard of the slow tests, a table at the end; the same on GitHub."""

import json
import os
import pathlib
import re
import subprocess
import time
import tomllib

import pytest
import yaml

ROOT = pathlib.Path(__file__).parent.parent
MAKE = """#!/bin/sh
echo "$@" >>"$MADE"
case "$1" in
  $FAILING) echo a failure; exit 2 ;;
  $HANGING) sleep 60 ;;
esac
"""


def commit(folder: pathlib.Path, count: int) -> None:
    """Makes a repository with .ci/run and so many commits."""

    def git(*arguments: str) -> None:
        author = ("-c", "user.name=T", "-c", "user.email=t@example.org")
        subprocess.run(["git", "-C", folder, *author, *arguments], check=True)

    (folder / ".ci").mkdir(parents=True)
    (folder / ".ci/run").write_bytes((ROOT / ".ci/run").read_bytes())
    (folder / ".ci/run").chmod(0o755)
    git("init", "--quiet")
    git("add", ".ci")
    for number in range(count):
        git("commit", "--quiet", "--allow-empty", "--message", str(number))


@pytest.fixture
def run_ci(tmp_path):
    """Returns a function that runs CI in a folder, with a `make` that only notes what it should make."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/make").write_text(MAKE)
    (tmp_path / "bin/make").chmod(0o755)

    def run(folder: pathlib.Path, failing: str = "none", hanging: str = "none", seconds: int = 60):
        (tmp_path / "made").unlink(missing_ok=True)
        environment = os.environ | {
            "PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}",
            "MADE": str(tmp_path / "made"),
            "CI_SHARDS": "7",
            "FAILING": failing,
            "HANGING": hanging,
            "CI_SECONDS": str(seconds),
        }
        done = subprocess.run(
            ["bash", folder / ".ci/run"], env=environment, text=True, capture_output=True, check=False, timeout=60
        )
        return done.returncode, (tmp_path / "made").read_text().splitlines(), done.stdout.splitlines()

    return run


@pytest.mark.parametrize(("commits", "shard"), [(1, "2/7"), (6, "7/7"), (7, "1/7")])
def test_all_steps_run_and_the_last_lines_tell_them(tmp_path, run_ci, commits, shard):
    commit(tmp_path / "clone", commits)
    status, made, lines = run_ci(tmp_path / "clone")
    assert status == 0
    assert made == ["install", "test", "lint", "docs", f"test-slow SHARD={shard} ARGS=-x -m 'slow and not speed'"]
    table = [line.split() for line in lines[-6:]]
    assert [" ".join(words[:-2]) for words in table] == [
        "make install",
        "make test",
        "make lint",
        "make docs",
        f"slow shard {shard}",
        "all",
    ]
    assert all(words[-2] == "passed" and words[-1].startswith("0:0") for words in table)


def test_a_shallow_clone_takes_the_shard_of_its_hash(tmp_path, run_ci):
    commit(tmp_path / "clone", 3)
    shallow = tmp_path / "shallow"
    subprocess.run(["git", "clone", "--quiet", "--depth=1", f"file://{tmp_path}/clone", shallow], check=True)
    head = subprocess.run(["git", "-C", shallow, "rev-parse", "HEAD"], text=True, capture_output=True, check=True)
    assert run_ci(shallow)[1][-1].split()[1] == f"SHARD={int(head.stdout[:8], 16) % 7 + 1}/7"


@pytest.mark.parametrize("failing", ["install", "test", "docs", "test-slow"])
def test_a_failure_is_told_and_the_others_run(tmp_path, run_ci, failing):
    commit(tmp_path / "clone", 1)
    status, made, lines = run_ci(tmp_path / "clone", failing)
    assert status == 1 and len(made) == 5
    told = "slow shard 2/7" if failing == "test-slow" else f"make {failing}"
    assert [line.split("  ")[0] for line in lines[-6:] if " failed" in line] == [told, "all"]


@pytest.mark.slow
def test_a_shard_that_takes_too_long_is_stopped_and_is_no_failure(tmp_path, run_ci):
    commit(tmp_path / "clone", 1)
    begin = time.monotonic()
    status, made, lines = run_ci(tmp_path / "clone", hanging="test-slow", seconds=2)
    assert (status, len(made)) == (0, 5) and time.monotonic() - begin < 20
    assert " stopped: CI takes at most " in lines[-2] and "passed" in lines[-1]


def test_tests_that_take_too_long_are_a_failure(tmp_path, run_ci):
    commit(tmp_path / "clone", 1)
    status, made, lines = run_ci(tmp_path / "clone", hanging="test", seconds=1)
    assert status == 1 and [line.split()[0] for line in made] == ["install", "test"]
    assert sum(" stopped: " in line for line in lines[-6:]) == 4 and "failed" in lines[-1]


def test_the_workflow_runs_the_same_on_every_python_of_the_package():
    workflow = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text(encoding="utf-8"))
    (job,) = workflow["jobs"].values()
    assert [step["run"] for step in job["steps"] if "run" in step and "if" not in step] == [".ci/run"]
    matrix = job["strategy"]["matrix"]
    assert len(matrix["system"]) == 3
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["requires-python"] == ">=3.11,<3.14" and matrix["python"] == ["3.11", "3.12", "3.13"]


def check_shard(text: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        ["make", "--silent", "known-shard", f"SHARD={text}"], cwd=ROOT, text=True, capture_output=True, check=False
    )


@pytest.mark.parametrize("text", ["1/1", "3/16", "16/16", ""])
def test_a_shard_of_a_number_of_shards_is_known(text):
    done = check_shard(text)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize(
    "text", ["0/3", "4/3", "3", "/3", "3/", "a/b", "1/2/3", "-1/3", "1 2/3", "'", "9999999999999999999999/3"]
)
def test_another_shard_is_told_in_one_line(text):
    done = check_shard(text)
    lines = done.stderr.splitlines()
    assert lines[0] == f"error: SHARD: expected K/N with K from 1 to N, such as 3/20, got {text}"
    assert done.returncode == 2 and len(lines) == 2 and re.match(r"make(\[\d+\])?: \*\*\* ", lines[1])


def test_recorded_seconds_are_those_of_files_that_are_there():
    durations = json.loads((ROOT / "tests/slow_durations.json").read_text(encoding="utf-8"))
    assert all((ROOT / name.partition("::")[0]).exists() for name in durations)
    assert all(seconds >= 0 for seconds in durations.values())
