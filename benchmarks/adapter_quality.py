r"""Compares adapters with the training of the whole model, and with `peft` on PyTorch, by their quality and time.

    make venv-torch minilm
    python benchmarks/adapter_quality.py --data=FOLDER --init_checkpoint=MODEL_FOLDER --results_file=adapters.jsonl

FOLDER holds `glue/MRPC` and `glue/SST-2` as published. Each run is one `benchmarks/finetuning.py` command, and its
result one line of --results_file; the same command again does the runs that are missing there. The arrangements of a
seed take turns, and all have AdamW with bias correction, the same steps, rows and truncation. A difference is the mean
over seeds, with its 95 % interval by Student's t.
"""

import itertools
import json
import os
import pathlib
import statistics
import subprocess
import sys

import numpy as np
from absl import app, flags

ROOT = pathlib.Path(__file__).parent.parent
FLAGS = flags.FLAGS
flags.DEFINE_string("data", None, "The folder of the data.", required=True)
flags.DEFINE_string("init_checkpoint", None, "A Hugging Face folder.", required=True)
flags.DEFINE_string("results_file", None, "A line is added to this file for each run.", required=True)
flags.DEFINE_string("work_dir", "build/adapter_quality", "The folder for runs and parts of data.")
flags.DEFINE_string("torch_python", str(ROOT / ".venv-torch/bin/python"), "Python with PyTorch, transformers and peft.")
flags.DEFINE_integer("seeds", 3, "Runs of each arrangement.")
flags.DEFINE_integer("rows", 8000, "The first rows of a training part that are read.")
flags.DEFINE_integer("max_seq_length", 128, "Longest input.")
flags.DEFINE_float("epochs", 3.0, "Passes over the training data.")
flags.DEFINE_integer("threads", 0, "Threads of a run; 0: as many as cores.")
flags.DEFINE_list("only", ["mrpc", "sst2"], "Data sets.")
flags.DEFINE_list("sides", ["ours", "theirs"], "Whose runs are done.")
flags.DEFINE_list("names", [], "Arrangements of adapters that run; none: all.")
flags.DEFINE_enum("precision", "bfloat16", ["bfloat16", "float32"], "Of all sides.")
flags.DEFINE_float("learning_rate", 5e-5, "Peak of the whole model's.")
flags.DEFINE_float("adapters_rate", 1e-3, "Peak of adapters'.")
TASKS = {"mrpc": ("MRPC", ("f1", "accuracy")), "sst2": ("SST-2", ("accuracy",))}
WHOLE = "the whole model"
ADAPTERS = {"query and value": "{rank: 8, alpha: 16}", "all-linear": "{rank: 8, alpha: 16, target_modules: all-linear}"}
ARRANGEMENTS = {
    (WHOLE, "ours"): "null",
    **{(name, side): value for name, value in ADAPTERS.items() for side in ("ours", "theirs")},
}
SIDES = {"ours": "official_bert", "theirs": "peft"}
T_95 = {1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776}  # Student's t by degrees of freedom


def train_file(task: str) -> str:
    """Returns the training data of a task: the first rows."""
    source, part = (
        pathlib.Path(*parts)
        for parts in ((FLAGS.data, "glue", TASKS[task][0], "train.tsv"), (FLAGS.work_dir, f"{task}_{FLAGS.rows}.tsv"))
    )
    part.parent.mkdir(parents=True, exist_ok=True)
    with source.open(encoding="utf-8") as file:
        part.write_text("".join(itertools.islice(file, FLAGS.rows + 1)), encoding="utf-8")
    return str(part)


def execute(task: str, name: str, side: str, seed: int) -> dict:
    """Runs a training in a process; returns its line of the results."""
    result = os.path.join(FLAGS.work_dir, "result.json")
    rate = FLAGS.learning_rate if name == WHOLE else FLAGS.adapters_rate
    command = [
        sys.executable,
        str(ROOT / "benchmarks/finetuning.py"),
        f"--task={task}",
        f"--train_file={train_file(task)}",
        f"--eval_file={pathlib.Path(FLAGS.data, 'glue', TASKS[task][0], 'dev.tsv')}",
        f"--init_checkpoint={FLAGS.init_checkpoint}",
        f"--sides={side}",
        f"--first_seed={seed}",
        f"--epochs={FLAGS.epochs}",
        f"--max_seq_length={FLAGS.max_seq_length}",
        f"--precision={FLAGS.precision}",
        f"--threads={FLAGS.threads}",
        f"--learning_rate={rate}",
        "--set=optimizer.name=adamw_bias_corrected",
        f"--set=training.adapters={ARRANGEMENTS[name, side]}",
        f"--work_dir={os.path.join(FLAGS.work_dir, 'run')}",
        f"--torch_python={FLAGS.torch_python}",
        f"--result_file={result}",
    ]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"error: {task}, {name}, {side}: {(done.stderr.strip().splitlines() or ['no message'])[-1]}")
    [measured] = json.loads(pathlib.Path(result).read_text(encoding="utf-8"))[side]
    return {
        "task": task,
        "name": name,
        "side": side,
        "seed": seed,
        "rate": rate,
        "seconds": round(measured["seconds"], 1),
        "metrics": measured["metrics"],
    }


def interval(values: list[float]) -> str:
    """Returns the mean of paired differences and half the width of its 95 % interval."""
    half = T_95[len(values) - 1] * statistics.stdev(values) / len(values) ** 0.5 if len(values) > 1 else np.nan
    return f"{statistics.mean(values):+.4f} ± {half:.4f}"


def table(task: str, results: list[dict]) -> str:
    """Returns the runs of a task in Markdown."""
    title, metrics = TASKS[task]
    runs = {(line["name"], line["side"], line["seed"]): line for line in results if line["task"] == task}
    lines = [
        f"| {title} | {' | '.join(metrics)} | {metrics[0]} - the whole model's | its time / this time |",
        "|---" * (len(metrics) + 3) + "|",
    ]
    for name, side in ARRANGEMENTS:
        seeds = [seed for seed in range(1, FLAGS.seeds + 1) if {(name, side, seed), (WHOLE, "ours", seed)} <= set(runs)]
        if not seeds:
            continue
        mine, whole = [runs[name, side, seed] for seed in seeds], [runs[WHOLE, "ours", seed] for seed in seeds]
        cells = [
            f"{statistics.mean(values):.4f} ± {statistics.stdev(values) if len(values) > 1 else 0:.4f}"
            for values in ([run["metrics"][metric] for run in mine] for metric in metrics)
        ]
        more = (
            ["", ""]
            if name == WHOLE
            else [
                interval([a["metrics"][metrics[0]] - b["metrics"][metrics[0]] for a, b in zip(mine, whole)]),
                ", ".join(f"{b['seconds'] / a['seconds']:.2f}" for a, b in zip(mine, whole)),
            ]
        )
        lines.append(f"| {SIDES[side]}, {name} | {' | '.join([*cells, *more])} |")
    lines.append("")
    for name in ADAPTERS:
        pairs = [
            [runs[name, side, seed]["metrics"][metrics[0]] for side in SIDES]
            for seed in range(1, FLAGS.seeds + 1)
            if {(name, side, seed) for side in SIDES} <= set(runs)
        ]
        if pairs:
            lines.append(f"{name}: {metrics[0]} of official_bert - peft {interval([a - b for a, b in pairs])}")
    return "\n".join(lines) + "\n"


def main(_) -> None:
    """Does the missing runs, seed after seed; prints the tables."""
    path = pathlib.Path(FLAGS.results_file)
    results = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []
    done = {(line["task"], line["name"], line["side"], line["seed"]) for line in results}
    for seed, task, (name, side) in itertools.product(range(1, FLAGS.seeds + 1), FLAGS.only, ARRANGEMENTS):
        if side in FLAGS.sides and (not FLAGS.names or name in FLAGS.names) and (task, name, side, seed) not in done:
            results.append(execute(task, name, side, seed))
            print(results[-1], file=sys.stderr, flush=True)
            with path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(results[-1]) + "\n")
    print("\n".join(table(task, results) for task in FLAGS.only))


if __name__ == "__main__":
    app.run(main)
