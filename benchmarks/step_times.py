"""Measures by turns what a step of each row of an ablation takes, and what a text costs its model: `run_ablations
--step_times` reads it.

    python benchmarks/step_times.py --suites_file=objectives.yaml --scale=wikipedia --output=times.json

Times of different hours cannot be compared, so all rows are measured in one process, one after another, --turns times;
each number is the median. A step is that of the row's own configuration on one batch of random ids, its teacher (of
random weights) included; a text is one of full length in a batch of 32, through the encoder and a classifier of two
labels. Run it on a quiet machine.
"""

import json
import pathlib
import statistics
import tempfile
import time
from collections.abc import Mapping

import numpy as np
import tensorflow as tf
from absl import app, flags

from official_bert.config import Config, build, merge
from official_bert.models.checkpoints import weights_checkpoint
from official_bert.models.classifier import Classifier
from official_bert.run_folder import RunFolder
from official_bert.runs.beginning.preparation import distilled_of
from official_bert.storage.files import written_whole
from official_bert.tasks.loading import load_task
from official_bert.tools.ablations.plan import Plan
from official_bert.training.machines import distribution
from official_bert.training.trainer import Trainer

ROOT = pathlib.Path(__file__).resolve().parent.parent
TEXTS = 32  # of a batch of answers
FLAGS = flags.FLAGS
flags.DEFINE_string("suites_file", "objectives.yaml", "The rows: a file of tools/ablations.")
flags.DEFINE_string("scale", "wikipedia", "One of its scales.")
flags.DEFINE_list("rows", [], "Only these rows.")
flags.DEFINE_integer("turns", 3, "Turns of all rows.", lower_bound=1)
flags.DEFINE_integer("steps", 20, "Steps of a row in each turn.", lower_bound=1)
flags.DEFINE_string("output", None, "The file to write.", required=True)


def random_batch(spec: Mapping[str, tf.TensorSpec], vocab_size: int) -> dict[str, tf.Tensor]:
    """Returns a batch of full rows of random ids."""
    rng, batch = np.random.default_rng(0), {}
    length = spec["input_ids"].shape[1]
    for name, feature in spec.items():
        highest = {"masked_lm_positions": length, "next_sentence_labels": 2, "segment_ids": 2}.get(name, vocab_size)
        values = (
            rng.integers(0, highest, feature.shape)
            if feature.dtype.is_integer and name != "input_mask"
            else np.ones(feature.shape)
        )
        batch[name] = tf.constant(values, feature.dtype)
    return batch


class Contender:
    """The step of a row, and the answers of its model."""

    def __init__(self, plan: Plan, row: str, folder: str):
        values = merge(plan.pretraining(row), {"training": {"steps": 1000}})
        if teacher := plan.rows[row].teacher:
            values = merge(values, {"training": {"teacher": write_teacher(plan, teacher, folder)}})
        config = build(Config, values)
        distribution.set_precision(config.training.precision)
        task = load_task(config)
        recipe = task.recipe(task.build_model(), distilled_of(task))
        self.trainer = Trainer(recipe, distribution.make_strategy(distribution.Placement()), 1000)
        batch = random_batch(task.data.batch_spec(config.training.batch_size), config.model.vocab_size)
        self.batches = iter(tf.data.Dataset.from_tensors(batch).repeat())
        classifier = Classifier.make(config.model, {"num_classes": 2})
        self.texts = {name: batch[name][:TEXTS] for name in ("input_ids", "input_mask", "segment_ids")}
        self.answer = tf.function(lambda texts: classifier(texts, training=False)["logits"])
        self.measured: dict[str, list[float]] = {"step": [], "text": []}
        self.measure(1)
        self.measured = {"step": [], "text": []}

    def measure(self, steps: int) -> None:
        """Takes some steps and answers as often; notes the milliseconds of a step, and of a text."""
        began = time.perf_counter()
        self.trainer.run_steps(self.batches, tf.constant(steps)).numpy()
        self.measured["step"].append(1000 * (time.perf_counter() - began) / steps)
        began = time.perf_counter()
        for _ in range(steps):
            self.answer(self.texts).numpy()
        self.measured["text"].append(1000 * (time.perf_counter() - began) / steps / TEXTS)


def write_teacher(plan: Plan, row: str, folder: str) -> str:
    """Writes a run of a row's model with random weights; returns its path."""
    config = build(Config, merge(plan.pretraining(row), {"training": {"steps": 1000}}))
    run = RunFolder(f"{folder}/{row}")
    run.make()
    weights_checkpoint(load_task(config).build_model()).write(run.checkpoint(1))
    run.write_config(config)
    return run.path


def main(_) -> None:
    """Measures all rows by turns, and writes the medians."""
    plan = Plan.read(str(ROOT), FLAGS.scale, FLAGS.suites_file)
    names = FLAGS.rows or [name for name, row in plan.rows.items() if row.config]
    with tempfile.TemporaryDirectory() as folder:
        contenders = {name: Contender(plan, name, folder) for name in names}
        for _ in range(FLAGS.turns):
            for contender in contenders.values():
                contender.measure(FLAGS.steps)
    medians = {
        what: {name: round(statistics.median(one.measured[what]), 4) for name, one in contenders.items()}
        for what in ("step", "text")
    }
    with written_whole(FLAGS.output) as file:
        json.dump(medians, file, indent=1)
    for name in names:
        print(f"{name:24} {medians['step'][name]:10.2f} ms a step {medians['text'][name]:8.3f} ms a text")


if __name__ == "__main__":
    app.run(main)
