"""Measures what windows and blocks of queries win for long rows: time and peak memory, beside one matrix of scores for
each layer.

    python benchmarks/long_rows.py                                     # ModernBERT-base's sizes, 4,096 tokens
    python benchmarks/long_rows.py --tokens=8192 --layers=4 --train    # forward and backward pass of fewer layers

First the attention alone, from queries, keys and values to what each head attends to, of a layer that sees all tokens
and of one with a window, by turns. Then the encoder as it is, and the same weights with a whole matrix of scores in
every layer (`dense`), which masks what is outside of the window: by turns, each in its own process, whose peak memory
counts from before the first pass.
"""

import json
import pathlib
import statistics
import subprocess
import sys
import time

import numpy as np
from absl import app, flags
from step_contenders import resident

FLAGS = flags.FLAGS
flags.DEFINE_string(
    "config", str(pathlib.Path(__file__).parent.parent / "configs/model/modern_base.yaml"), "The model's YAML."
)
flags.DEFINE_integer("tokens", 4096, "Tokens of a row.")
flags.DEFINE_integer("layers", 0, "Layers; 0: as many as the model has.")
flags.DEFINE_integer("passes", 3, "Timed passes of each, after one untimed pass.")
flags.DEFINE_bool("train", False, "Backward passes, too.")
flags.DEFINE_bool("only_attention", False, "No encoders.")
flags.DEFINE_enum("one", "", ["", "attention", "windows", "dense"], "Internal: what this process measures.")


def model_config():
    """Returns the model's configuration, with a small vocabulary: rows of tables are not what is measured."""
    from official_bert.config import load_config

    layers = [f"model.num_hidden_layers={FLAGS.layers}"] if FLAGS.layers else []
    return load_config(FLAGS.config, overrides=["model.vocab_size=1000", *layers]).model


def attention_alone() -> dict[str, float]:
    """Returns the seconds of the attention with a window, and of that over all tokens."""
    import tensorflow as tf

    from official_bert.layers.attention import SelfAttention
    from official_bert.layers.attention_mask import TokenInputs
    from official_bert.layers.relatives.windows import in_windows
    from official_bert.layers.speed.long_rows import LongLayout

    config = model_config()
    heads, size = config.num_attention_heads, config.hidden_size // config.num_attention_heads
    layer = SelfAttention(num_heads=heads, hidden_size=config.hidden_size, dropout=0.0)
    layer.query = layer.key = layer.value = lambda x: tf.reshape(x, (1, FLAGS.tokens, heads, size))
    layer.merge_heads = lambda x: tf.reshape(x, (1, FLAGS.tokens, heads * size))
    x = tf.random.normal((1, FLAGS.tokens, config.hidden_size))
    mask = tf.ones((1, FLAGS.tokens), tf.int32)

    def run(window):
        def forward(x):
            layout = LongLayout(None, TokenInputs(mask > 0))
            return SelfAttention.call(layer, x, in_windows(layout, window) if window else layout, training=FLAGS.train)

        def both(x):
            with tf.GradientTape() as tape:
                tape.watch(x)
                total = tf.reduce_sum(forward(x))
            return tape.gradient(total, x)

        return tf.function(both if FLAGS.train else forward, autograph=False)

    runs: dict = {"window": run(config.window), "all": run(0)}
    seconds: dict = {name: [] for name in runs}
    for turn in range(1 + 3 * FLAGS.passes):
        for name, function in runs.items():
            began = time.monotonic()
            function(x)[0, 0, 0].numpy()
            if turn:
                seconds[name].append(time.monotonic() - began)
    return {name: min(times) for name, times in seconds.items()}


def make_dense() -> None:
    """Makes layers compute one matrix of scores for all queries."""
    import dataclasses

    import tensorflow as tf

    from official_bert.layers.relatives import windows
    from official_bert.models import encoder_parts

    def in_windows(layout, window):
        places = tf.range(tf.shape(layout.inputs.input_mask)[1])
        mask = layout.mask & (tf.abs(places[:, None] - places[None]) <= window)
        return dataclasses.replace(layout, mask=mask, positions=layout.positions.in_windows())

    encoder_parts.LONG, windows.in_windows = 10**9, in_windows


def encoder_passes(dense: bool) -> dict[str, float]:
    """Returns the seconds of a pass, the peak memory beyond that before the first, in MB, and a sum of what is
    computed.
    """
    import tensorflow as tf

    from official_bert.models.encoder import make_encoder
    from official_bert.models.first_weights import draw_first_weights

    encoder = make_encoder(model_config())
    draw_first_weights(encoder, 1)
    if dense:
        make_dense()
    ids = tf.constant(np.random.default_rng(0).integers(0, 1000, (1, FLAGS.tokens)), tf.int32)
    rows = {"input_ids": ids, "input_mask": tf.ones_like(ids), "segment_ids": tf.zeros_like(ids)}

    def forward():
        return tf.reduce_sum(encoder(rows, training=FLAGS.train)["sequence_output"] ** 3)

    def both():
        with tf.GradientTape() as tape:
            total = forward()
        gradients = tape.gradient(total, [weight.value for weight in encoder.trainable_variables])
        return tf.add_n(
            [tf.reduce_sum(tf.convert_to_tensor(gradient) ** 2) for gradient in gradients if gradient is not None]
        )

    run = tf.function(both if FLAGS.train else forward, autograph=False)
    before, seconds = resident("VmRSS"), []
    for _ in range(1 + FLAGS.passes):
        began = time.monotonic()
        result = float(run())
        seconds.append(time.monotonic() - began)
    return {"seconds": min(seconds[1:]), "MB": (resident("VmHWM") - before) / 2**20, "result": result}


def child(name: str) -> dict[str, float]:
    """Runs a measurement in a process of its own."""
    done = subprocess.run(
        [sys.executable, __file__, *sys.argv[1:], f"--one={name}"], check=True, capture_output=True, text=True
    )
    return json.loads(done.stdout.splitlines()[-1])


def main(_) -> None:
    if FLAGS.one:
        figures = attention_alone() if FLAGS.one == "attention" else encoder_passes(FLAGS.one == "dense")
        print(json.dumps(figures))
        return
    figures = child("attention")
    print(
        f"attention of {FLAGS.tokens} tokens: all {figures['all']:.3f} s, window {figures['window']:.3f} s, "
        f"ratio {figures['window'] / figures['all']:.3f}",
        flush=True,
    )
    if FLAGS.only_attention:
        return
    turns = [(child("windows"), child("dense")) for _ in range(2)]
    for key in ("seconds", "MB"):
        windows, dense = (statistics.median(turn[side][key] for turn in turns) for side in (0, 1))
        print(
            f"{key}: dense {dense:,.1f}, by windows and blocks {windows:,.1f}, ratio {windows / dense:.2f}", flush=True
        )
    print(f"results: {turns[0][1]['result']:.6g} and {turns[0][0]['result']:.6g}")


if __name__ == "__main__":
    app.run(main)
