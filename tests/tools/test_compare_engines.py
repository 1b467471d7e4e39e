"""`tools/compare_engines.py`: every engine that is there, its agreement, and which to take."""

import json
import os
import pathlib
import subprocess
import sys

import made_formats
import pytest
from commands import imported_tool

ROOT = pathlib.Path(__file__).parents[2]


@pytest.fixture(scope="module")
def compare_engines():
    with imported_tool("compare_engines") as module:
        yield module


def run(*arguments):
    """In a process of its own, which starts others."""
    return subprocess.run(
        [sys.executable, "tools/compare_engines.py", *arguments],
        cwd=ROOT,
        check=False,
        text=True,
        capture_output=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )


def test_the_fastest_of_those_that_lose_little_is_taken(compare_engines):
    figures = {
        name: {"p50_ms": latency, "texts_per_second": rate, "agreement": agreement}
        for name, latency, rate, agreement in (
            ("saved_model", 5.0, 100.0, 1.0),
            ("onnx", 3.0, 90.0, 1.0),
            ("openvino_bfloat16", 2.0, 300.0, 0.995),
            ("openvino_int8", 1.0, 400.0, 0.9),
        )
    }
    assert compare_engines.choose(figures, 0.01) == {
        "single_texts": "openvino_bfloat16",
        "batches": "openvino_bfloat16",
    }
    assert compare_engines.choose(figures, 0.0) == {"single_texts": "onnx", "batches": "saved_model"}


class FakeSide:
    """Answers in a fixed time, on a machine that is three times as slow while the side named slow is measured."""

    seconds = {"saved_model": 2.0, "exact": 1.0, "slow": 1.5, "other": 4.0}
    alive: list[str] = []
    most = 0

    def __init__(self, name, folder, form, threads):
        if name == "broken":
            raise ValueError("broken: expected a processor with it")
        self.name = name
        FakeSide.alive.append(name)
        FakeSide.most = max(FakeSide.most, len(FakeSide.alive))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        FakeSide.alive.remove(self.name)

    def ask(self, batches):
        slowness = 3 if "slow" in FakeSide.alive else 1
        answers = [
            {"label": b"b" if self.name == "other" and text == "1" else b"a"}
            for batch in batches
            for text in batch["text"]
        ]
        return [slowness * self.seconds[self.name] * len(batch["text"]) for batch in batches], answers, 5_000_000


def test_two_sides_are_in_memory_at_a_time_and_a_slow_minute_changes_no_figure(compare_engines, monkeypatch):
    monkeypatch.setattr(compare_engines, "Side", FakeSide)
    missing = {}
    with FakeSide("saved_model", "", "", 0) as first:
        others = dict.fromkeys(("exact", "broken", "slow", "other"), ("folder", "form"))
        rows = [{"text": str(number)} for number in range(4)]
        plan = compare_engines.Plan(compare_engines.columns(rows[:2], 1), compare_engines.columns(rows, 3), 2, 0)
        figures = compare_engines.measure(first, others, plan, missing)
    assert FakeSide.most == 2 and not FakeSide.alive
    assert missing == {"broken": "broken: expected a processor with it"}
    assert {
        name: (values["p50_ms"], values["p99_ms"], values["texts_per_second"], values["agreement"])
        for name, values in figures.items()
    } == {
        "saved_model": (2000, 2000, 0.5, 1),
        "exact": (1000, 1000, 1, 1),
        "slow": (1500, 1500, pytest.approx(1 / 1.5), 1),
        "other": (4000, 4000, 0.25, 0.75),
    }


def test_a_side_whose_process_ends_is_named(compare_engines, monkeypatch):
    monkeypatch.setattr(compare_engines, "answer_requests", os.getpid)  # which takes no arguments, and fails
    with pytest.raises(ValueError, match="^gone: its process has ended, perhaps ") as caught:
        compare_engines.Side("gone", "no folder", "", 0)
    assert "\n" not in str(caught.value)


@pytest.mark.slow
def test_all_that_is_exported_is_measured_and_what_is_not_is_named(golden, tmp_path):
    served, config = made_formats.make("classification", str(golden / "vocab_uncased.txt"))
    made_formats.write(served, config, tmp_path / "model", ("saved_model", "onnx", "openvino"))
    (bias,) = (weight for weight in served.model.weights if weight.shape == (3,))
    bias.assign_add([5.0, 0.0, 0.0])  # another model, which answers otherwise
    made_formats.write(served, config, tmp_path / "other", ("saved_model",))
    (tmp_path / "texts.txt").write_text("".join(f"{text.strip() or 'x'}\n" for text in made_formats.TEXTS * 10))
    done = run(
        f"{tmp_path}/model",
        f"{tmp_path}/other",
        "--rounds=1",
        "--singles=5",
        f"--texts={tmp_path}/texts.txt",
        f"--report_file={tmp_path}/report.json",
    )
    assert done.returncode == 0, done.stderr
    report = json.loads((tmp_path / "report.json").read_text())
    assert list(report["figures"]) == ["saved_model", f"{tmp_path}/other", "onnx", "openvino"]
    agreements = {name: values["agreement"] for name, values in report["figures"].items()}
    assert agreements.pop(f"{tmp_path}/other") < 1 and set(agreements.values()) == {1.0}
    assert all(
        0 < values["p50_ms"] <= values["p99_ms"] and values["texts_per_second"] > 0 < values["memory_mb"]
        for values in report["figures"].values()
    )
    assert set(report["not_measured"]) == {
        "onnx_int8",
        "litert",
        "litert_float16",
        "litert_int8",
        "openvino_bfloat16",
        "openvino_int8",
    }
    assert set(report["take"].values()) <= set(agreements) and "for batches use" in done.stdout
    for arguments, told in (
        (["--texts=gone.txt", f"{tmp_path}/model"], "--texts=gone.txt: no such file"),
        ([f"--texts={tmp_path}/texts.txt"], "expected a folder that run_export wrote"),
        ([f"--texts={tmp_path}/texts.txt", str(tmp_path)], "expected a model that run_export"),
    ):
        done = run(*arguments)
        assert done.returncode == 1 and told in done.stderr and done.stderr.count("\n") == 1
