"""Measures the limits of search: memory of large contrastive groups, and time and memory of the nearest among a million
passages.

    python benchmarks/search_limits.py --only=groups
    python benchmarks/search_limits.py --only=neighbours --queries=100000 --passages=1000000

Groups: a train step of retrieval on a random batch of full rows, each setting in a process of its own; memory is the
    peak beyond weights
and moments. Neighbours: random vectors, those of the passages mapped from a file, as `tools/mine_negatives.py` has
them; memory is the peak of what the process holds itself (RssAnon), beyond the vectors of the queries.
"""

import json
import os
import subprocess
import sys
import tempfile
import threading
import time

import numpy as np
from absl import app, flags
from step_contenders import resident

FLAGS = flags.FLAGS
flags.DEFINE_enum("only", "groups", ["groups", "neighbours"], "What is measured.")
flags.DEFINE_string("config", "configs/model/small.yaml", "The model's YAML.")
flags.DEFINE_multi_string("set", [], "Overrides of it.")
flags.DEFINE_integer("max_seq_length", 64, "Tokens of a text.")
flags.DEFINE_list(
    "settings", ["32:0", "256:0", "256:32", "4096:32"], "Rows of the group, and texts encoded at once (0: all)."
)
flags.DEFINE_integer("queries", 100_000, "Vectors that search.")
flags.DEFINE_integer("passages", 1_000_000, "Vectors that are searched.")
flags.DEFINE_integer("width", 384, "Numbers of a vector.")
flags.DEFINE_integer("nearest", 100, "Passages wanted for each query.")
flags.DEFINE_string("folder", "", "Where the passages' vectors lie meanwhile.")
flags.DEFINE_string("setting", "", "Internal: one of the settings.")


def measure_group(rows: int, texts_at_once: int) -> None:
    """Prints peak memory and seconds of a step with one group."""
    import tensorflow as tf

    from official_bert.config import load_config
    from official_bert.tasks.loading import load_task
    from official_bert.training.machines.cluster import Placement
    from official_bert.training.machines.distribution import make_strategy
    from official_bert.training.trainer import Trainer

    config = load_config(
        FLAGS.config,
        overrides=[
            "task=retrieval",
            f"training.batch_size={rows}",
            f"options.group_size={rows}",
            f"options.max_seq_length={FLAGS.max_seq_length}",
            f"options.texts_at_once={texts_at_once}",
            *FLAGS.set,
        ],
    )
    task = load_task(config)
    trainer = Trainer(task.recipe(task.build_model()), make_strategy(Placement()), 1000)
    shape = (rows, 2, FLAGS.max_seq_length)
    batch = {
        "input_ids": np.random.default_rng(0).integers(1, config.model.vocab_size, shape),
        "input_mask": np.ones(shape),
        "segment_ids": np.zeros(shape),
        "text_numbers": np.arange(2 * rows).reshape(rows, 2),
    }
    tensors = {name: tf.constant(value, tf.int32) for name, value in batch.items()} | {"example_weights": tf.ones(rows)}
    iterator = iter(tf.data.Dataset.from_tensors(tensors).repeat())
    before, began = resident("VmRSS"), time.monotonic()
    trainer.run_steps(iterator, tf.constant(1)).numpy()
    print(json.dumps({"memory": resident("VmHWM") - before, "seconds": time.monotonic() - began}))


def measure_groups() -> None:
    """Prints a table in Markdown."""
    print(
        "| rows of a group | texts at once | peak memory | of the first | seconds of the first step "
        "|\n|---|---|---|---|---|"
    )
    first = None
    for setting in FLAGS.settings:
        done = subprocess.run(
            [
                sys.executable,
                __file__,
                f"--config={FLAGS.config}",
                f"--max_seq_length={FLAGS.max_seq_length}",
                f"--setting={setting}",
                *(f"--set={text}" for text in FLAGS.set),
            ],
            check=False,
            capture_output=True,
            text=True,
        )
        if done.returncode:
            sys.exit(f"error: {setting}: {done.stderr.strip().splitlines()[-1]}")
        memory, seconds = json.loads(done.stdout.strip().splitlines()[-1]).values()
        first = first or memory
        rows, texts_at_once = setting.split(":")
        print(
            f"| {int(rows):,} | {'all' if texts_at_once == '0' else texts_at_once} | {memory / 1e6:,.0f} MB | "
            f"{memory / first:.2f} | {seconds:.0f} |",
            flush=True,
        )


class PeakOfOwnMemory(threading.Thread):
    """Watches RssAnon, which does not count pages of mapped files."""

    def __init__(self):
        super().__init__(daemon=True)
        self.peak = 0

    def run(self):
        while True:
            self.peak = max(self.peak, resident("RssAnon"))
            time.sleep(0.05)


def measure_neighbours() -> None:
    """Prints seconds and memory, and checks a few queries against a full sort."""
    from official_bert.search import neighbours

    rng = np.random.default_rng(0)
    queries = rng.standard_normal((FLAGS.queries, FLAGS.width), np.float32)
    with tempfile.TemporaryDirectory(dir=FLAGS.folder or None) as folder:
        passages = np.lib.format.open_memmap(
            os.path.join(folder, "passages.npy"), "w+", np.float32, (FLAGS.passages, FLAGS.width)
        )
        for start in range(0, FLAGS.passages, 8192):
            passages[start : start + 8192] = rng.standard_normal(
                (len(passages[start : start + 8192]), FLAGS.width), np.float32
            )
        neighbours.nearest(queries[:2], passages[:200], FLAGS.nearest)  # compiles
        before, watcher = resident("RssAnon"), PeakOfOwnMemory()
        watcher.start()
        began, processor_began = time.monotonic(), time.process_time()
        scores, numbers = neighbours.nearest(queries, passages, FLAGS.nearest)
        seconds, processor_seconds = time.monotonic() - began, time.process_time() - processor_began
        for row in range(0, FLAGS.queries, max(FLAGS.queries // 3, 1)):
            products = passages @ queries[row]
            nearest = np.argsort(-products, kind="stable")[: FLAGS.nearest]
            # products of blocks round otherwise
            assert len(set(nearest) & set(numbers[row].tolist())) >= FLAGS.nearest - 1, row
            np.testing.assert_allclose(scores[row], products[nearest], rtol=1e-4)
    results = scores.nbytes + numbers.nbytes
    operations = 2.0 * FLAGS.queries * FLAGS.passages * FLAGS.width
    print(
        f"{FLAGS.queries:,} queries, {FLAGS.passages:,} passages of {FLAGS.width} numbers, the nearest "
        f"{FLAGS.nearest}: {seconds:.0f} s ({operations / seconds / 1e9:.0f} GFLOP/s), {processor_seconds:.0f} s of "
        f"processors; {(watcher.peak - before) / 1e6:,.0f} MB, {results / 1e6:,.0f} MB of them the result"
    )


def main(_) -> None:
    """Measures what is asked for."""
    if FLAGS.setting:
        measure_group(*map(int, FLAGS.setting.split(":")))
    elif FLAGS.only == "groups":
        measure_groups()
    else:
        measure_neighbours()


if __name__ == "__main__":
    app.run(main)
