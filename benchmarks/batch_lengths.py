"""Counts the tokens of an epoch of fine-tuning, padding included, for batches sorted in chunks of several sizes, as a
Markdown table.

    make minilm
    python benchmarks/batch_lengths.py --data=FOLDER --init_checkpoint=MODEL_FOLDER

FOLDER holds `glue/MRPC`, `glue/RTE`, ... as published. Chunks of one batch are batches in random order.
"""

import os

import numpy as np
from absl import app, flags

FLAGS = flags.FLAGS
flags.DEFINE_string("data", None, "The folder of the data.", required=True)
flags.DEFINE_string("init_checkpoint", None, "A Hugging Face folder.", required=True)
flags.DEFINE_integer("batch_size", 32, "Rows of a batch.")
DATASETS = ("mrpc", "rte", "stsb", "cola", "sst2")
CHUNKS = (1, 4, 10, 50)


def train_source(dataset: str):
    """Returns the training batches of a data set, with the defaults of `run_finetuning`."""
    from official_bert.config import load_config
    from official_bert.runs.configuration import run_config
    from official_bert.tasks.data import TRAIN_AND_EVALUATE, DataFiles
    from official_bert.tasks.loading import load_task

    config = load_config(
        None,
        overrides=["task=glue", f"options.dataset={dataset}", f"training.batch_size={FLAGS.batch_size}"],
        defaults=run_config.DEFAULTS,
        checkpoint=run_config.checkpoint_values(FLAGS.init_checkpoint),
    )
    return (
        load_task(config).data.resolve(DataFiles(data_dir=os.path.join(FLAGS.data, "glue")), TRAIN_AND_EVALUATE).train
    )


def padded_share(examples, chunk: int) -> float:
    """Returns the tokens of an epoch with padding, divided by those without, where so many batches at a time are sorted
    by length.
    """
    from official_bert.data.batches import sources

    sources.SORTED_BATCHES = chunk
    source = sources.ExampleSource(examples, FLAGS.batch_size, seed=1)
    padded = sum(source.lengths[rows].max() * len(rows) for rows in source.plan(0))
    return padded / np.sum(source.lengths)


def main(_) -> None:
    """Prints the table."""
    from official_bert.tasks.texts import glue_files

    print(f"| data set | rows | tokens of a row | {' | '.join(f'chunks of {chunk}' for chunk in CHUNKS)} |")
    print("|---" * (3 + len(CHUNKS)) + "|")
    for dataset in DATASETS:
        source = train_source(dataset)
        cells = " | ".join(f"{padded_share(source.examples, chunk):.3f}" for chunk in CHUNKS)
        print(
            f"| {glue_files.DATASETS[dataset].folder} | {len(source.lengths):,} | {np.mean(source.lengths):.1f} | "
            f"{cells} |",
            flush=True,
        )


if __name__ == "__main__":
    app.run(main)
