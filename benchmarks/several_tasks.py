r"""Measures a server of several tasks on one encoder beside one of as many exports: memory, disk, and answers.

    make minilm
    python benchmarks/several_tasks.py --init_checkpoint=MODEL_FOLDER --tasks=8
    python benchmarks/several_tasks.py --init_checkpoint=MODEL_FOLDER --tasks=8 --constant_weights

The adapters have random weights: rank 8 beside queries and values, and a head of two classes. Memory is that of the
server's process when each task has answered a request of 1 and of 32 texts.
"""

import concurrent.futures
import dataclasses
import json
import os
import pathlib
import re
import shutil
import statistics
import subprocess
import sys
import time
import urllib.request

import numpy as np
from absl import app, flags

ROOT = pathlib.Path(__file__).parent.parent
FLAGS = flags.FLAGS
flags.DEFINE_string("init_checkpoint", None, "The base.", required=True)
flags.DEFINE_string("work_dir", "build/several_tasks", "The folder for adapters and exports; its content is replaced.")
flags.DEFINE_integer("tasks", 8, "Adapters.", 1, 16)
flags.DEFINE_integer("rank", 8, "Of each.")
flags.DEFINE_bool("constant_weights", False, "Exports of one task have the default of run_export.")
TEXTS = ["a fine film", "a dull film , too long by half , and its end is worse than its beginning"] * 16


def write_adapters(folder: str) -> list[str]:
    """Writes adapters with random weights as PEFT folders."""
    from official_bert.models.interchange import formats
    from official_bert.models.interchange.stored_models import Adapters, LowRank

    base, draw = formats.encoder_of(formats.read(FLAGS.init_checkpoint)), np.random.default_rng(0)
    width = base.config.hidden_size

    def numbers(*shape):
        return draw.normal(scale=0.05, size=shape).astype(np.float32)

    paths = []
    for number in range(FLAGS.tasks):
        names = [
            f"layer_{layer}/attention/{name}"
            for layer in range(base.config.num_hidden_layers)
            for name in ("query", "value")
        ]
        products = {name: LowRank(numbers(width, FLAGS.rank), numbers(FLAGS.rank, width), 2.0) for name in names}
        head = {"classifier/output_weights": numbers(2, width), "classifier/output_bias": numbers(2)}
        stored = dataclasses.replace(
            base,
            weights={**base.weights, **head},
            head="classifier",
            labels=["bad", "good"],
            adapters=Adapters(products, tuple(head), os.path.abspath(FLAGS.init_checkpoint)),
        )
        paths.append(os.path.join(folder, f"task{number}"))
        formats.write(stored, "peft", paths[-1])
    return paths


def export(*arguments: str) -> None:
    """Runs `run_export`."""
    command = [sys.executable, "-m", "official_bert.run_export", "--warmup_batch_sizes=1", *arguments]
    done = subprocess.run(
        command, check=False, capture_output=True, text=True, env=os.environ | {"PYTHONPATH": str(ROOT)}
    )
    if done.returncode:
        sys.exit(f"error: run_export {' '.join(arguments)}: {done.stderr.strip().splitlines()[-1]}")


def measure(models: str) -> dict:
    """Returns the megabytes of a server of the models below a folder, on disk and in memory, and its answers."""
    command = [sys.executable, "-m", "official_bert.serve", f"--models={models}", "--rest_api_port=0"]
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    ) as server:
        try:
            began = time.monotonic()
            url = re.search(r"http://[^\s;]+", next(line for line in server.stdout if line.startswith("Serving")))[0]
            ready, answers = time.monotonic() - began, {}
            for texts in (TEXTS[:1], TEXTS):
                for number in range(FLAGS.tasks):
                    answers[number] = ask(url, number, texts)
            seconds = [timed(ask, url, number % FLAGS.tasks, TEXTS) for number in range(3 * FLAGS.tasks)]
            with concurrent.futures.ThreadPoolExecutor(FLAGS.tasks) as pool:
                together = timed(lambda: list(pool.map(lambda number: ask(url, number, TEXTS), range(FLAGS.tasks))))
            status = pathlib.Path(f"/proc/{server.pid}/status").read_text()
        finally:
            server.terminate()
    disk = sum(path.stat().st_size for path in pathlib.Path(models).rglob("text/1/**/*") if path.is_file())
    return {
        "memory": int(re.search(r"VmRSS:\s+(\d+)", status)[1]) / 1e3,
        "disk": disk / 1e6,
        "ready": ready,
        "seconds": statistics.median(seconds),
        "together": together,
        "answers": answers,
    }


def ask(url: str, number: int, texts: list[str]) -> np.ndarray:
    """Returns the probabilities that a task gives to texts."""
    request = urllib.request.Request(
        f"{url}/v1/models/task{number}:predict", json.dumps({"inputs": {"text": texts}}).encode()
    )
    with urllib.request.urlopen(request, timeout=300) as response:
        return np.array(json.load(response)["outputs"]["probabilities"])


def timed(function, *arguments) -> float:
    """Returns the seconds that a call takes."""
    began = time.monotonic()
    function(*arguments)
    return time.monotonic() - began


def main(_) -> None:
    """Exports both arrangements, serves each; prints a table in Markdown."""
    shutil.rmtree(FLAGS.work_dir, ignore_errors=True)
    os.makedirs(FLAGS.work_dir)
    adapters = write_adapters(FLAGS.work_dir)
    one, each = (os.path.join(FLAGS.work_dir, name) for name in ("one", "each"))
    export(f"--checkpoint={FLAGS.init_checkpoint}", f"--adapters={','.join(adapters)}", f"--output={one}/several")
    constants = [] if FLAGS.constant_weights else ["--noconstant_weights"]
    for path in adapters:
        export(
            f"--checkpoint={path}",
            f"--base={FLAGS.init_checkpoint}",
            f"--output={each}/{os.path.basename(path)}",
            *constants,
        )
    print("| server | memory | on disk (text) | until ready | 32 texts | 32 texts to every task at once |")
    print("|---|---|---|---|---|---|")
    rows = {f"one export of {FLAGS.tasks} tasks": measure(one), f"{FLAGS.tasks} exports": measure(each)}
    for name, row in rows.items():
        print(
            f"| {name} | {row['memory']:,.0f} MB | {row['disk']:,.0f} MB | {row['ready']:.0f} s | "
            f"{1000 * row['seconds']:.0f} ms | {1000 * row['together']:.0f} ms |"
        )
    first, second = (row["answers"] for row in rows.values())
    print(f"\nlargest difference of a probability: {max(np.abs(first[key] - second[key]).max() for key in first):.1e}")


if __name__ == "__main__":
    app.run(main)
