"""Compares exported models of one checkpoint: the operations of their graphs, their answers, and their times in turns.

    python benchmarks/compare_exports.py before/models/minilm after/models/minilm

Each argument is a folder of `run_export`. Times are medians over rounds of one short text, and of batches of 8 and 32
texts of 32 tokens.
"""

import collections
import os
import statistics
import time

import numpy as np
from absl import app, flags

FLAGS = flags.FLAGS
flags.DEFINE_integer("rounds", 7, "Turns of each model.", lower_bound=1)
flags.DEFINE_float("turn_seconds", 2.0, "A turn lasts about so long.", lower_bound=0.1)
SHAPES = {"one row of 16 tokens": (1, 16), "8 rows of 32 tokens": (8, 32), "32 rows of 32 tokens": (32, 32)}


def rows_of_ids(rows: int, tokens: int) -> dict:
    """Returns the inputs of an `ids` signature, all tokens real."""
    import tensorflow as tf

    ids = np.random.default_rng(0).integers(1000, 20000, (rows, tokens)).astype("int32")
    return {"input_ids": tf.constant(ids), "input_mask": tf.ones_like(ids), "segment_ids": tf.zeros_like(ids)}


def operations(signature) -> collections.Counter:
    """Returns how often each kind of operation stands in a graph and its functions."""
    graph = signature.graph.as_graph_def()
    nodes = [*graph.node, *(node for function in graph.library.function for node in function.node_def)]
    return collections.Counter(node.op for node in nodes)


def seconds_a_call(signature, inputs: dict, calls: int) -> float:
    """Returns the mean seconds of some calls."""
    began = time.monotonic()
    for _ in range(calls):
        signature(**inputs)
    return (time.monotonic() - began) / calls


def main(arguments):
    import tensorflow as tf
    import tensorflow_text  # noqa: F401

    models = {folder: tf.saved_model.load(os.path.join(folder, "ids", "1")) for folder in arguments[1:]}
    signatures = {folder: model.signatures["serving_default"] for folder, model in models.items()}
    first, *others = signatures
    for folder in others:
        before, after = operations(signatures[first]), operations(signatures[folder])
        changed = {
            name: f"{before[name]} -> {after[name]}" for name in sorted(before | after) if before[name] != after[name]
        }
        print(f"operations of {folder}: {changed or 'equal'}")
    for name, shape in SHAPES.items():
        inputs = rows_of_ids(*shape)
        answers = {
            folder: np.concatenate(
                [np.ravel(value) for key, value in sorted(signature(**inputs).items()) if value.dtype != tf.string]
            )
            for folder, signature in signatures.items()
        }
        calls = max(1, round(FLAGS.turn_seconds / seconds_a_call(signatures[first], inputs, 3)))
        times: dict[str, list[float]] = {folder: [] for folder in signatures}
        for _ in range(FLAGS.rounds):
            for folder, signature in signatures.items():
                times[folder].append(seconds_a_call(signature, inputs, calls))
        for folder in others:
            ratio = statistics.median(before / after for before, after in zip(times[first], times[folder]))
            difference = np.abs(answers[folder] - answers[first]).max()
            print(
                f"{name}: {1000 * statistics.median(times[first]):.2f} and "
                f"{1000 * statistics.median(times[folder]):.2f} ms, "
                f"speed {ratio:.3f}, largest difference {difference:.1e}"
            )


if __name__ == "__main__":
    app.run(main)
