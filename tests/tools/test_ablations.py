"""The ablations: what each row trains and generates, the tables; a suite of the smallest size, killed and continued."""

import json
import pathlib
import re
import signal
import subprocess
import sys
import time

import pytest
import yaml
from commands import imported_tool, run_here

from official_bert.config import Config, inherited_and_own, merge
from official_bert.tasks.loading import load_task
from official_bert.tools.ablations.plan import Plan, generator_flags, half_of, steps_of, usually_masked
from official_bert.typed_values import build

ROOT = pathlib.Path(__file__).parent.parent.parent
TOOL, REPORT = ROOT / "tools" / "run_ablations.py", ROOT / "tools" / "report_ablations.py"
SCALES = ("small", "base", "smoke")


@pytest.fixture(scope="module")
def plans():
    return {scale: Plan.read(str(ROOT), scale) for scale in SCALES}


@pytest.mark.slow
@pytest.mark.parametrize("scale", SCALES)
def test_every_row_of_every_scale_is_a_valid_configuration(plans, scale):
    plan = plans[scale]
    assert set(plan.scale.epochs) <= set(plan.tasks)
    for row in plan.rows:
        load_task(build(Config, plan.pretraining(row)))
        assert plan.tasks_of(row)
        for task in plan.tasks_of(row):
            load_task(build(Config, plan.finetuning(row, task)))


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", ": expected a mapping, got None"),
        ("[[1]]", r": expected a mapping, got \[\[1\]\]"),
        ("a: [1, ", ": not valid YAML"),
        ("\0", ": not valid YAML"),
        ("scales: {}", r": missing keys \['tasks', 'rows', 'task_sets', 'suites'\]"),
        ("!!python/object/apply:os.system ['true']", ": not valid YAML"),
        ("a: !!int x", ": not valid YAML"),
        ("{scales: 1, tasks: {}, rows: {}, task_sets: {}, suites: {}}", "scales: expected a mapping, got 1"),
        ("{scales: {}, tasks: {}, rows: {}, task_sets: {}, suites: {}}", "--scale: expected one of , got small"),
        (
            "{scales: {small: {pretraining: x}}, tasks: {}, rows: {}, task_sets: {}, suites: {}}",
            r"scales.small: missing keys \['vocab_size', ",
        ),
        (
            "{scales: {small: {pretraining: x, vocab_size: 9, dupe_factor: 1}}, tasks: {}, rows: {a: {title: A}}, "
            "task_sets: {}, suites: {s: [b]}}",
            ": suites: expected names of a, got b",
        ),
        (
            "{scales: {small: {pretraining: x, vocab_size: 9, dupe_factor: 1}}, tasks: {}, rows: {a: {title: A}}, "
            "task_sets: {}, suites: {}}",
            ": rows: expected names of , got usual",
        ),
    ],
)
def test_another_file_than_one_of_suites_is_refused(tmp_path, text, told):
    (tmp_path / "other.yaml").write_text(text)
    with pytest.raises(ValueError, match=told):
        Plan.read(str(ROOT), "small", str(tmp_path / "other.yaml"))


def test_rows_of_the_budget_are_valid_and_measured_on_the_same_masks():
    plan = Plan.read(str(ROOT), "wikipedia", "budget.yaml")
    held_out = generator_flags(usually_masked(plan.pretraining("baseline")), {}, 1)
    for row in plan.rows:
        config = plan.pretraining(row)
        load_task(build(Config, config))
        assert config["training"]["precision"] == "bfloat16" and plan.tasks_of(row) == []
        assert bool(config["training"]["steps"]) != bool(config.get("phases"))  # a run takes its steps from one of them
        flags = generator_flags(usually_masked(config), {}, 1)[-1]
        assert [flag for flag in flags if "predictions" not in flag] == [
            flag for flag in held_out[0] if "predictions" not in flag
        ]
    assert "--masked_lm_prob=0.3" in generator_flags(plan.pretraining("masks_30"), {}, 3)[0]
    (trained_on,) = generator_flags(plan.pretraining("neighbours_kept_20"), plan.rows["neighbours_kept_20"].data, 3)
    assert {"--mask_rate=0.7", "--keep_rate=0.2", "--random_rate=0.1"} <= set(trained_on)
    recipe = merge(*inherited_and_own(str(ROOT / "configs/pretrain/budget.yaml")))
    measured = plan.pretraining("neighbours_masks_30")
    words = {"vocab_size": plan.scale.vocab_size}  # of the vocabulary, which a recipe does not name
    assert build(Config, merge(recipe, {"model": words, "training": {"precision": "bfloat16"}})) == build(
        Config, measured
    )


def test_objectives_and_students_are_valid_and_have_the_same_time():
    times = {"baseline": 80.0, "masked_lm_half": 80.0, "student_words": 40.0}
    plan = Plan.read(str(ROOT), "wikipedia", "objectives.yaml", times)
    for row, entry in plan.rows.items():
        config = plan.pretraining(row)
        load_task(build(Config, config))
        assert not entry.beside or not (plan.rows[entry.beside].config or plan.rows[entry.beside].pretrained)
        assert all(plan.rows[name].config for name in (entry.teacher, entry.task_teacher) if name)
        for task in plan.tasks_of(row):
            load_task(build(Config, plan.finetuning(row, task)))
    assert [steps_of(plan.pretraining(row)) for row in times] == [30_000, 15_000, 60_000]
    plan.check_times(["baseline", "random_weights", "student_words"])
    with pytest.raises(ValueError, match="--step_times: expected the milliseconds of a step of spans"):
        plan.check_times(["baseline", "spans"])
    for row in ("small_alone", "student_words", "student_relations"):  # students are the small model
        assert plan.pretraining(row)["model"] == plan.pretraining("small_alone")["model"]
    assert plan.finetuning("small_random", "mrpc")["model"]["hidden_size"] == 192


@pytest.mark.slow
@pytest.mark.parametrize("file, scale", [("objectives.yaml", "brief"), ("suites.yaml", "small")])
def test_the_stages_of_a_row_are_those_that_are_announced_and_its_records_can_be_made(
    monkeypatch, tmp_path, root, file, scale
):
    with imported_tool("run_ablations") as tool:
        for name in ("best_of", "remove_weights"):
            monkeypatch.setattr(tool, name, str)
        monkeypatch.setattr(tool.Suite, "_files", lambda *_: [])

        class Counted(tool.Stages):
            def run(self, folder, name, command, *_):
                self.stages_left -= 1
                if folder == "records":  # masked as the generator can
                    assert {f"--masking={way}" for way in ("token", "whole_word", "span", "ngram", "dynamic")} & set(
                        command
                    ), command
                return {"values": [], "own": {}, "curve": [], "seconds": 1, "metrics": {}}

        plan = Plan.read(str(root), scale, file, dict.fromkeys(Plan.read(str(root), scale, file).rows, 300.0))
        suite = tool.Suite(plan, Counted(tmp_path, root, {}), {}, tmp_path, 2, 1, "all")
        for row in plan.rows:
            suite.stages.stages_left = suite.count(row)
            suite.make(row)
            assert suite.stages.stages_left == 0, row


def test_halves_of_a_development_set_have_every_row_once():
    table, words = "a\tb\n1\n2\n3\n", "x O\ny O\n\nz O\n\nw O\n"
    assert [half_of(table, part, True) for part in ("first", "second")] == ["a\tb\n1\n3\n", "a\tb\n2\n"]
    assert [half_of(words, part, False) for part in ("first", "second")] == ["x O\ny O\n\nw O\n", "z O\n"]


def test_rows_differ_from_the_baseline_in_what_they_are_about_alone(plans):
    plan = plans["base"]
    baseline = plan.pretraining("no_nsp")
    assert baseline.pop("options")["sentence_loss"] is False
    plain = plan.pretraining("random_weights")
    assert {key: value for key, value in plain.items() if key != "options"} == baseline
    assert plan.pretraining("left_to_right")["model"]["attention"] == "left_to_right"
    assert plan.pretraining("left_to_right")["model"]["num_hidden_layers"] == 12
    assert plan.finetuning("left_to_right_bilstm", "mrpc")["model"]["bilstm_layers"] == 1
    assert [plans[scale].finetuning("baseline", "stsb")["training"]["epochs"] for scale in ("small", "base")] == [
        8.0,
        4.0,
    ]
    assert plans["small"].finetuning("random_weights", "rte")["model"]["hidden_size"] == 192
    assert "hidden_size" not in plans["small"].finetuning("baseline", "rte")["model"]


def test_every_masking_of_table_8_is_there(plans):
    suite = [row for row in plans["small"].suites["masking"] if row != "baseline"]
    for row in suite:
        shares = [float(part) / 100 for part in row.split("_")[1:]]
        masking = plans["small"].pretraining(row)["options"]["masking"]
        assert [masking["mask_rate"], masking["keep_rate"], masking["random_rate"]] == shares
        (flags,) = generator_flags(plans["small"].pretraining(row), {}, 1)
        assert {
            f"--mask_rate={shares[0]}",
            f"--keep_rate={shares[1]}",
            f"--random_rate={shares[2]}",
            "--masking=token",
        } <= set(flags)
    assert len(suite) == 5


def test_generator_flags_are_those_of_the_configuration(plans):
    base = generator_flags(plans["base"].pretraining("sop"), {}, 10)
    assert base == [
        [
            f"--max_seq_length={length}",
            f"--max_predictions_per_seq={predictions}",
            "--sentence_task=sop",
            "--dupe_factor=10",
            "--masking=token",
        ]
        for length, predictions in ((128, 20), (512, 77))
    ]
    assert generator_flags(plans["small"].pretraining("dynamic"), {"masking": "dynamic"}, 1) == [
        ["--max_seq_length=64", "--sentence_task=nsp", "--dupe_factor=1", "--masking=dynamic"]
    ]
    assert "--masking=span" in generator_flags(plans["small"].pretraining("span"), {}, 1)[0]


def test_the_papers_numbers_have_a_value_for_each_column():
    papers = yaml.safe_load((ROOT / "tools" / "ablations" / "paper.yaml").read_text(encoding="utf-8"))
    assert set(papers) == set(Plan.read(str(ROOT), "small").suites)
    for paper in papers.values():
        assert all(len(values) == len(paper["columns"]) for values in paper["rows"].values())
        assert set(paper["matches"].values()) <= set(paper["columns"])


def result(row, values, **more):
    return {
        "row": row,
        "title": row,
        "scale": "small",
        "steps": 6000,
        "objective": "masked_lm",
        "curve": [[500, 6.5], [6000, 5.0]],
        "own": {},
        "held_out": {"mlm_loss": 5.25},
        "tasks": {"sst2": {"metric": "accuracy", "values": values}},
    } | more


@pytest.mark.slow
def test_tables_have_means_intervals_and_the_papers_numbers(tmp_path):
    lines = [
        result("baseline", [0.70, 0.72, 0.74]),
        result("no_nsp", [0.5]),
        result("whole_word", [0.5]) | {"tasks": {"wnut17": {"metric": "f1", "values": [0.18, 0.18]}}},
        result("baseline_at_half", [0.4], steps=3000),  # nothing was measured at its step
        result("left_to_right", [0.6, 0.6], objective="next_token", held_out={}),
        result("baseline", [0.1], scale="base"),
    ]
    (tmp_path / "results.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines), encoding="utf-8")
    done = run_here(str(REPORT), f"--results={tmp_path}/results.jsonl", f"--output_dir={tmp_path}/out")
    assert done.returncode == 0, done.stderr
    table = (tmp_path / "out" / "tables.md").read_text(encoding="utf-8")
    # By hand: the standard deviation is 0.02, t(0.975, 2) is 4.303, so the half-width is 4.303 * 0.02 / sqrt(3) =
    # 0.0497.
    assert "| baseline | 6,000 | 5.000 | 5.250 | 72.0 ± 5.0 | 84.4 | 88.4 | 86.7 | 92.7 | 88.5 |" in table
    assert "| no_nsp | 6,000 | 5.000 | 5.250 | 50.0 | 83.9 |" in table
    assert "| row | steps | own held-out loss | held-out MLM loss | SST-2, accuracy | WNUT-17, F1 |" in table
    assert "| baseline_at_half | 3,000 |  | 5.250 | 40.0 |" in table
    assert "| whole_word | 6,000 | 5.000 | 5.250 |  | 18.0 ± 0.0 |" in table
    assert "| left_to_right | 6,000 | 5.000 (next token) |  | 60.0 ± 0.0 |" in table
    assert "12 layers of 768, 12 heads | 3.99" in table and "### masking (table 8)" in table
    assert (
        (tmp_path / "out" / "tables.csv").read_text(encoding="utf-8").startswith("tasks,row,steps,own held-out loss,")
    )
    assert {path.name for path in (tmp_path / "out").glob("*.png")} == {
        f"{name}.png" for name in ("curves", "tasks", "sizes", "masking", "steps", "data")
    }


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ("{}\n", "results.jsonl:1: expected a row of results in JSON, got '{}'"),
        ("[1]\n", "results.jsonl:1: expected"),
        (json.dumps(result("a", [1.0])) + '\n{"row"', "results.jsonl:2: expected"),
        ("", "holds no row of the scale small"),
    ],
)
def test_broken_results_are_refused_by_line(tmp_path, content, told):
    (tmp_path / "results.jsonl").write_text(content, encoding="utf-8")
    done = run_here(str(REPORT), f"--results={tmp_path}/results.jsonl", f"--output_dir={tmp_path}/out")
    assert done.returncode == 1 and told in done.stderr and not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        (["--suite=nope"], "--suite: expected all or one of tasks"),
        (["--scale=nope"], "--scale: expected one of small, base, smoke, got nope"),
        (["--suite=sizes", "--rows=span"], "--rows: expected rows of sizes"),
        ([], "--corpus: expected a path"),
        (["--data=s3://bucket/data"], "--data=s3://bucket/data: expected a path on this machine"),
    ],
)
def test_wrong_flags_are_one_line(tmp_path, flags, told):
    done = run_here(str(TOOL), f"--work_dir={tmp_path}/work", *flags)
    assert done.returncode == 1 and told in done.stderr and "Traceback" not in done.stderr


def start(work_dir, *more):
    """Starts rows of the smallest size: pre-trained, after a quarter of it, from random weights, left to right with a
    BiLSTM.
    """
    return subprocess.Popen(
        [
            sys.executable,
            str(TOOL),
            "--scale=smoke",
            "--seeds=2",
            "--num_workers=1",
            "--rows=baseline,random_weights,baseline_at_quarter,left_to_right_bilstm",
            f"--work_dir={work_dir}",
            *more,
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=work_dir.parent,
    )


def without_times(path):
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return [{key: value for key, value in row.items() if key != "minutes"} for row in rows]


@pytest.mark.slow
def test_students_have_their_teachers_and_gains(tmp_path):
    done = subprocess.run(
        [
            sys.executable,
            str(TOOL),
            "--suites_file=objectives.yaml",
            "--scale=smoke",
            "--suite=students",
            "--seeds=2",
            "--rows=student_both,small_random",
            "--num_workers=1",
            "--part=first",
            f"--work_dir={tmp_path}/work",
        ],
        check=False,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    config = yaml.safe_load((tmp_path / "work/rows/student_both/sst2-first.yaml").read_text())
    assert (
        "rows/baseline/sst2-first" in config["training"]["teacher"]
        and pathlib.Path(config["training"]["teacher"]).is_dir()
    )
    words = yaml.safe_load((tmp_path / "work/rows/student_words/pretraining.yaml").read_text())
    assert words["training"]["teacher"].endswith("rows/baseline/pretraining")
    table = (tmp_path / "work/report/tables.md").read_text()
    assert "mean gain" in table and re.search(r"student of words and on the tasks.*[+-]\d+\.\d \|", table)


@pytest.mark.slow
def test_a_suite_that_is_killed_goes_on_and_gives_the_same_results(tmp_path):
    whole = start(tmp_path / "whole")
    out, _ = whole.communicate(timeout=900)
    assert whole.returncode == 0, out
    wanted = without_times(tmp_path / "whole" / "results.jsonl")
    assert [row["row"] for row in wanted] == [
        "baseline",
        "random_weights",
        "left_to_right_bilstm",
        "baseline_at_quarter",
    ]
    assert len(wanted[0]["tasks"]["sst2"]["values"]) == 2 and "mlm_loss" in wanted[0]["held_out"]
    assert wanted[0]["curve"][-1][0] == wanted[0]["steps"] == 32
    assert wanted[2]["objective"] == "next_token" and not wanted[2]["held_out"]
    assert wanted[3]["steps"] == 8 and wanted[3]["curve"] == wanted[0]["curve"][:1]
    assert wanted[3]["held_out"]["mlm_loss"] != wanted[0]["held_out"]["mlm_loss"]
    for number, stop in ((signal.SIGKILL, "pretraining"), (signal.SIGTERM, "sst2")):
        killed = start(tmp_path / "killed")
        while f"rows/baseline: {stop}" not in (line := killed.stdout.readline()):
            assert line, "ended early"
        time.sleep(8)
        killed.send_signal(number)
        assert killed.wait(timeout=90) != 0
        time.sleep(2)
    again = start(tmp_path / "killed")
    out, _ = again.communicate(timeout=900)
    assert again.returncode == 0, out
    assert without_times(tmp_path / "killed" / "results.jsonl") == wanted
    assert "about" in out and (tmp_path / "killed" / "report" / "tables.md").exists()
