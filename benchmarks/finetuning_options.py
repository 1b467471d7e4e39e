"""Tries each option of "what learns, and how fast" on few rows of MRPC or CoLA, against training without it; writes a
table in Markdown.

    make minilm
    python benchmarks/finetuning_options.py --data=glue/MRPC --init_checkpoint=MODEL_FOLDER --train_share=0.1 --seeds=3

Each run's result is a line of --results_file; the same command again does the runs that are missing there.
"""

import json
import os
import pathlib
import shutil
import statistics
from collections.abc import Mapping, Sequence

from absl import app, flags

ROOT = pathlib.Path(__file__).parent.parent
FLAGS = flags.FLAGS
flags.DEFINE_string("task", "mrpc", "A data set of GLUE.")
flags.DEFINE_string("data", None, "Its folder.", required=True)
flags.DEFINE_string("init_checkpoint", None, "The weights to begin with.", required=True)
flags.DEFINE_float("train_share", 0.1, "Share of the training rows.")
flags.DEFINE_integer("seeds", 3, "Seeds of each variant: 1, 2, ...")
flags.DEFINE_float("epochs", 3.0, "Passes over these rows.")
flags.DEFINE_integer("batch_size", 16, "Rows of a step.")
flags.DEFINE_string(
    "results_file", str(ROOT / "docs/results/finetuning_options.jsonl"), "A line is added to this file for each run."
)
flags.DEFINE_string(
    "table_file", str(ROOT / "docs/results/finetuning_options.md"), "The table of its lines for these settings."
)
flags.DEFINE_string("work_dir", "build/finetuning_options", "The folder of the run in progress.")
VARIANTS: Mapping[str, Mapping[str, object]] = {
    "without any": {},
    "training.freeze: embeddings": {"training.freeze": "embeddings"},
    "training.freeze: embeddings, layers 0-2": {"training.freeze": "embeddings, layers 0-2"},
    "training.freeze: encoder": {"training.freeze": "encoder"},
    "optimizer.layer_decay: 0.9": {"optimizer.layer_decay": 0.9},
    "optimizer.layer_decay: 0.7": {"optimizer.layer_decay": 0.7},
    "optimizer.head_rate: 10": {"optimizer.head_rate": 10.0},
    "training.reinitialize_layers: 1": {"training.reinitialize_layers": 1},
    "training.reinitialize_layers: 2": {"training.reinitialize_layers": 2},
    "options.label_smoothing: 0.1": {"options.label_smoothing": 0.1},
}


def settings() -> dict:
    """What every run of the table has in common."""
    return {
        "task": FLAGS.task,
        "model": os.path.basename(os.path.normpath(FLAGS.init_checkpoint)),
        "train_share": FLAGS.train_share,
        "epochs": FLAGS.epochs,
        "batch_size": FLAGS.batch_size,
    }


def read_results() -> list[dict]:
    """The lines of the results with these settings."""
    path = pathlib.Path(FLAGS.results_file)
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    return [row for row in map(json.loads, lines) if row["settings"] == settings()]


def run(variant: str, seed: int) -> dict:
    """Trains one variant with one seed and measures its last weights on the development set."""
    import keras

    import official_bert

    keras.backend.clear_session()
    shutil.rmtree(FLAGS.work_dir, ignore_errors=True)
    common = {
        "options.train_share": FLAGS.train_share,
        "training.epochs": FLAGS.epochs,
        "training.batch_size": FLAGS.batch_size,
        "training.log_every": 1000,
        "training.eval_epochs": 0.0,
        "training.answer_with": "last",
        "training.report": False,
        "seed": seed,
    }
    tuned = official_bert.fine_tune(
        FLAGS.task,
        data_dir=FLAGS.data,
        init_checkpoint=FLAGS.init_checkpoint,
        output_dir=FLAGS.work_dir,
        **{**common, **VARIANTS[variant]},
    )
    return {"settings": settings(), "variant": variant, "seed": seed, "metrics": dict(tuned.metrics)}


def table(rows: Sequence[Mapping]) -> str:
    """The table: mean and standard deviation of each variant over its seeds."""
    metric = {"mrpc": "f1", "cola": "matthews", "stsb": "spearman"}.get(FLAGS.task, "accuracy")
    lines = [
        "# Options of fine-tuning, measured",
        "",
        f"`{settings()}`",
        "",
        f"| option | {metric} | runs |",
        "|---|---|---|",
    ]
    for variant in VARIANTS:
        values = [row["metrics"][metric] for row in rows if row["variant"] == variant]
        if values:
            spread = statistics.stdev(values) if len(values) > 1 else 0.0
            lines.append(
                f"| {variant} | {statistics.fmean(values):.3f} ± {spread:.3f} | "
                f"{', '.join(f'{value:.3f}' for value in values)} |"
            )
    return "\n".join(lines) + "\n"


def main(_) -> None:
    """Does the missing runs, all variants of the first seed first."""
    for seed in range(1, FLAGS.seeds + 1):
        for variant in VARIANTS:
            if any((row["variant"], row["seed"]) == (variant, seed) for row in read_results()):
                continue
            print(f"{variant}, seed {seed}", flush=True)
            row = run(variant, seed)
            pathlib.Path(FLAGS.results_file).parent.mkdir(parents=True, exist_ok=True)
            with open(FLAGS.results_file, "a", encoding="utf-8") as file:
                file.write(json.dumps(row) + "\n")
            pathlib.Path(FLAGS.table_file).write_text(table(read_results()), encoding="utf-8")
    print(table(read_results()))


if __name__ == "__main__":
    app.run(main)
