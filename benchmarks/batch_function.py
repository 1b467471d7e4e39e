"""Compares our batcher with TensorFlow's (`tf.nondifferentiable_batch_function`): single texts from several clients at
once.

    python benchmarks/batch_function.py --model=models/small/text/1

Both run the same SavedModel in this process, with two batch threads and batches of at most 32 rows, without waiting for
more. TensorFlow's batcher is in the graph and blocks its calling thread, so each client is a thread; ours is called
from one event loop, as in the server. The sides take turns; figures are medians over rounds.
"""

import asyncio
import concurrent.futures
import random
import statistics
import time

import numpy as np
from absl import app, flags

FLAGS = flags.FLAGS
flags.DEFINE_string("model", None, "A SavedModel's folder: one text in.", required=True)
flags.DEFINE_list("clients", ["1", "8", "32"], "Clients at once.")
flags.DEFINE_integer("requests", 400, "Requests a turn.")
flags.DEFINE_integer("rounds", 3, "Turns of each side.")
ROWS, THREADS = 32, 2
WORDS = (
    "the",
    "a",
    "of",
    "river",
    "mountain",
    "paper",
    "engine",
    "teacher",
    "walked",
    "writes",
    "between",
    "never",
    "quickly",
    "garden",
)


def make_ours():
    """Returns a function that sends texts to our batcher and gives the seconds of each."""
    from official_bert.server.metrics import Metrics
    from official_bert.server.models.servable import Servable
    from official_bert.server.queue.batching import Batcher, BatchingParameters

    signature = Servable("model", 1, FLAGS.model).signature("")

    async def ask(texts, clients):
        batcher, seconds, waiting = (
            Batcher(BatchingParameters(max_batch_size=ROWS, num_batch_threads=THREADS), Metrics()),
            [],
            iter(texts),
        )

        async def client():
            for text in waiting:
                began = time.perf_counter()
                await batcher.answer("", {"text": np.array([text], object)}, signature.run)
                seconds.append(time.perf_counter() - began)

        await asyncio.gather(*(client() for _ in range(clients)))
        batcher.close()
        return seconds

    return lambda texts, clients: asyncio.run(ask(texts, clients))


def make_tensorflows():
    """Returns the same for TensorFlow's batcher. It has no errors per request, no deadlines and no rows of different
    lengths.
    """
    import tensorflow as tf

    model = tf.saved_model.load(FLAGS.model)  # must be kept alive as long as its signature
    signature = model.signatures["serving_default"]
    names = sorted(signature.structured_outputs)

    @tf.nondifferentiable_batch_function(THREADS, ROWS, 0, max_enqueued_batches=100)
    def batched(text):
        outputs = signature(text=text)
        return [outputs[name] for name in names]

    call = tf.function(batched).get_concrete_function(tf.TensorSpec([None], tf.string))

    def ask(texts, clients):
        assert model is not None

        def one(text):
            began = time.perf_counter()
            call(tf.constant([text]))[0].numpy()
            return time.perf_counter() - began

        with concurrent.futures.ThreadPoolExecutor(clients) as pool:
            return list(pool.map(one, texts))

    return ask


def main(_) -> None:
    """Takes turns, then prints a row for each number of clients."""
    import tensorflow_text  # noqa: F401

    draw = random.Random(1)
    texts = [" ".join(draw.choices(WORDS, k=int(60 ** draw.random()))).encode() for _ in range(FLAGS.requests)]
    sides = {"ours": make_ours(), "TensorFlow's": make_tensorflows()}
    for ask in sides.values():
        ask(texts[:64], 8)
    print("| clients | side | requests/s | p50 (ms) | p99 (ms) |\n|---|---|---|---|---|")
    for clients in map(int, FLAGS.clients):
        rates = {side: [] for side in sides}
        for _ in range(FLAGS.rounds):
            for side, ask in sides.items():
                began = time.perf_counter()
                seconds = sorted(ask(texts, clients))
                rates[side].append(
                    (
                        len(texts) / (time.perf_counter() - began),
                        1000 * statistics.median(seconds),
                        1000 * seconds[int(0.99 * len(seconds))],
                    )
                )
        for side, rounds in rates.items():
            print(
                f"| {clients} | {side} | "
                + " | ".join(f"{statistics.median(column):.1f}" for column in zip(*rounds))
                + " |"
            )


if __name__ == "__main__":
    app.run(main)
