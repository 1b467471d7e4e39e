"""Two runs compared on one file."""

import json

import pytest
from commands import imported_tool, run_here
from made_finetuning import make_config

from official_bert.config import to_dict
from official_bert.interface.finetuning import fine_tune
from official_bert.run_folder import RunFolder

ROWS = [
    {"text": f"{word} film {number}", "label": label}
    for number in range(8)
    for word, label in (("good", "yes"), ("bad", "no"))
]


def compare(*arguments):
    return run_here("tools/compare_runs.py", *map(str, arguments))


def begin(folder, task="classification", **options):
    """Writes the configuration of a run without weights."""
    folder.mkdir()
    RunFolder(str(folder)).write_config(make_config(task, options=options))
    return folder


def test_what_cannot_be_compared_is_refused_before_anything_is_answered(tmp_path):
    first, other = begin(tmp_path / "a"), begin(tmp_path / "b", "squad")
    file = tmp_path / "dev.csv"
    for arguments, message in (
        ((first,), "expected two runs to compare"),
        ((first, other), "--eval_file: expected the file"),
        ((first, first, f"--eval_file={file}"), "expected another run than"),
        ((first, tmp_path / "none", f"--eval_file={file}"), "expected the output folder of a training run"),
        ((first, other, f"--eval_file={file}"), "expected two runs of one task, got classification"),
    ):
        done = compare(*arguments)
        assert done.returncode == 1 and message in done.stderr and "Traceback" not in done.stderr, done.stderr


def test_a_task_and_one_that_is_derived_from_it_are_comparable(tmp_path, monkeypatch):
    (tmp_path / "own_project").mkdir()
    (tmp_path / "own_project/own_texts.py").write_text(
        "from official_bert.tasks.texts import classification\n\n\nclass Task(classification.Task):\n    pass\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    tasks = ("classification", "own_project.own_texts", "squad")
    base, derived, other = (RunFolder(str(begin(tmp_path / name, task))) for name, task in zip("abc", tasks))
    with imported_tool("compare_runs") as tool:
        for pair in ((base, derived), (derived, base)):
            tool._check_comparable(["a", "b"], pair)
        with pytest.raises(ValueError, match="expected two runs of one task"):
            tool._check_comparable(["b", "c"], (derived, other))


@pytest.mark.slow
def test_scores_interval_test_and_differing_rows_of_two_runs_are_printed(tmp_path):
    base = to_dict(make_config("classification"))
    for name, epochs in (("a", 1.0), ("b", 4.0)):
        fine_tune(
            "classification",
            train=ROWS,
            eval=ROWS[:4],
            output_dir=tmp_path / name,
            report=lambda _: None,
            allow_same_data=True,
            epochs=epochs,
            max_seq_length=16,
            vocab_file=base["tokenizer"]["vocab_file"],
            learning_rate=1e-2,
            batch_size=4,
            dropout=0.0,
            **{f"model.{key}": value for key, value in base["model"].items() if value is not None},
        )
    file, written = tmp_path / "dev.csv", tmp_path / "differing.jsonl"
    file.write_text("text,label\n" + "".join(f"{row['text']} again,{row['label']}\n" for row in ROWS))
    done = compare(tmp_path / "a", tmp_path / "b", f"--eval_file={file}", f"--output_file={written}")
    assert done.returncode == 0, done.stderr
    assert "16 rows" in done.stdout and "McNemar's exact test: p = " in done.stdout and "accuracy" in done.stdout, (
        done.stdout
    )
    rows = [json.loads(line) for line in written.read_text().splitlines()]
    assert f"answers that differ: {len(rows)} of 16" in done.stdout
    assert all(row["first"] != row["second"] and row["text"] == f"{ROWS[row['row']]['text']} again" for row in rows)
