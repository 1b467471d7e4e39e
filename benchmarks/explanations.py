"""Time of an explanation beside that of as many forward passes of the same text, by turns.

    python benchmarks/explanations.py --layers=6 --hidden_size=384

The forward passes are those of the served model, traced once, with the steps of a text in one batch.
"""

import os
import tempfile
import time

import numpy as np
import tensorflow as tf
from absl import app, flags
from random_models import config_of, write_model

import official_bert
from official_bert.models.classifier import Classifier
from official_bert.serving.explanations import TOKENS_AT_ONCE
from official_bert.text.vocab import SPECIAL_TOKENS

FLAGS = flags.FLAGS
flags.DEFINE_integer("layers", 12, "Layers of the model.")
flags.DEFINE_integer("hidden_size", 768, "Its width, a multiple of 64.")
flags.DEFINE_integer("steps", 50, "Points of the path, and forward passes.")
flags.DEFINE_multi_integer("words", [20, 60, 120], "Words of the text.")
flags.DEFINE_integer("turns", 5, "Times of each, after one that is not measured.")
WORDS = [f"w{number}" for number in range(1000)]


def main(_):
    folder, vocab = os.path.join(tempfile.mkdtemp(), "bert"), [*SPECIAL_TOKENS, *WORDS]
    config = config_of(len(vocab), FLAGS.layers, FLAGS.hidden_size)
    write_model(folder, Classifier.make(config), config, vocab, head="classifier")
    predictor = official_bert.Predictor(folder)
    served = predictor._model.owner
    passes = tf.function(served.call_model, reduce_retracing=True, autograph=False)
    for count in FLAGS.words:
        text = " ".join(WORDS[:count])
        ids = served.tokenizer.host.encode([text])
        at_once = max(1, TOKENS_AT_ONCE // ids["input_ids"].shape[1])
        sizes = [len(part) for part in np.array_split(range(FLAGS.steps), -(-FLAGS.steps // at_once))]
        batches = [{name: tf.repeat(tf.constant(value), size, 0) for name, value in ids.items()} for size in sizes]
        times = []
        for _ in range(FLAGS.turns + 1):
            moments = [(time.perf_counter(), time.process_time())]
            predictor.explain(text, FLAGS.steps)
            moments.append((time.perf_counter(), time.process_time()))
            for batch in batches:
                passes(batch)["logits"].numpy()
            moments.append((time.perf_counter(), time.process_time()))
            times.append(np.diff(moments, axis=0))
        least = np.min(times[1:], axis=0)  # [explanation or passes, seconds of clock or processor]
        ratios = least[0] / least[1]
        print(
            f"{count} words: explanation {least[0, 0]:.3f} s, {FLAGS.steps} forward passes {least[1, 0]:.3f} s: "
            f"{ratios[0]:.2f} times; processor seconds {least[0, 1]:.3f} and {least[1, 1]:.3f}: {ratios[1]:.2f} times",
            flush=True,
        )


if __name__ == "__main__":
    app.run(main)
