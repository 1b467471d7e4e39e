"""`official-bert verify`: its data are golden results, its rows fail if the package computes something else."""

import gzip
import json
import math
import os
import pathlib
import re
import shutil
import subprocess
import sys
import zipfile

import made_verification
import numpy as np
import pytest
from absl.testing import flagsaver
from commands import ROOT, imported_tool
from needed_tools import UV, need

from official_bert.tools.verification import check, model_checks, text_checks
from official_bert.tools.verification.check import Check


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory):
    folder = tmp_path_factory.mktemp("golden")
    check.unpack(folder)
    return folder


def test_the_data_in_the_wheel_are_those_of_the_2018_code(golden):
    for name in made_verification.WHOLE:
        assert (check.GOLDEN / name).read_bytes() == (golden / name).read_bytes(), name
    for name in made_verification.PACKED:
        assert gzip.decompress((check.GOLDEN / f"{name}.gz").read_bytes()) == (golden / name).read_bytes(), name
    for name in ("outputs.npz", "gradients.npz", "after_6_steps.npz"):
        kept, whole = np.load(check.GOLDEN / "tf1_bert" / name), np.load(golden / "tf1_bert" / name)
        assert set(kept) <= set(whole) and len(kept) > 8
        for key, value in kept.items():
            every = (slice(None), slice(None, None, 50)) if key == "masked_lm_log_probs" else slice(None, None, 50)
            array = whole[key][every] if key in made_verification.TABLES else whole[key]
            np.testing.assert_array_equal(value, array, err_msg=key)


def test_the_data_take_at_most_a_megabyte():
    assert sum(path.stat().st_size for path in check.GOLDEN.rglob("*") if path.is_file()) <= 1_000_000


@pytest.mark.parametrize("row", text_checks.CHECKS[:1] + text_checks.CHECKS[3:], ids=lambda row: row.name)
def test_text_rows_pass(unpacked, row):
    assert row.row(unpacked)["result"] == "passed"


def test_a_changed_row_of_the_vocabulary_is_found(unpacked, tmp_path):
    shutil.copytree(unpacked, tmp_path / "golden")
    path = tmp_path / "golden" / "vocab_uncased.txt"
    path.write_text(path.read_text(encoding="utf-8").replace("\n##art\n", "\n##arx\n"), encoding="utf-8")
    assert text_checks.wrong_tokens(tmp_path / "golden") > 0
    assert text_checks.wrong_features(tmp_path / "golden") > 0


def test_outputs_and_gradients_pass(unpacked):
    assert 0 < model_checks.output_difference(unpacked) <= 1e-5
    assert 0 < model_checks.gradient_difference(unpacked) <= 1e-5


@pytest.mark.parametrize(
    ("measure", "result"),
    [
        (lambda _: 0.5, "passed"),
        (lambda _: 0.6, "differs"),
        (lambda _: math.nan, "differs"),
        (lambda _: 1 / 0, "differs"),
        (lambda _: check.largest([1.0, math.nan], [1.0, 1.0]), "differs"),
        (lambda _: check.largest([1.0], [1.0, 1.0]), "differs"),
    ],
)
def test_a_row_passes_only_within_its_bound(tmp_path, measure, result):
    row = Check("a", "b", 0.5, measure).row(tmp_path)
    assert row["result"] == result and json.dumps(row, allow_nan=False)


@pytest.fixture
def verify():
    with imported_tool("verify") as tool, flagsaver.flagsaver():
        yield tool


def test_the_report_tells_what_differs_and_what_was_left_out(verify, monkeypatch, tmp_path, capsys):
    checks = (
        Check("sums", "numbers", 1e-5, lambda _: 1e-6),
        Check("products", "numbers", 1e-5, lambda _: 1e-4),
        Check("words", "texts", 0, lambda _: [][0]),
        Check("model for X", "numbers", 1e-5, lambda _: 0.0, "onnx", ("json", "no_such_module")),
    )
    monkeypatch.setattr(verify, "CHECKS", checks)
    verify.FLAGS([sys.argv[0], f"--output_file={tmp_path / 'report.json'}"])
    with pytest.raises(SystemExit, match="^error: not as expected: products, words$"):
        verify.main([])
    out = capsys.readouterr().out
    report = json.loads((tmp_path / "report.json").read_text(encoding="utf-8"))
    assert [row["result"] for row in report["checks"]] == ["passed", "differs", "differs", "left out"]
    assert report["versions"]["official-bert"] in out and report["versions"]["numpy"] == np.__version__
    assert re.search(r"sums +1e-06 +1e-05  numbers\nproducts +0\.0001 +1e-05  numbers  DIFFERS\n", out)
    assert "words                          DIFFERS: IndexError: list index out of range" in out
    assert "model for X                    left out: no_such_module is not installed: pip install" in out
    assert "1 passed; 2 differs; 1 left out" in out and "'official-bert[onnx]'" in out


def test_all_rows_within_their_bounds_are_no_error(verify, monkeypatch, capsys):
    monkeypatch.setattr(verify, "CHECKS", (Check("sums", "numbers", 1e-5, lambda _: 1e-6),))
    verify.FLAGS([sys.argv[0]])
    verify.main([])
    assert "\n1 passed; " in capsys.readouterr().out


# Changes of the sources before a wheel is built: file, text, replacement, and the rows that must differ.
MUTANTS = {
    "nothing": ("official_bert/model_config.py", "", "", ()),
    "layer norm's epsilon": (
        "official_bert/model_config.py",
        "layer_norm_epsilon: float = 1e-12",
        "layer_norm_epsilon: float = 1e-5",
        ("outputs of a checkpoint", "gradients", "SavedModel of ids"),
    ),
    "GELU's 0.044715": (
        "official_bert/layers/speed/fused.py",
        "(x + 0.044715 * x * x * x)",
        "(x + 0.044175 * x * x * x)",
        ("compiled pieces of a step",),
    ),
    "a row of the vocabulary": (
        "tools/verification/golden/vocab_uncased.txt",
        "\n##art\n",
        "\n##arx\n",
        ("tokenizer", "compiled tokenizer", "SQuAD features"),
    ),
    "the optimizer's epsilon": (
        "official_bert/training_config.py",
        "epsilon: NonNegative = 1e-6",
        "epsilon: NonNegative = 1e-7",
        ("six optimizer steps", "compiled optimizer update"),
    ),
    "the mask of attention": (
        "official_bert/layers/attention_mask.py",
        "UNSEEN = -1e9",
        "UNSEEN = -1.0",
        ("outputs of a checkpoint", "compiled pieces of a step"),
    ),
}


def wheel_of(folder: pathlib.Path) -> pathlib.Path:
    """Builds the wheel of a checkout; returns its path."""
    subprocess.run(
        [UV, "build", "--quiet", "--wheel", "--out-dir", folder / "dist"], cwd=folder, check=True, timeout=300
    )
    (wheel,) = (folder / "dist").glob("*.whl")
    return wheel


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", MUTANTS)
def test_a_wheel_with_one_change_is_found(tmp_path, name):
    need(UV)
    path, before, after, rows = MUTANTS[name]
    ignored = shutil.ignore_patterns("__pycache__", "*.egg-info")
    for part in ("official_bert", "tools", "configs"):
        shutil.copytree(ROOT / part, tmp_path / "source" / part, ignore=ignored)
    for part in ("pyproject.toml", "setup.py", "README.md", "LICENSE", *ROOT.glob("requirements*.txt")):
        shutil.copy(ROOT / part, tmp_path / "source")
    text = (tmp_path / "source" / path).read_text(encoding="utf-8")
    assert not before or text.count(before) == 1
    (tmp_path / "source" / path).write_text(text.replace(before, after) if before else text, encoding="utf-8")
    with zipfile.ZipFile(wheel_of(tmp_path / "source")) as wheel:
        wheel.extractall(tmp_path / "installed")
    done = subprocess.run(
        [sys.executable, "-m", "official_bert", "verify", f"--output_file={tmp_path / 'report.json'}"],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(tmp_path / "installed")},
        text=True,
        capture_output=True,
        check=False,
    )
    checks = json.loads((tmp_path / "report.json").read_text(encoding="utf-8"))["checks"]
    wrong = [row["check"] for row in checks if row["result"] == "differs"]
    assert set(rows) <= set(wrong) and "Traceback" not in done.stderr, done.stdout
    assert (done.returncode, bool(wrong)) == ((1, True) if before else (0, False)), done.stdout
    unrelated = {"SQuAD metric", "tokenizer" if "vocab" not in path else "outputs of a checkpoint"}
    assert not unrelated.intersection(wrong), done.stdout
