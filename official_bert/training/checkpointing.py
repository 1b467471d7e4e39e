"""A run's folder: configuration, vocabulary, checkpoints, a lock; and resuming from it."""

import contextlib
import dataclasses
import fcntl
import glob
import json
import math
import os
import shutil
import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent import futures
from typing import Any

import tensorflow as tf

from official_bert.config import Config, Difference, differences, load_config, may_change, merge, save_config, to_dict
from official_bert.copies import copy_file
from official_bert.files import absolute, exists, list_names, read_json, remove, written_beside, written_whole
from official_bert.models.interchange import prefixes
from official_bert.models.interchange.prefixes import BEST_FOLDER, CONFIG_FILE, METRIC_FILE, TUNED_FILE

VOCAB_FILE, LOG_FILE, EVAL_LOG_FILE = "vocab.txt", "log.jsonl", "eval_log.jsonl"
CHECKPOINT, STATE_FILE = "ckpt", "checkpoint"


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


def check_same_run(config: Config, output_dir: str, sections: tuple[str, ...] = ("",), options: type | None = None) -> list[Difference]:
    """Returns the values that have changed since the run in the folder began, all of which may change.

    An option that is left out has its default in the task's `options`. The casing may be chosen with the first vocabulary. Raises
    ValueError, naming the keys, if values that begin with one of `sections` have changed and may not.
    """
    path = os.path.join(output_dir, CONFIG_FILE)
    if not os.path.exists(path):
        return []
    before = load_config(path)
    every = differences(_completed(before, options), _completed(config, options))
    done = max(map(prefixes.step_of, prefixes.prefixes_in(output_dir)), default=0)
    free = () if casing_is_chosen(before, output_dir) else ("tokenizer.do_lower_case",)
    wrong = [one for one in every if one.key.startswith(sections) and not may_change(one.key) and one.key not in free
             and not (one.key == "phases" and _go_on(one.before, one.after, done))]
    if wrong:
        raise ValueError(f"--output_dir={output_dir} holds a run with another configuration "
                         f"({'; '.join(one.describe() for one in wrong)}); give another folder, or the same values to resume it")
    return every


def casing_is_chosen(begun: Config, output_dir: str) -> bool:
    """Whether somebody has chosen the casing of the run in a folder: without a vocabulary, lower-casing is only the default."""
    return bool(begun.tokenizer.vocab_file) or not begun.tokenizer.do_lower_case or exists(os.path.join(output_dir, VOCAB_FILE))


def _completed(config: Config, options: type | None) -> dict[str, Any]:
    """Returns a configuration as plain values, with the default of each option that is left out, in its phases too."""
    plain = to_dict(config)
    plain["options"] = merge(_defaults(options) if options else {}, plain["options"])
    plain["phases"] = [phase | {"options": merge(plain["options"], phase["options"]),
                                "batch_size": phase["batch_size"] or config.training.batch_size} for phase in plain["phases"]]
    return plain


def _defaults(options: type) -> dict[str, Any]:
    """The fields of a dataclass that have a default, as plain values."""
    found = {field.name: field.default if field.default_factory is dataclasses.MISSING else field.default_factory()
             for field in dataclasses.fields(options)}
    known = {name: to_dict(value) if dataclasses.is_dataclass(value) else value for name, value in found.items()
             if value is not dataclasses.MISSING}
    return json.loads(json.dumps(known))


def _go_on(before: Sequence[Mapping], after: Sequence[Mapping], done: int) -> bool:
    """Whether a run that has done so many steps may go on with other phases: with other steps of those to come, and with more.

    A phase that has been left must have its steps; accumulation is free.
    """
    free = {"steps": 0, "accumulation_steps": 0}
    first = 0
    for old, new in zip(before, after):
        if {**old, **free} != {**new, **free} or (old["steps"] != new["steps"] and first + min(old["steps"], new["steps"]) < done):
            return False
        first += old["steps"]
    return len(after) >= len(before) or first >= done


def write_tuned(tuned: Mapping[str, Any], folder: str, step: int) -> None:
    """Writes the options that an evaluation tuned for the weights of a step beside them; nothing if there are none.

    Those of other steps stay as long as their checkpoints do.
    """
    if not tuned:
        return
    path, names = os.path.join(folder, TUNED_FILE), set(list_names(folder))
    stored = read_json(path).get("steps", {}) if exists(path) else {}
    steps = {one: value for one, value in stored.items() if f"{CHECKPOINT}-{one}.index" in names} | {str(step): dict(tuned)}
    with written_whole(path) as file:
        json.dump({"steps": steps}, file)


def forget_tuned(folder: str, report: Callable[[str], None]) -> None:
    """Removes the options that were tuned for earlier weights of a run which has trained on without an evaluation."""
    if exists(path := os.path.join(folder, TUNED_FILE)):
        report(f"trained on without an evaluation: what was tuned for earlier weights is forgotten ({TUNED_FILE})")
        remove(path)


def write_run_files(config: Config, output_dir: str) -> None:
    """Writes the resolved configuration and the vocabulary, which prediction and export need, beside the checkpoints."""
    vocab = config.tokenizer.vocab_file
    if vocab and absolute(vocab) != absolute(os.path.join(output_dir, VOCAB_FILE)):
        with written_beside(os.path.join(output_dir, VOCAB_FILE)) as temporary:
            copy_file(vocab, temporary)
    save_config(config, os.path.join(output_dir, CONFIG_FILE))


def restore(checkpoint: tf.train.Checkpoint, prefix: str) -> bool:
    """Restores everything from one checkpoint; warns and returns False if it cannot be read."""
    try:
        checkpoint.read(prefix).assert_existing_objects_matched().expect_partial()
        return True
    except (*prefixes.UNREADABLE, AssertionError) as error:
        prefixes.warn_of(prefix, str(error).split("\n")[0][:200])
        return False


def _holds_weights_alone(prefix: str) -> bool:
    """Whether a checkpoint can be read, and has the weights of a model, but not the steps of a run."""
    try:
        names = tf.train.load_checkpoint(prefix).get_variable_to_shape_map()
    except prefixes.UNREADABLE:
        return False
    return any(name.startswith("weights/") for name in names) and not any(name.startswith("step/") for name in names)


class CheckpointFolder:
    """The checkpoints `ckpt-N` of a run, N the step: writes them, restores the newest, keeps the last `keep` (None: all).

    Those of multiples of `keep_every` steps are kept for good. One at a time may be written in the background; whatever reads or
    writes the folder's checkpoints then waits for it.

    TensorFlow's `checkpoint` state file is written for other tools, and not read.
    """

    def __init__(self, checkpoint: tf.train.Checkpoint, folder: str, keep: int | None = None, keep_every: int = 0):
        self.checkpoint, self.folder, self.keep, self.keep_every = checkpoint, folder, keep, keep_every
        self._writer = futures.ThreadPoolExecutor(1, "checkpoint")
        self._unfinished: futures.Future | None = None

    def restore_newest(self) -> str | None:
        """Restores everything from the newest readable checkpoint and returns its prefix, None if there are no checkpoints.

        Warns of each unreadable checkpoint. Raises ValueError if all are unreadable.
        """
        self.wait()
        found = prefixes.prefixes_in(self.folder)
        for prefix in found:
            if restore(self.checkpoint, prefix):
                return prefix
        if found and _holds_weights_alone(found[0]):
            raise ValueError(f"{self.folder}: expected the folder of a run, got weights alone, as convert_checkpoint and extend_vocab "
                             "write them; --init_checkpoint takes them, with another --output_dir or, to evaluate, none")
        if found:
            raise ValueError(f"{self.folder}: none of its {len(found)} checkpoints can be read")
        return None

    def newest(self) -> str:
        """The prefix of the newest checkpoint, readable or not; "" if there are none."""
        self.wait()
        return next(iter(prefixes.prefixes_in(self.folder)), "")

    def save(self, step: int, same: str = "") -> str:
        """Writes the checkpoint of a step and returns its name; then removes old ones, and unreadable ones of later steps.

        `same` is the prefix of a checkpoint with the same content: its files are shared if the disk can do so. Raises OSError if the
        checkpoint cannot be written; earlier ones stay intact.
        """
        self.wait()
        return self._write(self.checkpoint, step, same)

    def save_in_background(self, snapshot: tf.train.Checkpoint, step: int, then: Callable[[str], None]) -> None:
        """Begins to do what `save` does with a snapshot of the checkpoint; `then` is called with its name, in the same thread."""
        self.wait()
        self._unfinished = self._writer.submit(lambda: then(self._write(snapshot, step)))

    def wait(self, only_if_done: bool = False) -> None:
        """Waits until the checkpoint that is being written in the background is whole. Raises OSError if it could not be written."""
        if (unfinished := self._unfinished) and (unfinished.done() or not only_if_done):
            self._unfinished = None
            unfinished.result()

    def _write(self, checkpoint: tf.train.Checkpoint, step: int, same: str = "") -> str:
        prefix = os.path.join(self.folder, f"{CHECKPOINT}-{step}")
        try:
            os.makedirs(self.folder, exist_ok=True)
            if not (same and _share(same, prefix)):
                checkpoint.write(prefix)
            for path in (*_files_of(prefix), self.folder):
                _flush(path)
        except (tf.errors.OpError, OSError) as error:
            _remove(prefix)
            raise OSError(f"{self.folder}: the checkpoint of step {step} could not be written, those before it are intact: "
                          f"{' '.join(str(error).split())[:200]}") from None
        self._remove_all_but_the_last(step)
        return os.path.basename(prefix)

    def _remove_all_but_the_last(self, newest: int) -> None:
        found = {prefixes.step_of(prefix): prefix for prefix in prefixes.prefixes_in(self.folder)}
        steps = sorted(step for step in found if step <= newest)
        kept = steps if self.keep is None else steps[-self.keep:]
        kept = sorted({*kept, *(step for step in steps if self.keep_every and step % self.keep_every == 0)})
        names = [os.path.basename(found[step]) for step in kept]
        with written_whole(os.path.join(self.folder, STATE_FILE)) as file:
            file.write(f'model_checkpoint_path: "{names[-1]}"\n')
            file.writelines(f'all_model_checkpoint_paths: "{name}"\n' for name in names)
        for step in set(found) - set(kept):
            _remove(found[step])


def _files_of(prefix: str) -> list[str]:
    """The files of a checkpoint, and the temporary folder of one that was not finished; the index first."""
    return sorted(glob.glob(f"{glob.escape(prefix)}[._]*"), key=lambda path: not path.endswith(".index"))


def _remove(prefix: str) -> None:
    """Removes what there is of a checkpoint."""
    for path in _files_of(prefix):
        shutil.rmtree(path) if os.path.isdir(path) else os.remove(path)


def _share(source: str, target: str) -> bool:
    """Gives the files of a checkpoint a second name, the index last; returns whether the disk can do so."""
    _remove(target)
    try:
        for path in reversed(_files_of(source)):
            os.link(path, target + path.removeprefix(source))
        return True
    except OSError:
        _remove(target)
        return False


def _flush(path: str) -> None:
    """Waits until a file or folder is on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class BestCheckpoint:
    """Keeps the checkpoint with the best value of a metric (`-` in front: less is better) in `best/` of a run's folder."""

    def __init__(self, output_dir: str, metric: str):
        self.folder, self.metric = os.path.join(output_dir, BEST_FOLDER), metric.removeprefix("-")
        self.sign = -1.0 if metric.startswith("-") else 1.0
        self.record: dict = {}
        path = os.path.join(self.folder, METRIC_FILE)
        if os.path.exists(path):
            self.record = read_json(path)

    def keep_if_better(self, checkpoint: tf.train.Checkpoint, step: int, metrics: Mapping[str, float], phase: int = 0,
                       batches: int = 0, saved: str = "", tuned: Mapping[str, Any] = types.MappingProxyType({})) -> bool:
        """Writes the weights and what was `tuned` for them, then the metric, if it beats the best so far; returns whether it does.

        `saved` is the prefix of a checkpoint of this step, if the run has just written one: it is not stored twice. `phase` is the
        first phase that is measured like this one, `batches` the number of batches measured, 0 for all. The best of a phase measured
        otherwise, on other lengths say, or on another number of batches, is not comparable, and gives way.
        """
        if self.metric not in metrics:
            raise ValueError(f"best checkpoint: expected a metric among {sorted(metrics)}, got {self.metric!r}")
        value = float(metrics[self.metric])
        comparable = self.record and (self.record.get("phase", 0), self.record.get("batches", batches)) == (phase, batches)
        if not math.isfinite(value) or (comparable and self.sign * value <= self.sign * self.record["value"]):
            return False
        CheckpointFolder(checkpoint, self.folder, keep=1).save(step, saved)
        write_tuned(tuned, self.folder, step)  # before the metric: after a kill in between, the same evaluation is better again
        self.record = {"metric": self.metric, "value": value, "step": step, "batches": batches} | ({"phase": phase} if phase else {})
        with written_whole(os.path.join(self.folder, METRIC_FILE)) as file:
            json.dump(self.record, file)
        return True

    def forget(self) -> None:
        """Removes the best checkpoint: it is of another run, or measured on other data."""
        self.record = {}
        remove(self.folder)

    def describe(self) -> str:
        """Metric, value, place."""
        return f"{self.record['metric']} {self.record['value']:.4f} at step {self.record['step']}, kept in {BEST_FOLDER}/"

    def evaluations_without_better(self, evaluated: Iterable[int], step: int) -> int:
        """The number of evaluations after the best one, up to `step`, among those of the steps `evaluated`."""
        return sum(self.record.get("step", 0) < one <= step for one in set(evaluated))

    def restore(self, checkpoint: tf.train.Checkpoint) -> None:
        """Restores the best checkpoint. Raises ValueError if it cannot be read."""
        if CheckpointFolder(checkpoint, self.folder).restore_newest() is None:
            raise ValueError(f"{self.folder}: expected the best checkpoint of the run, found none")
