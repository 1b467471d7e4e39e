"""The tool that compares trainings of two checkouts: it finds one changed bit, and a checkout is equal to itself."""

import json
import subprocess
import sys

import compare_trainings
import numpy as np
import pytest
import training_cases


def run_of(folder, **changed):
    """Writes a run's folder as `run_trainings.py` leaves it; `changed` replaces parts."""
    parts = {
        "loss": 0.25,
        "weight": np.array([1.0, 2.0], np.float32),
        "metrics": "accuracy = 0.5\n",
        "answers": "a\nb\n",
    }
    parts |= changed
    folder.mkdir()
    row = {
        "step": 1,
        "time": np.random.default_rng().random(),
        "train/loss": parts["loss"],
        "x_per_second": str(folder),
    }
    (folder / "log.jsonl").write_text(json.dumps(row) + "\n")
    np.savez(folder / "variables.npz", weight=parts["weight"])
    (folder / "eval_results.txt").write_text(parts["metrics"])
    (folder / "predictions.tsv").write_text(parts["answers"])
    (folder / "ended.json").write_text(json.dumps({"status": parts.get("status", 0), "error": "error: no disk"}))
    return folder


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({}, ""),
        ({"loss": 0.25000000000000006}, "step 1: train/loss: 0.25 before, 0.25000000000000006 after"),
        (
            {"weight": np.array([1.0, np.nextafter(np.float32(2), np.float32(3))], np.float32)},
            "weight: 1 of 2 values differ, by at ",
        ),
        ({"weight": np.array([1.0, 2.0])}, "weight: float32 (2,) before, float64 (2,) after"),
        ({"metrics": "accuracy = 0.75\n"}, "eval_results.txt:1: 'accuracy = 0.5' before, 'accuracy = 0.75' after"),
        ({"answers": "a\nc\n"}, "predictions.tsv:2: 'b' before, 'c' after"),
        ({"status": 1}, "after: the command failed: error: no disk"),
    ],
)
def test_one_changed_bit_is_found(tmp_path, changed, told):
    before, after = run_of(tmp_path / "before"), run_of(tmp_path / "after", **changed)
    found = list(compare_trainings.differences(before, after))
    assert len(found) == bool(told) and "".join(found)[: len(told)] == told


def test_a_case_brings_along_those_that_it_needs():
    assert [case.name for case in training_cases.chosen(["student_tags", "adapters"])] == [
        "words",
        "tags",
        "student_tags",
        "adapters",
    ]
    places = {case.name: place for place, case in enumerate(training_cases.CASES)}
    assert len(places) == len(training_cases.CASES)
    assert all(places[other] < places[case.name] for case in training_cases.CASES for other in case.needs)
    with pytest.raises(ValueError, match=r"--only: expected some of .*, got tabel"):
        training_cases.chosen(["tabel"])


@pytest.mark.slow
def test_a_checkout_is_equal_to_itself(root):
    command = [sys.executable, str(root / "tests" / "compare_trainings.py"), f"--before={root}", "--only=table,words"]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 of 2 cases are equal" in done.stdout and "predictions.tsv" in done.stdout
