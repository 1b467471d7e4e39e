"""Draws the losses of a training run from its log.

    python tools/plot_run.py --run=runs/small --output_file=loss.png --name=mlm_loss
"""

from official_bert.command_line import run_main

import os

from absl import flags

from official_bert.files import exists, written_beside
from official_bert.models.run_folder import LOG_FILE, not_a_run
from official_bert.reports import run_sections

FLAGS = flags.FLAGS
flags.DEFINE_string("run", None, "The output folder of a training run.", required=True)
flags.DEFINE_string("output_file", None, "The picture to write (.png, .svg, .pdf).", required=True)
flags.DEFINE_string("name", "loss", "What to draw: loss, mlm_loss, mlm_accuracy ...")
flags.DEFINE_float("baseline", None, "A level to draw for comparison, such as the loss of the unigram distribution.")
flags.DEFINE_string("baseline_label", "unigram distribution, held out", "The label of that level.")


def read_curves(path: str, name: str) -> dict[str, list[tuple[int, float]]]:
    """Returns (step, value) of `train/name` and `eval/name` in a run's JSON-lines log; raises ValueError if it has neither."""
    if not exists(path):
        raise not_a_run(path, "no such log")
    every = run_sections.read_curves(path)
    curves = {kind: list(every.get(f"{kind}/{name}", {}).items()) for kind in ("train", "eval")}
    if not any(curves.values()):
        raise ValueError(f"{path}: holds no {name!r}")
    return curves


def main(_) -> None:
    """Reads the log and draws it."""
    import matplotlib
    matplotlib.use("Agg")
    from matplotlib import pyplot
    curves = read_curves(os.path.join(FLAGS.run, LOG_FILE), FLAGS.name)
    figure, axes = pyplot.subplots(figsize=(7, 4))
    for kind, label, marker in (("train", "training", None), ("eval", "held out", "o")):
        if curves[kind]:
            axes.plot(*zip(*curves[kind]), label=label, marker=marker)
    if FLAGS.baseline is not None:
        axes.axhline(FLAGS.baseline, color="grey", linestyle="--", label=FLAGS.baseline_label)
    axes.set(xlabel="step", ylabel=FLAGS.name)
    axes.legend()
    figure.tight_layout()
    with written_beside(FLAGS.output_file) as temporary:
        figure.savefig(temporary, dpi=100, format=FLAGS.output_file.rpartition(".")[2])
    print(f"{FLAGS.output_file}: {FLAGS.name} over {curves['train'][-1][0] if curves['train'] else curves['eval'][-1][0]} steps")


if __name__ == "__main__":
    run_main(main)
