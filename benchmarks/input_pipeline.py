"""Compares the speed of the input pipeline with that of training the tiny model, in turns in one run.

    python benchmarks/input_pipeline.py --input_file='train-*.tfrecord'

Records come from tools/create_pretraining_data.py. Each round first reads batches alone for some seconds, then trains
some steps. Prints a table and the ratio; the goal is a pipeline at least 20 times as fast as training.
"""

import statistics
import time

import tensorflow as tf
from absl import app, flags

FLAGS = flags.FLAGS
flags.DEFINE_string("input_file", None, "Records: comma-separated globs.", required=True)
flags.DEFINE_string("config", "configs/pretrain/tiny.yaml", "The run's YAML.")
flags.DEFINE_multi_string("set", [], "Overrides.")
flags.DEFINE_integer("rounds", 3, "Turns of each side.")
flags.DEFINE_float("seconds", 5.0, "Seconds of reading in a round.")
flags.DEFINE_integer("steps", 10, "Training steps in a round.")


def read(batches, seconds: float) -> float:
    """Returns batches per second without a model."""
    count, began = 0, time.monotonic()
    while time.monotonic() - began < seconds:
        next(batches)
        count += 1
    return count / (time.monotonic() - began)


def train(trainer, iterator, steps: int) -> float:
    """Returns steps per second, reading included."""
    began = time.monotonic()
    trainer.run_steps(iterator, tf.constant(steps)).numpy()
    return steps / (time.monotonic() - began)


def main(_) -> None:
    """Warms both up, takes turns, prints."""
    from official_bert.config import load_config
    from official_bert.tasks.data import TRAIN_AND_EVALUATE, DataFiles
    from official_bert.tasks.loading import load_task
    from official_bert.training.machines.cluster import Placement
    from official_bert.training.machines.distribution import make_strategy
    from official_bert.training.trainer import Trainer

    config = load_config(FLAGS.config, overrides=FLAGS.set)
    strategy = make_strategy(Placement())
    resolved = load_task(config).data.resolve(DataFiles(train_file=FLAGS.input_file), TRAIN_AND_EVALUATE)
    source = resolved.train
    trainer = Trainer(resolved.recipe, strategy, 1000)
    batches, iterator = iter(source.dataset()), iter(source.dataset())
    read(batches, 1.0)
    train(trainer, iterator, 2)
    source_rates, training_rates = [], []
    for _ in range(FLAGS.rounds):
        source_rates.append(read(batches, FLAGS.seconds) * source.batch_size)
        training_rates.append(train(trainer, iterator, FLAGS.steps) * source.batch_size)
    print("| | sequences/s, median (least to most) |\n|---|---|")
    for name, rates in (("the input pipeline alone", source_rates), ("training", training_rates)):
        print(f"| {name} | {statistics.median(rates):,.0f} ({min(rates):,.0f} to {max(rates):,.0f}) |")
    print(
        f"\nthe pipeline gives {statistics.median(source_rates) / statistics.median(training_rates):.1f} times what "
        f"training takes"
    )


if __name__ == "__main__":
    app.run(main)
