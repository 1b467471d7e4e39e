r"""Draws held-out losses of pre-trainings against their time, in units of the baseline's: how soon a recipe reaches the
same loss.

    python tools/run_ablations.py --suites_file=budget.yaml --scale=wikipedia --corpus=... --held_out_corpus=... \
        --work_dir=budget
    python benchmarks/budget.py --work_dir=budget --baseline=baseline --contenders=neighbours,neighbours_masks_30

The losses are those of `results.jsonl` (other seeds of a row are called ROW_seed_2, ROW_seed_3). Runs of different
hours cannot tell times: the seconds of a step are measured here, by the rows' own commands, configurations and records,
cut to --steps steps, by turns. Times in the table are in whole runs of the baseline; the last column says when each
seed came down to the baseline's mean last loss.
"""

import json
import pathlib
import statistics
import subprocess
import sys
import tempfile

import yaml
from absl import app, flags
from run_rates import rate_of

ROOT = pathlib.Path(__file__).resolve().parent.parent
FLAGS = flags.FLAGS
flags.DEFINE_string("work_dir", None, "That of tools/run_ablations.py.", required=True)
flags.DEFINE_string("results", "", "The finished rows (default: results.jsonl in --work_dir).")
flags.DEFINE_string("baseline", None, "The row whose time is 1.", required=True)
flags.DEFINE_list("contenders", None, "The rows beside it.", required=True)
flags.DEFINE_integer("turns", 3, "Measured runs of each row.", lower_bound=1)
flags.DEFINE_integer("steps", 160, "Steps of such a run.", lower_bound=100)
flags.DEFINE_string("picture", str(ROOT / "docs/images/budget.png"), "The picture to write.")
LOGGED = 20  # steps between two measured rates


def seconds_of_a_step(row: str) -> float:
    """Runs the first steps of a row's pre-training and returns the median time of one."""
    stage = json.loads((pathlib.Path(FLAGS.work_dir) / "rows" / row / "pretraining.json").read_text(encoding="utf-8"))
    config = stage["config"]
    if config.get("phases"):
        sys.exit(f"error: {row}: its steps have several lengths; expected a row without phases")
    config["training"] |= {"steps": FLAGS.steps, "log_every": LOGGED, "steps_per_loop": LOGGED, "eval_every": 0}
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder)
        (path / "config.yaml").write_text(yaml.safe_dump(config), encoding="utf-8")
        flags = [
            part.replace("WORK", str(pathlib.Path(FLAGS.work_dir).resolve()))
            for part in stage["command"]
            if part.startswith(("--input_file=", "--vocab_file="))
        ]
        done = subprocess.run(
            [
                sys.executable,
                "-m",
                "official_bert.run_pretraining",
                *flags,
                f"--config={path / 'config.yaml'}",
                f"--output_dir={path / 'run'}",
            ],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            sys.exit(f"error: {row}: {done.stderr.strip().splitlines()[-1]}")
        return config["training"]["batch_size"] / rate_of(path / "run")


def read_rows() -> dict[str, list[dict]]:
    """Returns the finished rows, with all of their seeds."""
    rows: dict[str, list[dict]] = {}
    path = pathlib.Path(FLAGS.results or pathlib.Path(FLAGS.work_dir) / "results.jsonl")
    if not path.exists():
        sys.exit(f"error: {path}: no such file; tools/run_ablations.py writes results.jsonl in its --work_dir")
    for line in path.read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        rows.setdefault(row["row"].partition("_seed_")[0], []).append(row)
    for name in (FLAGS.baseline, *FLAGS.contenders):
        if name not in rows:
            sys.exit(f"error: {path}: expected the row {name}, got {', '.join(rows)}")
    return rows


def draw(rows: dict[str, list[dict]], lengths: dict[str, float]) -> None:
    """Draws a line for each seed; the dashed one is the loss that is to be reached. `lengths`: of a step, in runs of
    the baseline.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 6), layout="tight")
    axes = figure.add_subplot()
    for color, (name, length) in enumerate(lengths.items()):
        for number, row in enumerate(rows[name]):
            axes.plot(
                [step * length for step, _ in row["curve"]],
                [loss for _, loss in row["curve"]],
                color=f"C{color}",
                linewidth=1.2,
                marker=".",
                label=None if number else f"{row['title']} ({len(rows[name])} seed{'s' * (len(rows[name]) > 1)})",
            )
    axes.axhline(final_loss(rows[FLAGS.baseline]), color="gray", linestyle="--", linewidth=1)
    axes.axvline(0.5, color="gray", linestyle="--", linewidth=1)
    axes.set(xlabel="time, in whole runs of the baseline", ylabel="held-out loss of masked words, nats")
    axes.legend()
    figure.savefig(FLAGS.picture, dpi=90)


def final_loss(seeds: list[dict]) -> float:
    """Returns the mean over seeds of the held-out loss after the last step."""
    return statistics.fmean(row["held_out"]["mlm_loss"] for row in seeds)


def steps_to(loss: float, curve: list[tuple[int, float]]) -> float | None:
    """Returns after how many steps a curve comes down to a loss, on straight lines between its points; None if it does
    not.
    """
    before: tuple[float, float] | None = None
    for step, now in curve:
        if now <= loss:
            return step if before is None else before[0] + (step - before[0]) * (before[1] - loss) / (before[1] - now)
        before = step, now
    return None


def main(_) -> None:
    """Measures, prints a table in Markdown, draws."""
    rows, names = read_rows(), [FLAGS.baseline, *FLAGS.contenders]
    seconds: dict[str, list[float]] = {name: [] for name in names}
    for turn in range(FLAGS.turns):
        for name in names:
            seconds[name].append(seconds_of_a_step(name))
        print(f"turn {turn + 1} of {FLAGS.turns}", file=sys.stderr, flush=True)
    whole, goal = rows[FLAGS.baseline][0]["steps"], final_loss(rows[FLAGS.baseline])
    headings = [
        "",
        "steps",
        "time of a step",
        "time of the run",
        "held-out loss, each seed",
        "mean",
        f"{goal:.3f} reached after",
    ]
    print(f"| {' | '.join(headings)} |\n{'|---' * len(headings)}|")
    lengths = {}
    for name in names:
        ratios = [one / base for one, base in zip(seconds[name], seconds[FLAGS.baseline])]
        lengths[name] = statistics.median(ratios) / whole
        losses = ", ".join(f"{row['held_out']['mlm_loss']:.3f}" for row in rows[name])
        reached = ", ".join(
            "never" if steps is None else f"{steps * lengths[name]:.2f}"
            for steps in (steps_to(goal, row["curve"]) for row in rows[name])
        )
        print(
            f"| {rows[name][0]['title']} | {rows[name][0]['steps']:,} | {min(ratios):.2f} to {max(ratios):.2f} | "
            f"{lengths[name] * rows[name][0]['steps']:.2f} | {losses} | {final_loss(rows[name]):.3f} | {reached} |"
        )
    draw(rows, lengths)


if __name__ == "__main__":
    app.run(main)
