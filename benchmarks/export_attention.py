"""Measures what `ServedAttention` brings to exported graphs, beside Keras' own layer.

    python benchmarks/export_attention.py --vocab_file=vocab.txt --rounds=30

Both are exported with the same random weights at MiniLM's size. They answer in turn; the least time of a request
counts, because other programs may run meanwhile.
"""

import contextlib
import dataclasses
import os
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from unittest import mock

import numpy as np
from absl import app, flags, logging

FLAGS = flags.FLAGS
flags.DEFINE_string("vocab_file", None, "A vocabulary of WordPieces.", required=True)
flags.DEFINE_integer("rounds", 30, "Turns of each side.", lower_bound=1)
flags.DEFINE_integer("layers", 6, "Of the model.", lower_bound=1)
flags.DEFINE_list("formats", ["onnx", "litert", "openvino"], "Other runtimes.")
SHAPES = {"1 x 16": (1, 16), "1 x 40": (1, 40), "8 x 32": (8, 32), "8 x 128": (8, 128), "32 x 64": (32, 64)}


@contextlib.contextmanager
def keras_attention():
    """Exports made here compute attention by the layers' own `call`."""
    from official_bert.serving import few_tokens, served_layers

    with (
        mock.patch.object(served_layers, "has_plain_attention", lambda _: False),
        mock.patch.object(few_tokens, "has_plain_attention", lambda _: False),
    ):
        yield


SIDES = {"as it is": contextlib.nullcontext, "layers' own": keras_attention}


def make_exports(folder: str) -> None:
    """Writes the model of each side."""
    import keras

    from official_bert.config import load_config
    from official_bert.serving import export
    from official_bert.serving.served_embeddings import make_served_model
    from official_bert.serving.served_model import ServingOptions
    from official_bert.tasks.loading import load_task

    config = load_config(
        overrides=[
            "task=classification",
            "options.max_seq_length=128",
            f"tokenizer.vocab_file={FLAGS.vocab_file}",
            f"model={{hidden_size: 384, num_hidden_layers: {FLAGS.layers}, num_attention_heads: 12, "
            "intermediate_size: 1536}",
        ]
    )
    config = dataclasses.replace(config, options={**config.options, "labels": ["no", "yes"]})
    for name, side in SIDES.items():
        keras.utils.set_random_seed(1)
        task = load_task(config)
        served = make_served_model(task, task.build_model(), ServingOptions())
        formats = ["saved_model", *FLAGS.formats]
        with side():
            try:
                export.export(
                    served,
                    config,
                    export.ExportOptions(output=os.path.join(folder, name), batch_sizes=(), formats=formats),
                )
            except Exception as error:  # a runtime may lack an operation of a side
                print(f"{name}: {error}", file=sys.stderr)


def runners(folder: str) -> dict[str, dict[str, Callable[[Mapping[str, np.ndarray]], object]]]:
    """Returns what answers, by format and side."""
    import tensorflow as tf

    from official_bert.runtimes.engines import load_engine

    found: dict[str, dict[str, Callable]] = {}
    for name in sorted(os.listdir(folder)):
        for form in sorted(os.listdir(os.path.join(folder, name))):
            place = os.path.join(folder, name, form, "1")
            if form == "ids":
                model = tf.saved_model.load(place)
                signature = model.signatures["serving_default"]
                found.setdefault("SavedModel", {})[name] = lambda rows, signature=signature, model=model: signature(
                    **{key: tf.constant(value) for key, value in rows.items()}
                )
            elif form in FLAGS.formats:
                found.setdefault(form, {})[name] = load_engine(place)[0]
    return found


def main(_) -> None:
    """Exports, asks in turn, prints the least times and their ratios."""
    logging.set_verbosity(logging.WARNING)
    folder = tempfile.mkdtemp()
    make_exports(folder)
    rng = np.random.default_rng(0)
    for form, by_side in runners(folder).items():
        for shape, (rows, length) in SHAPES.items():
            ids = rng.integers(5, 9000, (rows, length)).astype(np.int32)
            inputs = {"input_ids": ids, "input_mask": np.ones_like(ids), "segment_ids": np.zeros_like(ids)}
            times: dict[str, list[float]] = {name: [] for name in by_side}
            for turn in range(FLAGS.rounds + 3):
                for name, answer in by_side.items():
                    began = time.perf_counter()
                    answer(inputs)
                    times[name] += [time.perf_counter() - began] if turn >= 3 else []
            least = {name: min(values) for name, values in times.items()}
            base = least["as it is"]
            told = ", ".join(f"{name} {1e3 * value:.2f} ms ({value / base:.2f})" for name, value in least.items())
            print(f"{form} {shape}: {told}", flush=True)


if __name__ == "__main__":
    app.run(main)
