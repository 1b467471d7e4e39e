"""The notebooks of docs/: the outputs kept in them come from one run, top to bottom, and they still run."""

import json
import os
import re
import shutil
import subprocess
import sys

import nbformat
import pytest

JOURNEYS = ("from_a_table", "from_a_corpus", "from_a_checkpoint")
NAMES = (*JOURNEYS, "one_word_two_meanings")
MOST_CELLS = 15  # of a journey
MOST_BYTES = 600_000


def read(root, name):
    """A notebook of docs/notebooks, checked against the format's schema."""
    notebook = nbformat.read(root / f"docs/notebooks/{name}.ipynb", as_version=4)
    nbformat.validate(notebook)
    return notebook


def outputs(notebook):
    """Every output of a notebook."""
    return [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]


def printed(notebook):
    """All that a notebook printed."""
    return "".join(output.get("text", "") for output in outputs(notebook))


def check_outputs(notebook):
    """Requires cells run in order, without errors and warnings."""
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in code] == list(range(1, len(code) + 1))
    assert all(cell.outputs for cell in code[1:])
    assert not [
        output for output in outputs(notebook) if output.output_type == "error" or output.get("name") == "stderr"
    ]


def test_there_are_no_others(root):
    assert sorted(path.stem for path in root.glob("docs/notebooks/*.ipynb")) == sorted(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_what_is_kept_is_one_whole_run(root, name):
    notebook = read(root, name)
    check_outputs(notebook)
    text = (root / f"docs/notebooks/{name}.ipynb").read_text(encoding="utf-8")
    assert len(text.encode("utf-8")) < MOST_BYTES
    assert not re.search(r"/(?:home|root|tmp|work|usr|opt|mnt|Users)/", re.sub(r'"image/png": "[^"]*"', "", text)), (
        "a path of one machine"
    )
    assert not [cell for cell in notebook.cells if set(cell.metadata) - {"tags"}], "cells with metadata, such as times"
    kinds = [cell.cell_type for cell in notebook.cells]
    assert name not in JOURNEYS or len(kinds) <= MOST_CELLS
    assert "codecode" not in "".join(kinds), "a cell without a word before it"
    for picture in (output for output in outputs(notebook) if "image/png" in output.get("data", {})):
        assert len(picture["data"]["image/png"]) < 200_000


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_they_run_from_top_to_bottom(root, tmp_path):
    for name in ("tools", "configs", "official_bert"):  # what they make lies in demo/ beside these
        (tmp_path / name).symlink_to(root / name)
    shutil.copytree(root / "docs/notebooks", tmp_path / "docs/notebooks")
    done = subprocess.run(
        [sys.executable, str(root / "tools/run_notebooks.py"), "--notebook=docs/notebooks/*.ipynb"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(root)},
        check=False,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    found = {name: read(tmp_path, name) for name in NAMES}
    for notebook in found.values():
        check_outputs(notebook)
    figures = re.search(r"held out: ([\d.]+) nats[^;]*; by frequency ([\d.]+)", printed(found["from_a_corpus"]))
    loss, unigram = map(float, figures.groups())
    assert loss < unigram - 0.5
    log = [
        json.loads(line) for line in (tmp_path / "demo/corpus/model/log.jsonl").read_text(encoding="utf-8").splitlines()
    ]
    assert loss == pytest.approx([row["eval/mlm_loss"] for row in log if "eval/mlm_loss" in row][-1], abs=0.01)
    guesses = re.findall(r"^(first|one|always).*: (\d+)% of \d+ blanks", printed(found["from_a_corpus"]), re.MULTILINE)
    first, five, always = (int(share) for _, share in guesses)
    assert five > first > 0 and five > always
    shares = dict(
        re.findall(r"^(accuracy|always|linear classifier).*?: (0\.\d+)", printed(found["from_a_table"]), re.MULTILINE)
    )
    assert float(shares["accuracy"]) > float(shares["always"]) + 0.3 and len(shares) == 3
    of_checkpoint = printed(found["from_a_checkpoint"])
    assert of_checkpoint.count("the same words") == 2 and "exit status 0" in of_checkpoint
    assert "] True" in of_checkpoint  # the converted model's words
    both = re.findall(r"English to German ([\d.]+)", printed(found["one_word_two_meanings"]))
    layers = re.findall(r"^(\d) +[\d.]+ +[\d.]+ +([\d.]+)", printed(found["one_word_two_meanings"]), re.MULTILINE)
    assert float(layers[6][1]) > float(layers[0][1]) and len(layers) == 7 and float(both[0]) > float(both[2])


def test_a_cell_that_fails_leaves_the_notebook_as_it_was(root, tmp_path):
    path = tmp_path / "broken.ipynb"
    nbformat.write(nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("1 / 0")]), path)
    before = path.read_bytes()
    done = subprocess.run(
        [sys.executable, str(root / "tools/run_notebooks.py"), f"--notebook={path}"],
        cwd=root,
        check=False,
        env={**os.environ, "PYTHONPATH": str(root)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1 and "a cell failed: ZeroDivisionError: division by zero" in done.stderr
    assert path.read_bytes() == before and [item.name for item in tmp_path.iterdir()] == ["broken.ipynb"]
