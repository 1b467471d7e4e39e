"""Measures by turns what steps of fine-tuning take with padding and with real tokens alone (`training.skip_padding`),
as a Markdown table.

    make minilm
    python benchmarks/skipped_padding.py --data=FOLDER --init_checkpoint=MODEL_FOLDER

FOLDER holds `glue/MRPC`, `glue/RTE`, ... as published. Both take the same batches in one process, --turns times, after
a turn in which all is compiled. Processor time is that of all threads; it says more than time if other programs run.
"""

import os
import statistics
import time

import tensorflow as tf
from absl import app, flags

FLAGS = flags.FLAGS
flags.DEFINE_string("data", None, "The folder of the data.", required=True)
flags.DEFINE_string(
    "init_checkpoint", None, "A Hugging Face folder: its configuration and its vocabulary.", required=True
)
flags.DEFINE_list("datasets", ["mrpc", "sst2"], "Of GLUE.")
flags.DEFINE_enum(
    "precision", "float32", ["float32", "bfloat16"], "bfloat16 as in a long training: compiled for each length."
)
flags.DEFINE_integer("batch_size", 32, "Rows of a batch.")
flags.DEFINE_integer("turns", 3, "Turns of both.", lower_bound=1)
flags.DEFINE_integer("steps", 20, "Steps, and batches, of a turn.", lower_bound=1)
LONG_TRAINING = 10**6  # steps


class Contender:
    """A training with one value of `skip_padding`."""

    def __init__(self, dataset: str, skips: bool):
        from official_bert.config import load_config
        from official_bert.runs.configuration import run_config
        from official_bert.tasks.data import TRAIN_AND_EVALUATE, DataFiles
        from official_bert.tasks.loading import load_task
        from official_bert.tasks.texts import glue_files
        from official_bert.training.machines import distribution
        from official_bert.training.machines.cluster import Placement
        from official_bert.training.trainer import Trainer

        config = load_config(
            None,
            overrides=[
                "task=glue",
                f"options.dataset={dataset}",
                f"training.batch_size={FLAGS.batch_size}",
                f"training.precision={FLAGS.precision}",
                f"training.skip_padding={skips}".lower(),
            ],
            defaults=run_config.DEFAULTS,
            checkpoint=run_config.checkpoint_values(FLAGS.init_checkpoint),
        )
        distribution.set_precision(FLAGS.precision)
        folder = os.path.join(FLAGS.data, "glue", glue_files.DATASETS[dataset].folder)
        resolved = load_task(config).data.resolve(DataFiles(data_dir=folder), TRAIN_AND_EVALUATE)
        self.trainer = Trainer(resolved.recipe, distribution.make_strategy(Placement()), LONG_TRAINING)
        source = resolved.train
        if self.trainer.step.compiles_every_length:
            source.round_lengths()
        batches = list(source.dataset().take(FLAGS.steps))
        self.padded = sum(batch["input_mask"].shape.num_elements() for batch in batches)
        self.tokens = sum(int(tf.reduce_sum(batch["input_mask"])) for batch in batches)
        self.batches = iter(source.dataset().take(FLAGS.steps).cache().repeat())
        self.seconds: list[float] = []
        self.processor_seconds: list[float] = []

    def measure(self) -> None:
        """Takes the steps of a turn; notes what a step took."""
        began, at_work = time.perf_counter(), time.process_time()
        self.trainer.run_steps(self.batches, tf.constant(FLAGS.steps)).numpy()
        self.seconds.append((time.perf_counter() - began) / FLAGS.steps)
        self.processor_seconds.append((time.process_time() - at_work) / FLAGS.steps)


def row_of(dataset: str) -> str:
    """Measures a data set; returns its row of the table."""
    contenders = [Contender(dataset, skips) for skips in (False, True)]
    for _ in range(FLAGS.turns + 1):
        for contender in contenders:
            contender.measure()
    padded, real = contenders
    cells = [dataset, f"{padded.padded / padded.tokens:.2f}"]
    for name in ("seconds", "processor_seconds"):
        before, after = (getattr(contender, name)[1:] for contender in (padded, real))
        ratios = [one / other for one, other in zip(before, after)]
        cells += [
            f"{1000 * statistics.median(before):.0f}",
            f"{1000 * statistics.median(after):.0f}",
            f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})",
        ]
    return f"| {' | '.join(cells)} |"


def main(_) -> None:
    """Prints the table."""
    print(
        f"| {FLAGS.precision} | tokens with padding / real | step (ms) | real tokens alone (ms) | times as fast "
        "| processor time (ms) | real tokens alone (ms) | times as fast |"
    )
    print("|---" * 8 + "|")
    for dataset in FLAGS.datasets:
        print(row_of(dataset), flush=True)


if __name__ == "__main__":
    app.run(main)
