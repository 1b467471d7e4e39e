"""The conformance suite: short adapters, judgements, and what it says of a library that is not installed."""

import importlib
import sys

import numpy as np
import pytest
from absl.testing import flagsaver
from commands import ROOT, imported_tool

FOLDER = ROOT / "benchmarks" / "conformance"


@pytest.fixture(scope="module")
def judge():
    with imported_tool("judge", "benchmarks/conformance") as module, flagsaver.flagsaver():
        sys.path.insert(0, str(FOLDER))
        try:
            yield module
        finally:
            sys.path.remove(str(FOLDER))


@pytest.fixture(scope="module")
def expected(judge):
    module = importlib.import_module("expected")
    return module.Expected(
        judge.GOLDEN, ROOT / "docs/bert_in_one_file.py", ["Nobody objected!"], str(judge.GOLDEN / "vocab_uncased.txt")
    )


def test_adapters_are_short_and_only_ours_imports_ours(judge):
    paths = sorted((FOLDER / "adapters").glob("*.py"))
    assert {path.stem.removesuffix("_model") for path in paths} == {*judge.NAMES, "__init__"}
    for path in paths:
        text = path.read_text(encoding="utf-8")
        assert text.count("\n") <= 60, path
        assert path.stem.startswith("official_bert") or "official_bert" not in text, path


def test_a_library_that_is_not_installed_is_named_with_its_command(judge, monkeypatch, tmp_path):
    adapter = importlib.import_module("adapters.tokie")
    monkeypatch.setattr(adapter, "ENVIRONMENT", ".venv-of-nobody")
    assert judge.ask("tokie", tmp_path) == {"missing": "tokie is not installed: make venv-torch"}
    assert (
        judge.table({"tokie": judge.ask("tokie", tmp_path)})[2] == "| tokie | tokie is not installed: make venv-torch |"
    )


def test_tokens_are_judged_and_the_shortest_text_is_shown(expected):
    vocabulary = expected.vocabularies["cased"]
    right = [[vocabulary[token] for token in tokens] for tokens in expected.tokens["cased"]]
    assert expected.judge("tokens cased", right)["passed"]
    shortest = min(range(len(right)), key=lambda number: (not right[number], len(expected.texts["cased"][number])))
    wrong = [[11] if number == shortest else row for number, row in enumerate(right)]
    found = expected.judge("tokens cased", wrong)
    assert not found["passed"] and found["figure"] == "1 of 1,694" and "got ['[UNK]']" in found["case"]


def test_numbers_are_judged_against_2018(expected, golden):
    outputs = np.load(golden / "tf1_bert/outputs.npz")
    answer = {name: outputs[name] for name in ("sequence_output", "pooled_output")}
    assert expected.judge("outputs", answer)["passed"]
    assert not expected.judge("outputs", answer | {"pooled_output": outputs["pooled_output"] + 1e-4})["passed"]
    logits = outputs["masked_lm_log_probs"].reshape(4, 5, -1) + 3.0
    assert expected.judge("masked_lm", logits)["passed"] and not expected.judge("masked_lm", logits * 1.001)["passed"]


def test_metrics_worked_out_by_hand(expected):
    answer = {"accuracy": 4 / 6, "f1": 4 / 6, "matthews": 1 / 3, "pearson": 0.8, "spearman": 0.8}
    assert expected.judge("glue", answer)["passed"]
    assert not expected.judge("glue", answer | {"matthews": 0.3334})["passed"]


def test_the_table_says_what_is_not_claimed(judge):
    results = {"tokens uncased": {"passed": False, "figure": "1 of 2", "case": "'x'"}}
    table = judge.table({"x": {"versions": {"x": "1.0"}, "results": results}})
    assert table[2].startswith("| x 1.0 | **differs** (1 of 2) | not claimed |") and table[-1].endswith("rows: 'x'")
