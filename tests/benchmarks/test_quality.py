"""The tables of fine-tuning: which runs are done, what survives a kill, and the numbers in a table; the runs are
pretended.
"""

import json
import statistics
import subprocess
import sys

import pytest

# A run whose metric is worked out from its rate, rule and seed. It fails, or ends the program that started it, if a
# file says so.
PRETENDED = """
import json, os, pathlib, signal, sys
flags = dict(part.lstrip("-").partition("=")[::2] for part in sys.argv[1:])
ledger = pathlib.Path("ledger.txt")
ledger.write_text((ledger.read_text() if ledger.exists() else "") + " ".join(sys.argv[1:4]) + "\\n")
count = len(ledger.read_text().splitlines())
if pathlib.Path(f"kill_at_{count}").exists():
    os.kill(os.getppid(), signal.SIGKILL)
    sys.exit(1)
if pathlib.Path(f"fail_at_{count}").exists():
    sys.exit("broken")
rate, seed, rule = flags["learning_rate"], int(flags["first_seed"]), flags.get("set", "")
best = {"2e-5": 0.5, "3e-5": 0.7, "5e-5": 0.6} if rule else {"2e-5": 0.5, "3e-5": 0.6, "5e-5": 0.7}
f1 = best[rate] + 0.01 * seed + 0.1 * (flags["sides"] == "theirs")
row = {"metrics": {"f1": f1, "accuracy": 0.5}, "command": 36.0}
pathlib.Path(flags["result_file"]).write_text(json.dumps({flags["sides"]: [row]}))
"""


@pytest.fixture
def compare(root, tmp_path):
    """Returns the function that runs the program in a folder, with pretended runs."""
    (tmp_path / "pretended.py").write_text(PRETENDED)

    def run(*more):
        return subprocess.run(
            [
                sys.executable,
                root / "benchmarks/quality.py",
                "--data=DATA",
                "--init_checkpoint=MODEL",
                "--results_file=out/results.jsonl",
                "--table_file=out/tables.md",
                "--only=mrpc",
                f"--command={tmp_path}/pretended.py",
                *more,
            ],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )

    return run


@pytest.mark.slow
def test_each_side_runs_three_rates_once_and_its_other_seeds_at_its_best_rate(compare, tmp_path):
    done = compare()
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in (tmp_path / "out/results.jsonl").read_text().splitlines()]
    assert len(rows) == 3 * (3 + 4)
    assert {(row["side"], row["rate"]) for row in rows if row["seed"] > 1} == {
        ("2018", "5e-5"),
        ("corrected", "3e-5"),
        ("torch", "3e-5"),
    }
    # 21 runs of 7 minutes, before any
    assert "1 of 21" in done.stdout and "21 of 21" in done.stdout and "2.5 h left" in done.stdout
    values = [0.7 + 0.01 * seed for seed in range(1, 6)]
    mean, deviation = f"{statistics.mean(values):.4f}", f"{statistics.stdev(values):.4f}"
    page = (tmp_path / "out/tables.md").read_text()
    assert (
        f"| official_bert, 2018's rule | 5e-5 | 5 | {mean} ± {deviation} | 0.5000 ± 0.0000 | 0.5100, 0.6100, 0.7100 |"
        in page
    )
    assert (
        "| Hugging Face PyTorch, bias-corrected AdamW | 3e-5 | 5 | 0.8300 ± 0.0158 | 0.5000 ± 0.0000 | 0.6100, "
        "0.8100, 0.7100 |" in page
    )


@pytest.mark.slow
def test_killed_and_failed_runs_are_done_again_and_finished_ones_are_not(compare, tmp_path):
    for name in ("kill_at_3", "fail_at_6"):
        (tmp_path / name).touch()
    assert compare().returncode < 0
    results = tmp_path / "out/results.jsonl"
    assert len(results.read_text().splitlines()) == 2
    results.write_text(results.read_text() + '{"name": "mr')  # as a kill leaves a line
    done = compare()
    assert (
        done.returncode == 1
        and "1 runs failed" in done.stderr
        and "its output is in build/quality/mrpc_" in done.stderr
    )
    assert compare().returncode == 0 and len(results.read_text().splitlines()) == 21
    page, ledger = (tmp_path / "out/tables.md").read_text(), (tmp_path / "ledger.txt").read_text()
    assert len(ledger.splitlines()) == 23  # a killed and a failed one
    assert compare().returncode == 0 and (tmp_path / "ledger.txt").read_text() == ledger
    (tmp_path / "out/tables.md").unlink()
    assert compare("--norun").returncode == 0 and (tmp_path / "out/tables.md").read_text() == page


def test_a_line_that_is_no_result_and_a_name_that_is_no_comparison_are_refused(compare, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out/results.jsonl").write_text("[]\n")
    done = compare("--norun")
    assert done.returncode == 1 and done.stderr.strip().endswith(
        "out/results.jsonl:1: expected the result of a run as JSON, got '[]'"
    )
    done = compare("--only=mrcp")
    assert done.returncode == 1 and "error: --only: expected names of mrpc, rte," in done.stderr
