r"""Measures the effect of recomputation, accumulation and precision on peak memory and speed of the train step.

    python benchmarks/memory_and_precision.py
    # our step and those of other libraries (benchmarks/step_contenders.py; PyTorch: make venv-torch)
    python benchmarks/memory_and_precision.py --peers=ours,keras_hub,tf_models,pytorch \
        --config=configs/model/base.yaml --batch_size=2 --max_seq_length=128

Each setting and each library runs in its own process on one random batch. Memory of a setting is the peak of the
process minus its memory before the first step; that of a library is the peak beyond its imports, with weights and
moments. Speed is relative to the first row.
"""

import json
import pathlib
import resource
import statistics
import subprocess
import sys
import time

import numpy as np
from absl import app, flags
from step_contenders import resident

FOLDER = pathlib.Path(__file__).parent
FLAGS = flags.FLAGS
flags.DEFINE_string("config", "configs/model/small.yaml", "The model's YAML.")
flags.DEFINE_integer("batch_size", 16, "Rows of the global batch.")
flags.DEFINE_integer("max_seq_length", 256, "Tokens of each.")
flags.DEFINE_integer("steps", 4, "Timed steps, after one untimed step.")
flags.DEFINE_list("only", [], "Numbers of rows to measure; all by default.")
flags.DEFINE_list("peers", [], "Libraries to compare instead of settings.")
flags.DEFINE_string("torch_python", str(FOLDER.parent / ".venv-torch/bin/python"), "Python with PyTorch.")
flags.DEFINE_string("one", "", "Internal: overrides of one setting, as JSON.")
ARRANGEMENTS = {
    "float32": [],
    "float32, recompute": ["training.recompute=true"],
    "float32, recompute attention": ["training.recompute=attention"],
    "float32, 4 accumulation steps": ["training.accumulation_steps=4"],
    "float32, recompute, 4 accumulation steps": ["training.recompute=true", "training.accumulation_steps=4"],
    "float32, XLA": ["training.xla=true"],
    "bfloat16": ["training.precision=bfloat16"],
    "bfloat16, recompute attention": ["training.precision=bfloat16", "training.recompute=attention"],
    "float16": ["training.precision=float16"],
}


def made_batch(size: int, length: int, words: int):
    """Returns a batch of full rows with 15 % of their words to predict."""
    import tensorflow as tf

    rng, predicted = np.random.default_rng(0), max(1, length * 15 // 100)
    batch = {
        "input_ids": rng.integers(0, words, (size, length)),
        "input_mask": np.ones((size, length)),
        "segment_ids": np.zeros((size, length)),
        "masked_lm_positions": np.tile(np.arange(predicted), (size, 1)),
        "masked_lm_ids": rng.integers(0, words, (size, predicted)),
        "next_sentence_labels": rng.integers(0, 2, (size, 1)),
    }
    tensors = {name: tf.constant(value, tf.int32) for name, value in batch.items()}
    return tensors | {"masked_lm_weights": tf.ones((size, predicted)), "example_weights": tf.ones(size)}


def measure(overrides: list[str]) -> None:
    """Prints peak memory and seconds per step of one setting."""
    import tensorflow as tf

    from official_bert.config import load_config
    from official_bert.tasks.loading import load_task
    from official_bert.training.machines import distribution
    from official_bert.training.machines.cluster import Placement
    from official_bert.training.machines.distribution import make_strategy
    from official_bert.training.trainer import Trainer

    config = load_config(
        FLAGS.config,
        overrides=[
            f"training.batch_size={FLAGS.batch_size}",
            f"options.max_seq_length={FLAGS.max_seq_length}",
            f"options.max_predictions_per_seq={max(1, FLAGS.max_seq_length * 15 // 100)}",
            *overrides,
        ],
    )
    distribution.set_precision(config.training.precision)
    strategy, task = make_strategy(Placement()), load_task(config)
    trainer = Trainer(task.recipe(task.build_model()), strategy, 1000)
    batch = made_batch(FLAGS.batch_size, FLAGS.max_seq_length, config.model.vocab_size)
    iterator = iter(tf.data.Dataset.from_tensors(batch).repeat())
    before = resident("VmRSS")
    trainer.run_steps(iterator, tf.constant(1)).numpy()
    seconds = []
    for _ in range(FLAGS.steps):
        began = time.monotonic()
        trainer.run_steps(iterator, tf.constant(1)).numpy()
        seconds.append(time.monotonic() - began)
    print(
        json.dumps(
            {
                "memory": resident("VmHWM") - before,
                "seconds": statistics.median(seconds),
                "faults": resource.getrusage(resource.RUSAGE_SELF).ru_majflt,
            }
        )
    )


def compare() -> None:
    """Runs a process for each library; prints a table in Markdown."""
    from official_bert.config import load_config

    size = {
        **vars(load_config(FLAGS.config).model),
        "batch_size": FLAGS.batch_size,
        "length": FLAGS.max_seq_length,
        "precision": "float32",
    }
    print("| library | peak memory | of the first | speed of the first |\n|---|---|---|---|")
    first = None
    for name in FLAGS.peers:
        python = FLAGS.torch_python if name.startswith("pytorch") else sys.executable
        done = subprocess.run(
            [python, str(FOLDER / "step_contenders.py"), name, json.dumps(size)],
            check=False,
            capture_output=True,
            text=True,
            input=f"1\n{FLAGS.steps}\n\n",
        )
        if done.returncode:
            sys.exit(f"error: {name}: {done.stderr.strip().splitlines()[-1]}")
        seconds, figures = map(json.loads, done.stdout.strip().splitlines()[-2:])
        figures["seconds"] = statistics.median(seconds)
        first = first or figures
        print(
            f"| {name} | {figures['whole'] / 1e6:,.0f} MB | {figures['whole'] / first['whole']:.2f} | "
            f"{first['seconds'] / figures['seconds']:.2f} |",
            flush=True,
        )


def main(_) -> None:
    """Runs a process for each setting; prints a table in Markdown."""
    if FLAGS.one:
        measure(json.loads(FLAGS.one))
        return
    if FLAGS.peers:
        compare()
        return
    shared = [f"--{name}={getattr(FLAGS, name)}" for name in ("config", "batch_size", "max_seq_length", "steps")]
    first = None
    print(
        "| train step | peak memory beyond weights and moments | of the first | speed of the first |\n|---|---|---|---|"
    )
    for number, (name, overrides) in enumerate(ARRANGEMENTS.items()):
        if FLAGS.only and str(number) not in FLAGS.only:
            continue
        done = subprocess.run(
            [sys.executable, __file__, *shared, f"--one={json.dumps(overrides)}"],
            check=False,
            capture_output=True,
            text=True,
        )
        if done.returncode:
            sys.exit(f"error: {name}: {done.stderr.strip().splitlines()[-1]}")
        figures = json.loads(done.stdout.strip().splitlines()[-1])
        first = first or figures
        print(
            f"| {name} | {figures['memory'] / 1e6:,.0f} MB | {figures['memory'] / first['memory']:.2f} | "
            f"{first['seconds'] / figures['seconds']:.2f} |",
            flush=True,
        )


if __name__ == "__main__":
    app.run(main)
