"""The wheel: its requirements, its commands, and a journey in an environment that has nothing else."""

import ast
import importlib.metadata
import os
import re
import runpy
import subprocess
import sys
import tomllib
import types

import pytest
import setuptools
from commands import ROOT, run_here
from needed_tools import UV, need

from official_bert.command_names import COMMANDS, as_installed

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
PEERS = {"tf-models-official"}  # of tests and benchmarks; nothing in the package imports them


def requirements(name: str) -> set[str]:
    """Returns the lines of a requirements file, without comments and spaces."""
    lines = (line.partition("#")[0].strip() for line in (ROOT / name).read_text(encoding="utf-8").splitlines())
    return {line.replace(" ", "") for line in lines if line and not line.startswith("-r")}


def test_the_wheel_requires_what_a_checkout_installs_but_its_peers():
    wanted = {line for line in requirements("requirements.txt") if re.split(r"[<>=~;!\[]", line)[0] not in PEERS}
    assert {line.replace(" ", "") for line in PROJECT["dependencies"]} == wanted


def test_nothing_in_the_package_imports_a_peer():
    for folder in ("official_bert", "tools"):
        for path in (ROOT / folder).rglob("*.py"):
            assert not re.search(
                r"^\s*(import official\b|from official\b)", path.read_text(encoding="utf-8"), re.MULTILINE
            ), path


def test_the_wheel_holds_every_folder_with_sources(monkeypatch):
    given = {}
    monkeypatch.setattr(setuptools, "setup", lambda **values: given.update(values))
    builder = types.SimpleNamespace(bdist_wheel=object)  # older versions have none; a build installs a newer one
    monkeypatch.setitem(sys.modules, "setuptools.command.bdist_wheel", builder)
    monkeypatch.chdir(ROOT)
    runpy.run_path("setup.py")
    folders = {path.parent for root in ("official_bert", "tools") for path in (ROOT / root).rglob("*.py")}
    names = {".".join(folder.relative_to(ROOT).parts) for folder in folders} | {"configs"}
    elsewhere = {name.rpartition(".")[2]: name for name in given["package_dir"]}
    wanted = {".".join([elsewhere.get(name.split(".")[0], name.split(".")[0]), *name.split(".")[1:]]) for name in names}
    assert sorted(given["packages"]) == sorted(wanted) and "official_bert.tools.client" in wanted


def test_every_command_has_a_name():
    tools = {f"official_bert.tools.{path.stem}" for path in ROOT.glob("tools/*.py")} - {"official_bert.tools.__init__"}
    commands = {f"official_bert.commands.{path.stem}" for path in ROOT.glob("official_bert/commands/*.py")}
    commands -= {"official_bert.commands.__init__"}
    # notebooks are part of a checkout alone, and compile-for-tpu runs the compiler in another environment
    nameless = {"official_bert.tools.run_notebooks", "official_bert.tools.tpu_compiler"}
    assert set(COMMANDS.values()) == tools - nameless | commands
    # python -m official_bert.NAME
    assert all((ROOT / f"official_bert/{name.rpartition('.')[2]}.py").exists() for name in commands)


@pytest.mark.parametrize(
    ("arguments", "status", "told"),
    [
        (["--version"], 0, f"official-bert {importlib.metadata.version('official-bert')}, tensorflow 2."),
        ([], 0, "usage: official-bert COMMAND"),
        (["pretain"], 1, "no command 'pretain': perhaps pretrain"),
        (["create_pretraining_data"], 1, "perhaps create-pretraining-data"),
        (["zzz"], 1, "expected one of demo, verify, prepare-corpus"),
        (["plot-run", "--help"], 1, "Draws a metric of training runs from their logs"),
    ],
)
def test_one_name_for_all_commands(arguments, status, told):
    done = run_here("-m", "official_bert", *arguments)
    assert done.returncode == status and told in done.stdout + done.stderr and "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("    python -m official_bert.run_export --output=x", "    official-bert export --output=x"),
        ("python tools/build_vocab.py, tools/pack_records.py", "official-bert build-vocab, official-bert pack-records"),
        (".venv/bin/python -m official_bert.serve", "official-bert serve"),
        ("2018's `run_squad.py`", "2018's `run_squad.py`"),
        ("with run_predict; --run_cost, run_it", "with official-bert predict; --run_cost, run_it"),
        ("--config=configs/pretrain/small.yaml", "--config=pretrain/small"),
    ],
)
def test_an_installation_has_names_of_its_own(text, told):
    assert as_installed(text) == told


def test_help_in_an_installation_names_what_it_has():
    for name in ("pretrain", "inspect-data"):
        told = run_here("-m", "official_bert", name, "--help").stdout
        assert f"    official-bert {name} " in told
        assert not re.search(r"python |tools/\w+\.py|configs/", told.split("flags:")[0])
    for module in COMMANDS.values():
        path = ROOT / (module.replace("official_bert.tools", "tools").replace(".", "/") + ".py")
        doc = as_installed(ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))))
        assert not re.search(r"python (-m|tools/)|configs/[a-z/_]+\.yaml", doc), module


@pytest.mark.parametrize(
    ("command", "unbuffered"),
    [
        ("-m official_bert --help", ""),
        ("-m official_bert --help", "1"),
        pytest.param("tools/plot_run.py --help", "", marks=pytest.mark.slow),
    ],
)
def test_help_may_be_read_in_part(command, unbuffered):
    variables = {**os.environ, "PYTHONUNBUFFERED": unbuffered, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        ["bash", "-c", f"{sys.executable} {command} | head -n 1"],
        cwd=ROOT,
        check=True,
        text=True,
        capture_output=True,
        env=variables,
    )
    assert done.stdout.count("\n") == 1 and not done.stderr


def test_a_missing_extra_names_itself():
    hidden = (
        "import sys; sys.modules['aiohttp'] = None; from official_bert.command_line import run_main; import aiohttp"
    )
    done = subprocess.run([sys.executable, "-c", hidden], check=False, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1 and done.stderr == (
        "error: aiohttp is not installed; it is part of an extra: pip install 'official-bert[serving]', or in a "
        "checkout pip install '.[serving]'\n"
    )


@pytest.mark.slow
@pytest.mark.parametrize("version", ["3.11", "3.12", "3.13"])
@pytest.mark.parametrize("platform", ["x86_64-manylinux_2_28", "aarch64-manylinux_2_28", "aarch64-apple-darwin"])
def test_requirements_resolve(tmp_path, platform, version):
    """What the wheel requires has wheels for each platform and Python; what a checkout requires resolves."""
    need(UV)
    (tmp_path / "wheel.txt").write_text("\n".join(PROJECT["dependencies"]))
    (tmp_path / "serving.txt").write_text("\n".join(PROJECT["optional-dependencies"]["serving"]))
    files = (tmp_path / "wheel.txt", tmp_path / "serving.txt")
    for more, paths in ((["--only-binary", ":all:"], files), ([], (ROOT / "requirements.txt", files[1]))):
        done = subprocess.run(
            [
                UV,
                "pip",
                "compile",
                "--quiet",
                "--python-platform",
                platform,
                "--python-version",
                version,
                *more,
                *paths,
            ],
            check=False,
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert done.returncode == 0 and "tensorflow-text==2.20" in done.stdout, done.stderr


@pytest.mark.slow
def test_a_wheel_is_enough(tmp_path):
    """Builds wheel and sdist, installs the wheel into an empty environment, and goes from text to a filled blank
    outside the checkout.
    """

    def types(*command, timeout=900):
        done = subprocess.run(
            [*map(str, command)],
            cwd=tmp_path,
            check=False,
            capture_output=True,
            text=True,
            timeout=timeout,
            env={"PATH": f"{tmp_path}/venv/bin:/usr/bin:/bin", "HOME": str(tmp_path)},
        )
        assert done.returncode == 0, (command, done.stdout[-2000:], done.stderr[-3000:])
        return done.stdout

    need(UV)
    subprocess.run([UV, "build", "--quiet", "--out-dir", tmp_path / "dist", ROOT], check=True, timeout=300)
    (wheel,) = (tmp_path / "dist").glob("*.whl")
    assert len(list((tmp_path / "dist").glob("*.tar.gz"))) == 1
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "venv"], check=True, timeout=120)
    subprocess.run(
        [UV, "pip", "install", "--quiet", "--python", tmp_path / "venv/bin/python", f"{wheel}[serving]"],
        check=True,
        timeout=900,
    )
    assert types("official-bert", "--version").startswith(f"official-bert {PROJECT['version']}")
    text = "".join(
        f"The {word} river runs {word} the stone .\nIt runs by the old {word} .\n\n"
        for word in ("cold", "old", "long") * 40
    )
    (tmp_path / "text.txt").write_text(text)
    types(
        "official-bert",
        "build-vocab",
        "--input_file=text.txt",
        "--output_file=vocab.txt",
        "--vocab_size=80",
        "--num_unused=0",
    )
    types(
        "official-bert",
        "create-pretraining-data",
        "--input_file=text.txt",
        "--output_file=train.tfrecord",
        "--vocab_file=vocab.txt",
        "--max_seq_length=32",
        "--max_predictions_per_seq=5",
    )
    changes = (
        "training.steps=3",
        "options.max_seq_length=32",
        "options.max_predictions_per_seq=5",
        "optimizer.warmup_steps=1",
    )
    types(
        "official-bert",
        "pretrain",
        "--config=pretrain/tiny",
        "--input_file=train.tfrecord",
        "--vocab_file=vocab.txt",
        "--output_dir=run",
        *(f"--set={change}" for change in changes),
    )
    types("official-bert", "export", "--checkpoint=run", "--output=served")
    answer = types("official-bert", "predict", "--task=fill_mask", "--model=served", "The [MASK] river .")
    assert re.search(r"^\s+\w+ 0\.\d+", answer, re.MULTILINE), answer
