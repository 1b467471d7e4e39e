"""Measures how the time of a pre-training step grows with tokens a row, rows, layers and width, and what a second
worker adds.

    python benchmarks/scaling.py                      # writes docs/images/scaling.png; prints the table
    python benchmarks/scaling.py --parts=workers

Each point is a process of its own (`step_contenders.py`), and all points of one curve take turns. Beside each measured
time stands the theoretical one: that of the curve's largest point, times the ratio of the operations of the matrix
products. Workers: one process on one core against two on two cores, each with the same rows (weak scaling), by
`run_pretraining --strategy=multi_worker`.
"""

import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

from absl import app, flags
from pretraining_step import Contender, operations
from run_rates import rate_of

FLAGS = flags.FLAGS
flags.DEFINE_list("parts", ["curves", "workers"], "What to measure.")
flags.DEFINE_integer("rounds", 5, "Turns of each point.", lower_bound=1)
flags.DEFINE_integer("worker_steps", 60, "Steps of each run with workers.", lower_bound=20)
flags.DEFINE_string(
    "picture", str(pathlib.Path(__file__).parent.parent / "docs/images/scaling.png"), "The picture to write."
)
CENTRE = {
    "vocab_size": 8000,
    "hidden_size": 256,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "intermediate_size": 1024,
    "max_position_embeddings": 512,
    "batch_size": 8,
    "length": 128,
    "precision": "float32",
}
CURVES = {
    "tokens a row": ("length", (32, 64, 128, 256, 512)),
    "rows": ("batch_size", (2, 4, 8, 16, 32)),
    "layers": ("num_hidden_layers", (1, 2, 4, 8, 16)),
    "width": ("hidden_size", (128, 256, 384, 512, 768)),
}


def point(key: str, value: int) -> dict:
    """Returns the centre's sizes with one of them changed; the width brings the inner width and the heads along."""
    size = CENTRE | {key: value}
    return size | ({"intermediate_size": 4 * value, "num_attention_heads": value // 64} if key == "hidden_size" else {})


def measure_curve(key: str, values: tuple[int, ...]) -> list[tuple[float, float]]:
    """Returns (measured, theoretical) seconds of a step at each value."""
    sizes = [point(key, value) for value in values]
    contenders = [Contender("ours", size) for size in sizes]
    for _ in range(FLAGS.rounds):
        for contender in contenders:
            contender.take_turn()
    medians = [statistics.median(contender.seconds) for contender in contenders]
    for contender in contenders:
        contender.end()
    work = [operations(size) for size in sizes]
    return [(median, medians[-1] * one / work[-1]) for median, one in zip(medians, work)]


def draw(curves: dict[str, list[tuple[float, float]]]) -> None:
    """Draws the curves, measured and theoretical, on logarithmic axes."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 7), layout="tight")
    for place, (name, points) in enumerate(curves.items(), 1):
        axes, values = figure.add_subplot(2, 2, place), CURVES[name][1]
        axes.loglog(values, [1e3 * measured for measured, _ in points], marker="o", label="measured")
        axes.loglog(
            values,
            [1e3 * theoretical for _, theoretical in points],
            linestyle="--",
            label="by operations, from the largest point",
        )
        axes.set(xlabel=name, ylabel="ms a step")
        axes.set_xticks(values, [str(value) for value in values])
        axes.minorticks_off()
        axes.legend()
    figure.savefig(FLAGS.picture, dpi=90)


def pretrain(folder: pathlib.Path, rows: int, cores: tuple[int, ...], *more: str) -> subprocess.Popen:
    """Starts a run of the centre's model on these cores."""
    sets = [f"model.{key}={value}" for key, value in CENTRE.items() if key not in ("batch_size", "length", "precision")]
    sets += [
        f"training.batch_size={rows}",
        f"training.steps={FLAGS.worker_steps}",
        "training.log_every=10",
        "training.steps_per_loop=10",
        "options.max_predictions_per_seq=20",
    ]
    command = [
        "taskset",
        "-c",
        ",".join(map(str, cores)),
        sys.executable,
        "-m",
        "official_bert.run_pretraining",
        f"--input_file={folder}/records",
        f"--vocab_file={folder}/vocab.txt",
        *(f"--set={one}" for one in sets),
        *more,
    ]
    return subprocess.Popen(
        command,
        env=os.environ | {"TF_NUM_INTRAOP_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def measure_workers() -> None:
    """Prints sequences a second of one worker and of two, each with the centre's rows on a core of its own."""
    root = pathlib.Path(__file__).parent.parent
    cores = sorted(os.sched_getaffinity(0))[:2]
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        text, vocab = root / "tests/golden/text_a.txt", root / "tests/golden/vocab_uncased.txt"
        (folder / "vocab.txt").write_bytes(vocab.read_bytes())
        subprocess.run(
            [
                sys.executable,
                root / "tools/create_pretraining_data.py",
                f"--input_file={text}",
                f"--vocab_file={vocab}",
                f"--output_file={folder}/records",
                f"--max_seq_length={CENTRE['length']}",
                "--max_predictions_per_seq=20",
                "--dupe_factor=40",
            ],
            check=True,
            capture_output=True,
        )
        rates: dict[int, list[float]] = {1: [], 2: []}
        for turn in range(3):
            alone = pretrain(folder, CENTRE["batch_size"], cores[:1], f"--output_dir={folder}/one{turn}")
            output = alone.communicate()[0]
            if alone.returncode:
                sys.exit(output)
            ports = [12355 + 2 * turn, 12356 + 2 * turn]
            hosts = ",".join(f"127.0.0.1:{port}" for port in ports)
            both = [
                pretrain(
                    folder,
                    2 * CENTRE["batch_size"],
                    (core,),
                    f"--output_dir={folder}/two{turn}",
                    "--strategy=multi_worker",
                    f"--worker_hosts={hosts}",
                    f"--task_index={index}",
                )
                for index, core in enumerate(cores)
            ]
            for process in both:
                output = process.communicate()[0]
                if process.returncode:
                    sys.exit(output)
            rates[1].append(rate_of(folder / f"one{turn}"))
            rates[2].append(rate_of(folder / f"two{turn}"))
    single, double = (statistics.median(rates[count]) for count in (1, 2))
    print(
        f"one worker {single:.1f} sequences/s, two workers {double:.1f}: {double / single:.2f} times, "
        f"{double / single / 2:.0%} of twice"
    )


def main(_) -> None:
    """Measures, prints a table in Markdown, and draws."""
    if unknown := set(FLAGS.parts) - {"curves", "workers"}:
        sys.exit(f"error: --parts: expected curves, workers, got {', '.join(sorted(unknown))}")
    if "curves" in FLAGS.parts:
        curves = {}
        print("| | value | ms a step | by operations | measured / by operations |\n|---|---|---|---|---|")
        for name, (key, values) in CURVES.items():
            curves[name] = measure_curve(key, values)
            for value, (measured, theoretical) in zip(values, curves[name]):
                print(
                    f"| {name} | {value} | {1e3 * measured:.1f} | {1e3 * theoretical:.1f} | "
                    f"{measured / theoretical:.2f} |",
                    flush=True,
                )
        draw(curves)
    if "workers" in FLAGS.parts:
        measure_workers()


if __name__ == "__main__":
    app.run(main)
