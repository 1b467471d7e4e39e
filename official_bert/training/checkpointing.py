"""A run's folder: configuration, vocabulary, checkpoints, a lock; and resuming from it."""

import contextlib
import fcntl
import glob
import json
import math
import os
import shutil
from collections.abc import Iterator, Mapping

import tensorflow as tf
from absl import logging

from official_bert.config import Config, Difference, differences, load_config, may_change, save_config, to_dict
from official_bert.files import written_beside, written_whole

CONFIG_FILE, VOCAB_FILE, LOG_FILE, EVAL_LOG_FILE = "config.yaml", "vocab.txt", "log.jsonl", "eval_log.jsonl"
BEST_FOLDER, METRIC_FILE = "best", "metric.json"


@contextlib.contextmanager
def locked(output_dir: str) -> Iterator[None]:
    """Locks the output folder for this run. Raises ValueError if another run holds it."""
    os.makedirs(output_dir, exist_ok=True)
    with open(os.path.join(output_dir, ".lock"), "w", encoding="utf-8") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ValueError(f"--output_dir={output_dir}: another run is writing to this folder") from None
        yield


def check_same_run(config: Config, output_dir: str, section: str = "") -> list[Difference]:
    """Returns the values that have changed since the run in the folder began, all of which may change.

    Raises ValueError, naming the keys, if values that begin with `section` have changed and may not.
    """
    path = os.path.join(output_dir, CONFIG_FILE)
    if not os.path.exists(path):
        return []
    every = differences(to_dict(load_config(path)), to_dict(config))
    wrong = [one for one in every if one.key.startswith(section) and not may_change(one.key)]
    if wrong:
        raise ValueError(f"--output_dir={output_dir} holds a run with another configuration "
                         f"({'; '.join(one.describe() for one in wrong)}); give another folder, or the same values to resume it")
    return every


def write_run_files(config: Config, output_dir: str) -> None:
    """Writes the resolved configuration and the vocabulary, which prediction and export need, beside the checkpoints."""
    vocab = config.tokenizer.vocab_file
    if vocab and os.path.abspath(vocab) != os.path.abspath(os.path.join(output_dir, VOCAB_FILE)):
        with written_beside(os.path.join(output_dir, VOCAB_FILE)) as temporary:
            shutil.copyfile(vocab, temporary)
    save_config(config, os.path.join(output_dir, CONFIG_FILE))


def restore_newest(checkpoint: tf.train.Checkpoint, manager: tf.train.CheckpointManager) -> str | None:
    """Restores everything from the newest readable checkpoint and returns its prefix, None if there are no checkpoints.

    Warns of each unreadable checkpoint. Raises ValueError if all are unreadable.
    """
    for prefix in reversed(manager.checkpoints):
        if restore(checkpoint, prefix):
            return prefix
    if manager.checkpoints:
        raise ValueError(f"{manager.directory}: none of its {len(manager.checkpoints)} checkpoints can be read")
    return None


def restore(checkpoint: tf.train.Checkpoint, prefix: str) -> bool:
    """Restores everything from one checkpoint; warns and returns False if it cannot be read."""
    try:
        checkpoint.read(prefix).assert_existing_objects_matched().expect_partial()
        return True
    except (tf.errors.OpError, AssertionError, ValueError, IndexError, RuntimeError) as error:
        logging.warning("checkpoint %s cannot be read (%s); trying another", prefix, str(error).split("\n")[0][:200])
        return False


def save(manager: tf.train.CheckpointManager, step: int) -> str:
    """Writes the checkpoint of a step and returns its name. Raises OSError if that fails; earlier checkpoints stay intact."""
    try:
        return os.path.basename(manager.save(checkpoint_number=step))
    except (tf.errors.OpError, OSError) as error:
        for leftover in glob.glob(os.path.join(glob.escape(manager.directory), f"ckpt-{step}[._]*")):
            shutil.rmtree(leftover) if os.path.isdir(leftover) else os.remove(leftover)
        raise OSError(f"{manager.directory}: the checkpoint of step {step} could not be written, those before it are intact: "
                      f"{' '.join(str(error).split())[:200]}") from None


class BestCheckpoint:
    """Keeps the checkpoint with the best value of a metric (`-` in front: less is better) in `best/` of a run's folder."""

    def __init__(self, output_dir: str, metric: str):
        self.folder, self.metric = os.path.join(output_dir, BEST_FOLDER), metric.removeprefix("-")
        self.sign = -1.0 if metric.startswith("-") else 1.0
        self.record: dict = {}
        path = os.path.join(self.folder, METRIC_FILE)
        if os.path.exists(path):
            with open(path, encoding="utf-8") as file:
                self.record = json.load(file)

    def keep_if_better(self, checkpoint: tf.train.Checkpoint, step: int, metrics: Mapping[str, float]) -> bool:
        """Writes the weights, then the metric, if it beats the best so far; returns whether it does."""
        if self.metric not in metrics:
            raise ValueError(f"best checkpoint: expected a metric among {sorted(metrics)}, got {self.metric!r}")
        value = float(metrics[self.metric])
        if not math.isfinite(value) or (self.record and self.sign * value <= self.sign * self.record["value"]):
            return False
        save(tf.train.CheckpointManager(checkpoint, self.folder, max_to_keep=1), step)
        self.record = {"metric": self.metric, "value": value, "step": step}
        with written_whole(os.path.join(self.folder, METRIC_FILE)) as file:
            json.dump(self.record, file)
        return True

    def describe(self) -> str:
        """Metric, value, place."""
        return f"{self.record['metric']} {self.record['value']:.4f} at step {self.record['step']}, kept in {BEST_FOLDER}/"
