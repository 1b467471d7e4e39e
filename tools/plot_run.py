"""Draws a metric of training runs from their logs, in training and on held-out data.

    python tools/plot_run.py --run=runs/small --output_file=loss.png --name=mlm_loss
    python tools/plot_run.py --run=runs/small,runs/base --output_file=both.png --name=mlm_loss
"""

from official_bert.command_line import run_main

import os
from typing import TYPE_CHECKING

from absl import flags

from official_bert.files import exists, written_beside
from official_bert.models.run_folder import LOG_FILE
from official_bert.reports import run_sections
from official_bert.reports.pictures import axis_label

if TYPE_CHECKING:
    from matplotlib.axes import Axes

FLAGS = flags.FLAGS
flags.DEFINE_list("run", None, "The output folders of training runs, with commas.", required=True)
flags.DEFINE_string("output_file", None, "The picture to write (.png, .svg, .pdf).", required=True)
flags.DEFINE_string("name", "loss", "What to draw: loss, mlm_loss, mlm_accuracy ...")
flags.DEFINE_string("title", "", "The title of the picture; by default metric and runs.")
flags.DEFINE_float("baseline", None, "A level to draw for comparison, such as the loss of the unigram distribution.")
flags.DEFINE_string("baseline_label", "unigram distribution, held out", "The label of that level.")


def read_curves(path: str, name: str) -> dict[str, list[tuple[int, float]]]:
    """Returns (step, value) of `train/name` and `eval/name` in a run's JSON-lines log; raises ValueError if it has
    neither.
    """
    if not exists(path):
        raise ValueError(f"{path}: no such log; expected the output folder of a training run")
    every = run_sections.read_curves(path)
    curves = {kind: list(every.get(f"{kind}/{name}", {}).items()) for kind in ("train", "eval")}
    if not any(curves.values()):
        raise ValueError(
            f"{path}: holds no {name!r}; it has "
            f"{', '.join(sorted({key.partition('/')[2] for key in every})) or 'no metrics'}"
        )
    return curves


def names_of(runs: list[str]) -> list[str]:
    """Returns a name for each run: the end of its path that tells it from the others. Raises ValueError for a run that
    is given twice.
    """
    paths = [os.path.normpath(run) for run in runs]
    if twice := next((run for run in paths if paths.count(run) > 1), ""):
        raise ValueError(f"--run: expected different runs, got {twice} twice")
    parts = [path.split(os.sep) for path in paths]
    for count in range(1, max(map(len, parts)) + 1):
        names = [os.sep.join(part[-count:]) for part in parts]
        if len(set(names)) == len(names):
            return names
    return paths


def draw(axes: "Axes", runs: dict[str, dict[str, list[tuple[int, float]]]]) -> None:
    """Draws each run in a color: training as a line, evaluations as points on a line, the last one with its value."""
    for number, (run, curves) in enumerate(runs.items()):
        color, prefix = f"C{number}" if len(runs) > 1 else None, f"{run}, " if len(runs) > 1 else ""
        if curves["train"]:
            axes.plot(*zip(*curves["train"]), label=f"{prefix}training", color=color, alpha=0.45 if color else 1.0,
                      marker="." if len(curves["train"]) == 1 else None)
        if curves["eval"]:
            (line,) = axes.plot(*zip(*curves["eval"]), label=f"{prefix}held out", marker="o", markersize=4, color=color)
            step, value = curves["eval"][-1]
            axes.plot([step], [value], marker="o", markersize=9, color=line.get_color())
            axes.annotate(f"{value:.4g}", (step, value), textcoords="offset points", xytext=(0, 9), ha="center",
                          color=line.get_color())


def main(_: list[str]) -> None:
    """Reads the logs and draws them."""
    import matplotlib
    matplotlib.use("Agg")
    from matplotlib import pyplot
    runs = dict(zip(names_of(FLAGS.run), (read_curves(os.path.join(run, LOG_FILE), FLAGS.name) for run in FLAGS.run)))
    with matplotlib.rc_context({"text.parse_math": False}):
        figure, axes = pyplot.subplots(figsize=(7, 4))
        draw(axes, runs)
        if FLAGS.baseline is not None:
            axes.axhline(FLAGS.baseline, color="grey", linestyle="--", label=FLAGS.baseline_label)
        axes.set(xlabel="training step", ylabel=axis_label(FLAGS.name),
                 title=FLAGS.title or f"{axis_label(FLAGS.name, unit=False)}: {', '.join(runs)}")
        axes.legend()
        figure.tight_layout()
        with written_beside(FLAGS.output_file) as temporary:
            figure.savefig(temporary, dpi=100, format=FLAGS.output_file.rpartition(".")[2])
        pyplot.close(figure)
    steps = max(curve[-1][0] for curves in runs.values() for curve in curves.values() if curve)
    print(f"{FLAGS.output_file}: {FLAGS.name} over {steps} steps" + (f" of {len(runs)} runs" if len(runs) > 1 else ""))


if __name__ == "__main__":
    run_main(main)
