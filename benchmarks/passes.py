"""What it costs to write in P passes, beside P forward passes of the same rows, by turns.

    python benchmarks/passes.py --layers=4 --hidden_size=256

`generate` fills rows whose blanks are as many as the passes. A forward pass is a compiled call of the model, with the
masked-LM head at the places of the blanks. The least times are compared.
"""

import time

import numpy as np
import tensorflow as tf
from absl import app, flags
from random_models import config_of

from official_bert.generation.generate import generate
from official_bert.models.pretrainer import Pretrainer
from official_bert.text.tokenization import FullTokenizer
from official_bert.text.vocab import SPECIAL_TOKENS

FLAGS = flags.FLAGS
flags.DEFINE_integer("layers", 12, "Layers of the model.")
flags.DEFINE_integer("hidden_size", 768, "Its width, a multiple of 64.")
flags.DEFINE_integer("words", 30522, "Words of its vocabulary.")
flags.DEFINE_integer("rows", 8, "Rows.")
flags.DEFINE_integer("length", 64, "Tokens of a row.")
flags.DEFINE_integer("passes", 12, "Passes, and blanks of a row.")
flags.DEFINE_integer("turns", 9, "Turns, after one that is not measured.")


def seconds_of(work) -> tuple[float, float]:
    """Returns the seconds of a call, and its processor seconds."""
    began = time.perf_counter(), time.process_time()
    work()
    return time.perf_counter() - began[0], time.process_time() - began[1]


def main(_):
    words = [*SPECIAL_TOKENS, *(f"w{number}" for number in range(FLAGS.words - len(SPECIAL_TOKENS)))]
    tokenizer = FullTokenizer("words", vocab={word: number for number, word in enumerate(words)})
    config = config_of(len(words), FLAGS.layers, FLAGS.hidden_size)
    model = Pretrainer.make(config)
    ids = np.random.default_rng(0).integers(len(SPECIAL_TOKENS), len(words), (FLAGS.rows, FLAGS.length))
    places = np.tile(np.arange(FLAGS.length - FLAGS.passes, FLAGS.length), (FLAGS.rows, 1))
    ids[:, -FLAGS.passes :] = tokenizer.special_id("[MASK]")
    rows = {"input_ids": ids, "input_mask": np.ones_like(ids), "segment_ids": np.zeros_like(ids)}
    inputs = {name: tf.constant(values, tf.int32) for name, values in (rows | {"masked_lm_positions": places}).items()}
    spec = {name: tf.TensorSpec([None, None], tf.int32) for name in inputs}
    forward = tf.function(lambda batch: model(batch, training=False)["mlm_logits"], input_signature=[spec])

    def forward_passes() -> None:
        for _ in range(FLAGS.passes):
            forward(inputs)

    turns = [
        (*seconds_of(lambda: generate(model, rows, tokenizer, passes=FLAGS.passes)), *seconds_of(forward_passes))
        for _ in range(FLAGS.turns + 1)
    ]
    written, work, forwards, forward_work = np.array(turns[1:]).T
    print(
        f"least of {FLAGS.turns} turns: {FLAGS.passes} passes {written.min():.3f} s, {FLAGS.passes} forward passes "
        f"{forwards.min():.3f} s: {written.min() / forwards.min():.3f} times as much (by turns: "
        f"{np.min(written / forwards):.3f} to {np.max(written / forwards):.3f}); processor seconds {work.min():.3f} "
        f"and {forward_work.min():.3f}: {work.min() / forward_work.min():.3f} times"
    )


if __name__ == "__main__":
    app.run(main)
