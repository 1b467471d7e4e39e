"""Measures what the settings of a session change for an exported model: threads, and the rewriting of its graph.

    python benchmarks/session_settings.py --init_checkpoint=MODEL_FOLDER

A classifier in its `ids` form, as the server and TF Serving load it: one row of 16 tokens, one of 64, and 8 of 32. Each
setting has a process of its own, because threads belong to a process, and the processes take turns. Medians of all
requests.
"""

import json
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

import numpy as np
from absl import app, flags
from serving import make_models

FLAGS = flags.FLAGS
flags.DEFINE_integer("requests", 100, "Requests of each shape in a turn.", lower_bound=10)
flags.DEFINE_list("only", [], "Only these settings, beside the default.")
flags.DEFINE_string("settings", "", "Of a child process: a name of SETTINGS.")
flags.DEFINE_string("model", "", "Of a child process: the exported model's version folder.")
SHAPES = {"1 x 16": (1, 16), "1 x 64": (1, 64), "8 x 32": (8, 32)}
OFF, ON, AGGRESSIVE = 2, 1, 3  # RewriterConfig.Toggle
# Fields of a ConfigProto; those with a dot lie in graph_options.rewrite_options.
SETTINGS: dict[str, dict[str, object]] = {
    "default": {},
    "one thread an operation": {"intra_op_parallelism_threads": 1},
    "one operation at a time": {"inter_op_parallelism_threads": 1},
    "one thread in all": {"intra_op_parallelism_threads": 1, "inter_op_parallelism_threads": 1},
    "operations in the caller's thread": {"inter_op_parallelism_threads": -1},
    "the caller's thread alone": {"intra_op_parallelism_threads": 1, "inter_op_parallelism_threads": -1},
    "no graph rewriting": {"rewrite.disable_meta_optimizer": True},
    "no fusing (remapping)": {"rewrite.remapping": OFF},
    "aggressive fusing": {"rewrite.remapping": AGGRESSIVE},
    "no layout optimizer": {"rewrite.layout_optimizer": OFF},
    "no arithmetic optimizer": {"rewrite.arithmetic_optimization": OFF},
    "functions kept as calls": {"rewrite.function_optimization": OFF},
    "XLA clusters": {"xla": ON},
}


def session_config(settings: dict[str, object]):
    """Returns the ConfigProto of a setting."""
    import tensorflow as tf

    config = tf.compat.v1.ConfigProto()
    for name, value in settings.items():
        if name.startswith("rewrite."):
            setattr(config.graph_options.rewrite_options, name.removeprefix("rewrite."), value)
        elif name == "xla":
            config.graph_options.optimizer_options.global_jit_level = value
        else:
            setattr(config, name, value)
    return config


def measure(settings: dict[str, object], model: str) -> dict[str, list[float]]:
    """Returns the seconds of requests of each shape, in a session with these settings."""
    from official_bert.server.models.servable import Servable

    signature = Servable("model", 1, model, session_config(settings)).signature("")
    rng = np.random.default_rng(1)
    seconds: dict[str, list[float]] = {}
    for name, shape in SHAPES.items():
        inputs = {
            "input_ids": rng.integers(1000, 25000, shape, np.int32),
            "input_mask": np.ones(shape, np.int32),
            "segment_ids": np.zeros(shape, np.int32),
        }
        for number in range(-FLAGS.requests // 4, FLAGS.requests):
            began = time.perf_counter()
            signature.run(inputs)
            if number >= 0:  # those before are a warm-up
                seconds.setdefault(name, []).append(time.perf_counter() - began)
    return seconds


def ask(name: str, model: str) -> dict[str, list[float]]:
    """Measures a setting in a process of its own."""
    command = [sys.executable, __file__, f"--settings={name}", f"--model={model}", f"--requests={FLAGS.requests}"]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"error: {name}: {done.stderr.strip().splitlines()[-1]}")
    return json.loads(done.stdout.splitlines()[-1])


def main(_) -> None:
    """Measures all settings by turns, and prints a table in Markdown."""
    if FLAGS.settings:
        print(json.dumps(measure(SETTINGS[FLAGS.settings], FLAGS.model)))
        return
    names = [name for name in SETTINGS if name == "default" or name in FLAGS.only or not FLAGS.only]
    seconds_of: dict[str, dict[str, list[float]]] = {name: {shape: [] for shape in SHAPES} for name in names}
    with tempfile.TemporaryDirectory() as folder:
        make_models(folder)
        for turn in range(FLAGS.rounds):
            for name, all_seconds in seconds_of.items():
                for shape, seconds in ask(name, str(pathlib.Path(folder, "float32", "ids", "1"))).items():
                    all_seconds[shape] += seconds
            print(f"round {turn + 1} of {FLAGS.rounds}", file=sys.stderr, flush=True)
    heads = " | ".join(f"{shape}: p50 (ms) | times the default" for shape in SHAPES)
    print(f"| setting | {heads} |\n|---" + "|---" * 2 * len(SHAPES) + "|")
    medians = {
        name: {shape: statistics.median(values) for shape, values in shapes.items()}
        for name, shapes in seconds_of.items()
    }
    for name, shapes in medians.items():
        cells = [f"{1e3 * value:.2f} | {value / medians['default'][shape]:.2f}" for shape, value in shapes.items()]
        print(f"| {name} | {' | '.join(cells)} |")


if __name__ == "__main__":
    app.run(main)
