r"""Measures memory, speed and size of adapters beside training the whole model, on one random batch of a classifier.

    python benchmarks/adapters.py                                # BERT-base, 8 rows of 128 tokens, float32
    python benchmarks/adapters.py --set=training.precision=bfloat16

Each arrangement runs in its own process. Memory is the peak beyond its imports: weights, moments and the step.
"""

import json
import statistics
import subprocess
import sys
import time

import numpy as np
from absl import app, flags
from step_contenders import resident

FLAGS = flags.FLAGS
flags.DEFINE_string("config", "configs/model/base.yaml", "The model's YAML.")
flags.DEFINE_integer("batch_size", 8, "Rows.")
flags.DEFINE_integer("max_seq_length", 128, "Tokens of each.")
flags.DEFINE_integer("steps", 5, "Timed steps, after one untimed step.")
flags.DEFINE_multi_string("set", [], "Overrides of the configuration for all arrangements.")
flags.DEFINE_string("one", None, "Internal: `training.adapters` of one arrangement, as YAML.")
ARRANGEMENTS = {
    "the whole model": "null",
    "adapters, rank 8, query and value": "{rank: 8}",
    "adapters, rank 8, all-linear": "{rank: 8, target_modules: all-linear}",
}


def measure(settings: str) -> None:
    """Prints memory, seconds a step and saved megabytes of one arrangement."""
    import tensorflow as tf

    from official_bert.config import load_config
    from official_bert.models.adapters import adapt
    from official_bert.tasks.loading import load_task
    from official_bert.training.machines import distribution
    from official_bert.training.machines.cluster import Placement
    from official_bert.training.trainer import Trainer

    config = load_config(
        FLAGS.config,
        overrides=[
            "task=classification",
            "options={labels: [bad, good]}",
            f"training.batch_size={FLAGS.batch_size}",
            *FLAGS.set,
            f"training.adapters={settings}",
        ],
    )
    distribution.set_precision(config.training.precision)
    before, strategy, task = resident("VmRSS"), distribution.make_strategy(Placement()), load_task(config)
    model = task.build_model()
    if config.training.adapters:
        adapt(model, config.training.adapters, trains_pooler=False)
    trainer = Trainer(task.recipe(model), strategy, 1000)
    rng, shape = np.random.default_rng(0), (FLAGS.batch_size, FLAGS.max_seq_length)
    rows = {
        "input_ids": rng.integers(0, config.model.vocab_size, shape),
        "input_mask": np.ones(shape),
        "segment_ids": np.zeros(shape),
        "label_ids": rng.integers(0, 2, FLAGS.batch_size),
    }
    batch = {name: tf.constant(value, tf.int32) for name, value in rows.items()}
    batch["example_weights"] = tf.ones(FLAGS.batch_size)
    iterator, seconds = iter(tf.data.Dataset.from_tensors(batch).repeat()), []
    for _ in range(FLAGS.steps + 1):
        began = time.monotonic()
        trainer.run_steps(iterator, tf.constant(1)).numpy()
        seconds.append(time.monotonic() - began)
    saved = 4e-6 * sum(variable.shape.num_elements() for variable in trainer.saved["weights"].values())
    print(
        json.dumps(
            {
                "memory": (resident("VmHWM") - before) / 1e6,
                "seconds": statistics.median(seconds[1:]),
                "saved": saved,
                "with moments": trainer.bytes_saved / 1e6,
            }
        )
    )


def main(_) -> None:
    """Runs a process for each arrangement; prints a table in Markdown."""
    if FLAGS.one is not None:
        measure(FLAGS.one)
        return
    own = [f"--{name}={getattr(FLAGS, name)}" for name in ("config", "batch_size", "max_seq_length", "steps")]
    print("| training | peak memory | of the first | speed of the first | weights saved | with moments |")
    print("|---|---|---|---|---|---|")
    first = None
    for name, settings in ARRANGEMENTS.items():
        command = [sys.executable, __file__, *own, *(f"--set={text}" for text in FLAGS.set), f"--one={settings}"]
        done = subprocess.run(command, check=False, capture_output=True, text=True)
        if done.returncode:
            sys.exit(f"error: {name}: {done.stderr.strip().splitlines()[-1]}")
        figures = json.loads(done.stdout.strip().splitlines()[-1])
        first = first or figures
        print(
            f"| {name} | {figures['memory']:,.0f} MB | {figures['memory'] / first['memory']:.2f} | "
            f"{first['seconds'] / figures['seconds']:.2f} | {figures['saved']:.2f} MB | "
            f"{figures['with moments']:.2f} MB |",
            flush=True,
        )


if __name__ == "__main__":
    app.run(main)
