"""A pre-training task on made-up records, small enough for tests that start processes."""

import numpy as np
import tensorflow as tf
from oracles.records import encode_example, write_tfrecords

from official_bert.config import Config, build, merge
from official_bert.data.record_files import records
from official_bert.models.encoder import weights_by_name
from official_bert.runs.beginning.preparation import prepare
from official_bert.tasks.data import TRAIN_AND_EVALUATE, DataFiles
from official_bert.tasks.loading import load_task
from official_bert.training.trainer import Trainer

S, P, V = 16, 3, 40


def write_records(path, count, seed=0, vocab_size=V, max_seq_length=S, shortest=8, **wrong):
    """Writes records whose masked words can be learned: each is the word before it plus one, and the first is one of
    two.

    `wrong` replaces features of the last record.
    """
    rng = np.random.default_rng(seed)
    features = records.pretraining_features(max_seq_length, P)

    def rows():
        for number in range(count):
            length = int(rng.integers(shortest, max_seq_length + 1))
            ids = np.zeros(max_seq_length, np.int64)
            ids[:length] = (rng.choice([5, 9]) + np.arange(length) - 5) % (vocab_size - 5) + 5
            positions = np.sort(rng.choice(np.arange(1, length), P, replace=False))
            masked = ids[positions].copy()
            ids[positions] = 4
            weights = np.ones(P)
            weights[rng.integers(1, P + 1) :] = 0
            real = np.arange(max_seq_length) < length
            yield encode_example(
                features,
                {
                    "input_ids": ids,
                    "input_mask": real,
                    "segment_ids": real & (np.arange(max_seq_length) > 6),
                    "masked_lm_positions": positions,
                    "masked_lm_ids": masked,
                    "masked_lm_weights": weights,
                    "next_sentence_labels": [int(rng.integers(0, 2))],
                }
                | (wrong if number == count - 1 else {}),
            )

    write_tfrecords(str(path), rows())
    return str(path)


def write_unmasked_records(path, count, seed=3):
    """Writes records without masks, of one segment; each word is the one before it plus one."""
    features, rng = records.unmasked_features(S), np.random.default_rng(seed)

    def rows():
        for _ in range(count):
            length = int(rng.integers(8, S + 1))
            ids = np.where(np.arange(S) < length, (rng.choice([5, 9]) + np.arange(S)) % 35 + 5, 0)
            ids[[0, length - 1]] = 2, 3
            yield encode_example(
                features,
                {
                    "input_ids": ids,
                    "input_mask": np.arange(S) < length,
                    "segment_ids": [0] * S,
                    "word_starts": [1] * S,
                    "next_sentence_labels": [0],
                    "schema_version": [records.SCHEMA_VERSION],
                },
            )

    write_tfrecords(str(path), rows())
    return str(path)


def write_vocab(path):
    """Writes the words of these records: special tokens, letters and numbers."""
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefghijklmno", *map(str, range(20))]
    path.write_text("\n".join(words) + "\n")
    return str(path)


def make_config(**sections) -> Config:
    """Returns the configuration of a tiny model; `sections` override it."""
    values = {
        "model": {
            "vocab_size": V,
            "hidden_size": 16,
            "num_hidden_layers": 1,
            "num_attention_heads": 2,
            "intermediate_size": 32,
            "max_position_embeddings": S,
            "initializer_range": 0.1,
        },
        "options": {"max_seq_length": S, "max_predictions_per_seq": P},
        "optimizer": {"learning_rate": 1e-4},
        "training": {"batch_size": 32, "steps": 20, "log_every": 5, "save_every": 10, "steps_per_loop": 4},
    }
    return build(Config, merge(values, sections))


def data_files(train_file, eval_file="", **more):
    """Returns the files of a run on these records."""
    return DataFiles(train_file=str(train_file), eval_file=str(eval_file), **more)


def resolve(config, train_file, eval_file=""):
    """Resolves the pre-training task with these records."""
    return prepare(load_task(config), data_files(train_file, eval_file), TRAIN_AND_EVALUATE)


def weights_after_two_steps(run):
    """Returns the weights, by name, of a resolved task's model after two steps from weights that are large enough to
    differ.
    """
    for number, weight in enumerate(weights_by_name(run.model).values()):
        weight.assign(np.random.default_rng(number).normal(0, 0.1, weight.shape))
    from eager_models import eager_functions  # here, because processes of tests import this file

    trainer = Trainer(run.recipe, tf.distribute.get_strategy(), 20)
    with eager_functions():
        trainer.run_steps(iter(run.train.dataset()), tf.constant(2))
    return {name: weight.numpy() for name, weight in weights_by_name(run.model).items()}
