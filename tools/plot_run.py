"""Draws a metric of training runs from their logs, for training and held-out data.

    python tools/plot_run.py runs/small --output_file=loss.png --name=mlm_loss
    python tools/plot_run.py runs/small runs/base --output_file=both.png --name=mlm_loss

A large point marks the checkpoint that the run answers with, the best or the last one.
"""

from official_bert.command_line import run_main

import os
import textwrap
from typing import TYPE_CHECKING, Any

from absl import flags

from official_bert.reports import run_sections
from official_bert.reports.pictures import LINE_OF_LEGEND, axis_label, draw_curve
from official_bert.run_folder import LOG_FILE, RunFolder
from official_bert.storage.files import exists, written_beside

if TYPE_CHECKING:
    from matplotlib.axes import Axes

LETTERS_OF_A_LINE = 60  # of a title
FLAGS = flags.FLAGS
flags.DEFINE_list("run", [], "Output folders of training runs, comma-separated, in addition to the arguments.")
flags.DEFINE_string("output_file", None, "The picture to write (.png, .svg, .pdf).", required=True)
flags.DEFINE_string("name", "loss", "The metric to draw: loss, mlm_loss, mlm_accuracy ...")
flags.DEFINE_float("baseline", None, "A level to draw for comparison, such as the loss of the unigram distribution.")


def read_curves(path: str, name: str) -> dict[str, dict[int, float]]:
    """Returns {step: value} of `train/name` and of `eval/name` in a run's JSON-lines log, if it has them.

    Raises ValueError if it has neither.
    """
    if not exists(path):
        raise ValueError(f"{path}: no such log; expected the output folder of a training run")
    every = run_sections.read_curves(path)
    curves = {kind: every[f"{kind}/{name}"] for kind in ("train", "eval") if f"{kind}/{name}" in every}
    if not curves:
        raise ValueError(
            f"{path}: holds no {name!r}; it has "
            f"{', '.join(sorted({key.partition('/')[2] for key in every})) or 'no metrics'}"
        )
    return curves


def names_of(runs: list[str]) -> list[str]:
    """Returns a name for each run: the end of its path that distinguishes it from the others.

    Raises ValueError if a run is given twice.
    """
    paths = [os.path.normpath(run) for run in runs]
    if twice := next((run for run in paths if paths.count(run) > 1), ""):
        raise ValueError(f"expected different runs, got {twice} twice")
    parts = [path.split(os.sep) for path in paths]
    for count in range(1, max(map(len, parts)) + 1):
        names = [os.sep.join(part[-count:]) for part in parts]
        if len(set(names)) == len(names):
            return names
    return paths


def draw(axes: "Axes", runs: dict[str, tuple[dict[str, dict[int, float]], int | None]]) -> None:
    """Draws the curves of each run in a color, and marks the step of its chosen checkpoint."""
    for number, (run, (curves, chosen)) in enumerate(runs.items()):
        style: dict[str, Any] = {"color": f"C{number}"} if len(runs) > 1 else {}
        prefix = f"{run}, " if len(runs) > 1 else ""
        if points := curves.get("train"):
            axes.plot(
                list(points),
                list(points.values()),
                label=f"{prefix}training",
                alpha=0.45 if style else 1.0,
                marker="." if len(points) == 1 else None,
                **style,
            )
        if points := curves.get("eval"):
            draw_curve(axes, points, f"{prefix}held out", chosen, **style)


def main(arguments: list[str]) -> None:
    """Reads the logs and draws them."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    if not (paths := [*arguments[1:], *FLAGS.run]):
        raise ValueError("expected output folders of training runs, as in plot_run.py runs/a --output_file=loss.png")
    runs = {
        name: (read_curves(os.path.join(path, LOG_FILE), FLAGS.name), RunFolder(path).chosen_step)
        for name, path in zip(names_of(paths), paths)
    }
    with matplotlib.rc_context({"text.parse_math": False}):
        figure, axes = pyplot.subplots(figsize=(7, 4 + 2 * LINE_OF_LEGEND * len(runs)), layout="constrained")
        draw(axes, runs)
        if FLAGS.baseline is not None:
            axes.axhline(FLAGS.baseline, color="grey", linestyle="--", label="unigram distribution, held out")
        title = f"{axis_label(FLAGS.name, unit=False)}: {', '.join(runs)}"
        axes.set(xlabel="training step", ylabel=axis_label(FLAGS.name), title=textwrap.fill(title, LETTERS_OF_A_LINE))
        figure.legend(loc="outside lower center")
        with written_beside(FLAGS.output_file) as temporary:
            figure.savefig(temporary, dpi=100, format=FLAGS.output_file.rpartition(".")[2])
        pyplot.close(figure)
    steps = max(max(curve) for curves, _ in runs.values() for curve in curves.values())
    print(f"{FLAGS.output_file}: {FLAGS.name} over {steps} steps" + (f" of {len(runs)} runs" if len(runs) > 1 else ""))


if __name__ == "__main__":
    run_main(main)
