"""Fine-tuning tasks on small files with a tiny model."""

import pathlib

import numpy as np

from official_bert.config import Config, build, merge
from official_bert.tasks.data import TRAIN_AND_EVALUATE, DataFiles, Resolved, Steps
from official_bert.tasks.loading import load_task
from official_bert.tasks.task import TaskBase
from official_bert.text.vocab import load_vocab

ROOT = pathlib.Path(__file__).parent
VOCAB = str(ROOT / "golden" / "vocab_uncased.txt")
GLUE = str(ROOT / "fixtures" / "glue")
SWAG = str(ROOT / "fixtures" / "swag")


def make_config(task: str, **sections) -> Config:
    """Returns the configuration of a tiny model; `sections` override it."""
    values = {
        "task": task,
        "tokenizer": {"vocab_file": VOCAB},
        "options": {"max_seq_length": 32},
        "model": {
            "vocab_size": len(load_vocab(VOCAB)),
            "hidden_size": 16,
            "num_hidden_layers": 1,
            "num_attention_heads": 2,
            "intermediate_size": 32,
            "max_position_embeddings": 64,
            "initializer_range": 0.2,
            "hidden_dropout_prob": 0.0,
            "attention_probs_dropout_prob": 0.0,
        },
        "optimizer": {"learning_rate": 5e-3, "warmup_proportion": 0.1},
        "training": {"batch_size": 16, "epochs": 1.0, "log_every": 100, "report": False},
    }
    return build(Config, merge(values, sections))


def data_files(**files) -> DataFiles:
    """Returns the files of a task, by name."""
    return DataFiles(**{name: value if isinstance(value, bool) else str(value) for name, value in files.items()})


def resolve(config: Config, steps: Steps = TRAIN_AND_EVALUATE, **files) -> Resolved:
    """Resolves the task of a configuration with these files."""
    return load_task(config).data.resolve(data_files(**files), steps)


def fixture_task(dataset: str, **options) -> TaskBase:
    """Makes a task of GLUE or XNLI for the rows of tests/fixtures."""
    return load_task(
        make_config("glue", options={"dataset": dataset, **options}, training={"eval_batch_size": 2, "batch_size": 2})
    )


def fixture_data(dataset: str, **options) -> Resolved:
    """Resolves the same task with these rows as training, evaluation and test data."""
    return fixture_task(dataset, **options).data.resolve(DataFiles(data_dir=GLUE), Steps(predict=True))


def perfect(source, classes: int, key: str = "label_ids") -> list[dict[str, np.ndarray]]:
    """Returns logits that give the right answer to each row of an evaluation's batches, in their order."""
    rows = [source.examples[index] for index in np.concatenate(source.plan(0))]
    return [{"logits": np.eye(classes)[row[key]] if key == "label_ids" else np.array([row[key]])} for row in rows]
