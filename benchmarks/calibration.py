"""Measures what a temperature does: trains on some rows of SST-2, calibrates on others, and measures the calibration
error on the development set before and after, and the share of rows that are answered at a target accuracy.

    make minilm
    python benchmarks/calibration.py --data=glue/SST-2 --init_checkpoint=MODEL_FOLDER

Each seed's result is a line of --results_file; the same command again does the seeds that are missing there. The
picture shows the first seed.
"""

import json
import os
import pathlib
import shutil

import numpy as np
from absl import app, flags

ROOT = pathlib.Path(__file__).parent.parent
FLAGS = flags.FLAGS
flags.DEFINE_string("data", None, "The folder of SST-2, with train.tsv and dev.tsv.", required=True)
flags.DEFINE_string("init_checkpoint", None, "The weights to begin with.", required=True)
flags.DEFINE_integer("rows", 8000, "Rows to train on.")
flags.DEFINE_integer("held_out", 2000, "Other rows to calibrate on.")
flags.DEFINE_integer("seeds", 3, "Seeds: 1, 2, ... Each draws its rows.")
flags.DEFINE_float("epochs", 3.0, "Passes over the rows.")
flags.DEFINE_float("target", 0.95, "The accuracy that answers above the threshold shall have.")
flags.DEFINE_string("results_file", str(ROOT / "docs/results/calibration.jsonl"), "A line is added for each seed.")
flags.DEFINE_string("picture", str(ROOT / "docs/images/calibration.png"), "The picture of the first seed.")
flags.DEFINE_string("work_dir", "build/calibration", "The folder of the run in progress.")


def read_rows(name: str) -> list[dict]:
    """The rows of a file of SST-2."""
    lines = pathlib.Path(FLAGS.data, name).read_text(encoding="utf-8").splitlines()[1:]
    return [{"text": text, "label": label} for text, _, label in (line.rpartition("\t") for line in lines)]


def error(confidence: np.ndarray, right: np.ndarray) -> list[float]:
    """The calibration error in 15 bins, and the ends of its interval in 1,000 resamples of the rows."""
    from official_bert.reports.comparison import bootstrap_intervals
    from official_bert.reports.statistics import expected_calibration_error, reliability

    def measure(rows: np.ndarray) -> dict[str, float]:
        return {"error": expected_calibration_error(reliability(confidence[rows], right[rows]))}

    return [measure(np.arange(len(right)))["error"], *bootstrap_intervals(measure, len(right), 1000, 0)["error"]]


def run(seed: int) -> dict:
    """Trains and calibrates with one seed; returns what the development set shows."""
    import keras
    import scipy.special

    import official_bert

    keras.backend.clear_session()
    shutil.rmtree(FLAGS.work_dir, ignore_errors=True)
    rows, dev = read_rows("train.tsv"), read_rows("dev.tsv")
    order = np.random.default_rng(seed).permutation(len(rows))[: FLAGS.rows + FLAGS.held_out]
    # A word or two that stand in both parts are no rows of the other one.
    seen = {rows[number]["text"].strip() for number in order[: FLAGS.rows]}
    held_out = [rows[number] for number in order[FLAGS.rows :] if rows[number]["text"].strip() not in seen]
    tuned = official_bert.fine_tune(
        "classification",
        train=[rows[number] for number in order[: FLAGS.rows]],
        eval=held_out,
        init_checkpoint=FLAGS.init_checkpoint,
        output_dir=FLAGS.work_dir,
        calibrate=True,
        target_accuracy=FLAGS.target,
        max_seq_length=64,
        batch_size=32,
        epochs=FLAGS.epochs,
        learning_rate=5e-5,
        eval_epochs=0.0,
        answer_with="last",
        seed=seed,
    )
    answers = tuned.predictor([row["text"] for row in dev])
    logits = np.array([answer["logits"] for answer in answers])
    right = np.array([answer["label"] == row["label"] for answer, row in zip(answers, dev)])
    before = scipy.special.softmax(logits, axis=-1).max(axis=-1)
    after = np.array([max(answer["probabilities"].values()) for answer in answers])
    answered = ~np.array([answer["abstains"] for answer in answers])
    if seed == 1:
        draw(before, after, right, answered.mean())
    return {
        "seed": seed,
        "rows": FLAGS.rows,
        "held_out": len(held_out),
        "epochs": FLAGS.epochs,
        "target": FLAGS.target,
        "accuracy": right.mean(),
        "temperature": tuned.metrics["temperature"],
        "abstain_below": tuned.metrics["abstain_below"],
        "error_before": error(before, right),
        "error_after": error(after, right),
        "coverage": answered.mean(),
        "accuracy_of_answers": right[answered].mean(),
    }


def draw(before: np.ndarray, after: np.ndarray, right: np.ndarray, coverage: float) -> None:
    """Draws reliability before and after, and accuracy against coverage."""
    import matplotlib.pyplot as plt

    from official_bert.reports.calibration import coverage_curve
    from official_bert.reports.statistics import reliability

    figure, (left, other) = plt.subplots(1, 2, figsize=(10, 4))
    left.plot([0.5, 1], [0.5, 1], color="gray", linestyle=":")
    for name, confidence in (("before", before), ("after", after)):
        bins = reliability(confidence, right)
        left.plot([part.confidence for part in bins], [part.accuracy for part in bins], marker="o", label=name)
    left.set(xlabel="probability of the answer", ylabel="share of right answers", title="Reliability, 15 bins")
    left.legend()
    _, counts, shares = coverage_curve(after, right)
    other.plot(counts / len(right), shares)
    other.axvline(coverage, color="gray", linestyle=":", label="answered, as the threshold says")
    other.axhline(FLAGS.target, color="gray", linestyle="--", label="target accuracy")
    other.set(xlabel="share of rows that are answered", ylabel="share of right answers", title="Coverage and accuracy")
    other.legend()
    figure.tight_layout()
    os.makedirs(os.path.dirname(FLAGS.picture) or ".", exist_ok=True)
    figure.savefig(FLAGS.picture, dpi=110)


def main(_) -> None:
    """Does the missing seeds, and prints a table."""
    path = pathlib.Path(FLAGS.results_file)
    done = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []
    for seed in range(1, FLAGS.seeds + 1):
        if seed not in {row["seed"] for row in done}:
            done.append(json.loads(json.dumps(run(seed), default=float)))
            path.parent.mkdir(parents=True, exist_ok=True)
            with open(path, "a", encoding="utf-8") as file:
                file.write(json.dumps(done[-1]) + "\n")
    print("| seed | accuracy | temperature | error before | error after | answered | accuracy of answers |")
    print("|---|---|---|---|---|---|---|")
    for row in done:
        errors = ["{:.4f} [{:.4f}, {:.4f}]".format(*row[name]) for name in ("error_before", "error_after")]
        shares = [f"{row[name]:.3f}" for name in ("coverage", "accuracy_of_answers")]
        print(f"| {row['seed']} | {row['accuracy']:.3f} | {row['temperature']:.3f} | {' | '.join(errors + shares)} |")


if __name__ == "__main__":
    app.run(main)
