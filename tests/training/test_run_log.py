"""Reading a run's log: lines that no run writes are passed over, whatever they are."""

import json

import pytest

from official_bert.reports.run_sections import read_curves
from official_bert.run_folder import EVAL_LOG_FILE, RunFolder
from official_bert.storage import files

OTHERS = [
    "[1, 2]",
    "3",
    "null",
    '"text"',
    '{"eval/mlm_loss": 1.0}',
    '{"step": "1", "eval/mlm_loss": 1.0}',
    "{",
    "[" * 100_000,
    "9" * 5000,
    "",
]


@pytest.mark.parametrize("other", OTHERS, ids=lambda text: text[:12])
def test_lines_of_something_else_are_passed_over(tmp_path, other):
    row = json.dumps({"step": 10, "time": 1.0, "eval/mlm_loss": 2.5, "eval/name": "text"})
    (tmp_path / "log.jsonl").write_text(f"{other}\n{row}\n{other}\n")
    assert RunFolder(str(tmp_path)).logged_steps("eval") == {10}
    assert read_curves(str(tmp_path / "log.jsonl")) == {"eval/mlm_loss": {10: 2.5}}
    (tmp_path / EVAL_LOG_FILE).write_text(other)
    if "eval" not in other:
        assert RunFolder(str(tmp_path)).last_followed() == {}


@pytest.mark.parametrize("text", ["[" * 100_000, "9" * 5000, "{'a': 1}"], ids=["deep", "long number", "no JSON"])
def test_json_that_cannot_be_read_is_one_line(tmp_path, text):
    (tmp_path / "a.json").write_text(text)
    with pytest.raises(ValueError, match=r"a.json: not valid JSON: "):
        files.read_json(str(tmp_path / "a.json"))
