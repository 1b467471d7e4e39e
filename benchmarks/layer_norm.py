"""Compares forms of layer norm in a graph without a compiler, as SavedModels are run: ours, Keras', and TensorFlow's
fused batch norm.

    python benchmarks/layer_norm.py --width=384

Twelve in a row, as in a small encoder; medians of all rounds, in which the forms take turns, less those of a chain of
twelve products of the same tensor. The last column is the largest difference from the formula in float64, for gamma and
beta around 1 and 0.
"""

import statistics
import time

import keras
import numpy as np
import tensorflow as tf
from absl import app, flags

from official_bert.layers.layer_norm import LayerNormalization

FLAGS = flags.FLAGS
flags.DEFINE_integer("width", 384, "Numbers of a token.", lower_bound=1)
flags.DEFINE_integer("rounds", 100, "Runs of each form.", lower_bound=3)
COUNT, EPSILON = 12, 1e-12
SHAPES = ((1, 16), (8, 32), (32, 64))


def by_batch_norm(x, gamma, beta):
    """Layer norm as the batch norm of one picture that has a channel for each token."""
    width = x.shape[-1]
    rows = tf.reshape(x, [1, -1, width, 1])
    channels = tf.shape(rows)[1:2]
    normed = tf.compat.v1.nn.fused_batch_norm(
        rows,
        tf.fill(channels, 1.0),
        tf.fill(channels, 0.0),
        tf.constant([]),
        tf.constant([]),
        epsilon=EPSILON,
        data_format="NCHW",
        is_training=True,
    )[0]
    return tf.reshape(normed, tf.shape(x)) * gamma + beta


def make_forms(width: int):
    """Returns one step of a chain by name, and gamma and beta."""
    rng = np.random.default_rng(0)
    gamma, beta = rng.normal(1, 0.1, width).astype(np.float32), rng.normal(0, 0.1, width).astype(np.float32)
    layers = {"ours": LayerNormalization(epsilon=EPSILON), "Keras": keras.layers.LayerNormalization(epsilon=EPSILON)}
    for layer in layers.values():
        layer.build((None, None, width))
        layer.set_weights([gamma, beta])
    kept = [tf.Variable(value) for value in (gamma, beta)]
    return {**layers, "fused batch norm": lambda x: by_batch_norm(x, *kept), "": lambda x: x * kept[0]}, gamma, beta


def main(_) -> None:
    """Prints a table in Markdown."""
    forms, gamma, beta = make_forms(FLAGS.width)
    signature = [tf.TensorSpec((None, None, FLAGS.width))]
    once = {name: tf.function(form, input_signature=signature, autograph=False) for name, form in forms.items()}

    def chain_of(form):
        def chain(x):
            for _ in range(COUNT):
                x = form(x)
            return x

        return tf.function(chain, input_signature=signature, autograph=False)

    chains = {name: chain_of(form) for name, form in forms.items()}
    print("| rows x tokens | form | ms | beside Keras' | largest difference |\n|---|---|---|---|---|")
    for rows, tokens in SHAPES:
        x = np.random.default_rng(1).normal(size=(rows, tokens, FLAGS.width)).astype(np.float32)
        wide = x.astype(np.float64)
        expected = (wide - wide.mean(-1, keepdims=True)) / np.sqrt(wide.var(-1, keepdims=True) + EPSILON) * gamma + beta
        seconds: dict[str, list[float]] = {name: [] for name in forms}
        inputs = tf.constant(x)
        for _ in range(FLAGS.rounds + 1):
            for name, chain in chains.items():
                began = time.perf_counter()
                chain(inputs).numpy()
                seconds[name].append(time.perf_counter() - began)
        medians = {name: statistics.median(times[1:]) for name, times in seconds.items()}
        for name in list(forms)[:-1]:
            ratio = (medians[name] - medians[""]) / (medians["Keras"] - medians[""])
            difference = np.abs(once[name](inputs).numpy() - expected).max()
            time_left = 1e3 * (medians[name] - medians[""])
            print(f"| {rows} x {tokens} | {name} | {time_left:.2f} | {ratio:.2f} | {difference:.1e} |", flush=True)


if __name__ == "__main__":
    app.run(main)
