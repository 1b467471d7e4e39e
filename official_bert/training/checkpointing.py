"""Writes, restores and removes the checkpoints of a run, and keeps the best one."""

import glob
import math
import os
import shutil
import types
from collections.abc import Callable, Mapping
from concurrent import futures
from typing import Any

import tensorflow as tf

from official_bert.models.interchange import prefixes
from official_bert.reports.metric_text import shown
from official_bert.run_folder import BEST_FOLDER, STATE_FILE, RunFolder, step_of, write_tuned
from official_bert.runtimes.finite import require_finite
from official_bert.storage.files import disk_full_reason, remove, written_whole


def restore(checkpoint: tf.train.Checkpoint, prefix: str) -> bool:
    """Restores everything from one checkpoint; warns and returns False if it cannot be read.

    Raises ValueError for weights that are NaN or infinite and names the first of them.
    """
    try:
        checkpoint.read(prefix).assert_existing_objects_matched().expect_partial()
    except (*prefixes.UNREADABLE, AssertionError) as error:
        prefixes.warn_of(prefix, str(error).split("\n")[0][:200])
        return False
    require_finite(getattr(checkpoint, "weights", {}), prefix)
    return True


def _holds_weights_alone(prefix: str) -> bool:
    """Whether a checkpoint can be read, and has the weights of a model, but not the steps of a run."""
    try:
        names = tf.train.load_checkpoint(prefix).get_variable_to_shape_map()
    except prefixes.UNREADABLE:
        return False
    return any(name.startswith("weights/") for name in names) and not any(name.startswith("step/") for name in names)


class CheckpointFolder:
    """The checkpoints `ckpt-N` of a run, N the step: writes them, restores the newest, and keeps the last `keep` (None:
    all).

    Checkpoints of multiples of `keep_every` steps are never removed. One checkpoint at a time may be written in the
    background; other reads and writes of the folder's checkpoints wait for it.

    TensorFlow's `checkpoint` state file is written for other tools, and not read.
    """

    def __init__(self, checkpoint: tf.train.Checkpoint, run: RunFolder, keep: int | None = None, keep_every: int = 0):
        self.checkpoint, self.keep, self.keep_every = checkpoint, keep, keep_every
        self.run, self.folder = run, run.path
        self._writer = futures.ThreadPoolExecutor(1, "checkpoint")
        self._unfinished: futures.Future | None = None
        self._last_step = -1  # of the checkpoint that was begun last

    def restore_newest(self) -> str | None:
        """Restores everything from the newest readable checkpoint and returns its prefix, or None if there are no
        checkpoints.

        Warns of each unreadable checkpoint. Raises ValueError if all are unreadable.
        """
        self.wait()
        prefixes = self.run.checkpoints()
        for prefix in prefixes:
            if restore(self.checkpoint, prefix):
                return prefix
        if prefixes and _holds_weights_alone(prefixes[0]):
            raise ValueError(
                f"{self.folder}: expected the folder of a run, got weights alone, as convert_checkpoint and "
                f"resize_checkpoint "
                "write them; --init_checkpoint takes them, with another --output_dir or, to evaluate, none"
            )
        if prefixes:
            raise ValueError(f"{self.folder}: none of its {len(prefixes)} checkpoints can be read")
        return None

    def newest(self) -> str:
        """Returns the prefix of the newest checkpoint, readable or not, or "" if there are none."""
        self.wait()
        return next(iter(self.run.checkpoints()), "")

    def save(self, step: int, same: str = "") -> str:
        """Writes the checkpoint of a step and returns its name; then removes old ones, and unreadable ones of later
        steps.

        `same` is the prefix of a checkpoint with the same content: its files are shared if the disk supports that.
        Raises OSError if the checkpoint cannot be written; earlier ones stay intact.
        """
        self.wait()
        return self._write(self.checkpoint, step, same)

    def save_in_background(self, snapshot: tf.train.Checkpoint, step: int, then: Callable[[str], None]) -> None:
        """Starts to save a snapshot of the checkpoint as `save` does, then calls `then` with its name in the same
        thread.
        """
        self.wait()
        self._last_step = step
        self._unfinished = self._writer.submit(lambda: then(self._write(snapshot, step)))

    def written(self, step: int) -> str:
        """Returns the prefix of the checkpoint of `step` if this process wrote it last in the background, else ""."""
        return self.run.checkpoint(step) if self._last_step == step else ""

    def wait(self, only_if_done: bool = False) -> None:
        """Waits until the background checkpoint is complete. Raises OSError if it could not be written."""
        if (unfinished := self._unfinished) and (unfinished.done() or not only_if_done):
            self._unfinished = None
            unfinished.result()

    def _write(self, checkpoint: tf.train.Checkpoint, step: int, same: str = "") -> str:
        prefix = self.run.checkpoint(step)
        try:
            os.makedirs(self.folder, exist_ok=True)
            if not (same and _share(same, prefix)):
                checkpoint.write(prefix)
            for path in (*_files_of(prefix), self.folder):
                _flush(path)
        except (tf.errors.OpError, OSError) as error:
            _remove(prefix)
            before = (
                "those before it are intact"
                if self.run.checkpoints()
                else "none was written before it: the same command starts from the beginning"
            )
            raise OSError(
                f"{self.folder}: the checkpoint of step {step} could not be written, {before}: "
                f"{disk_full_reason(error) or ' '.join(str(error).split())}"
            ) from None
        self._remove_all_but_the_last(step)
        return os.path.basename(prefix)

    def _remove_all_but_the_last(self, newest: int) -> None:
        checkpoints = {step_of(prefix): prefix for prefix in self.run.checkpoints()}
        steps = sorted(step for step in checkpoints if step <= newest)
        lasting = steps if self.keep is None else steps[-self.keep :]
        lasting = sorted({*lasting, *(step for step in steps if self.keep_every and step % self.keep_every == 0)})
        names = [os.path.basename(checkpoints[step]) for step in lasting]
        with written_whole(self.run.file(STATE_FILE)) as file:
            file.write(f'model_checkpoint_path: "{names[-1]}"\n')
            file.writelines(f'all_model_checkpoint_paths: "{name}"\n' for name in names)
        for step in set(checkpoints) - set(lasting):
            _remove(checkpoints[step])


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
    """Keeps the checkpoint with the best value of a metric (prefix `-`: less is better) in the run's folder `best/`."""

    def __init__(self, run: RunFolder, metric: str):
        self.run, self.folder, self.metric = run, run.best.path, metric.removeprefix("-")
        self.sign = -1.0 if metric.startswith("-") else 1.0
        self.record = run.best_record

    def keep_if_better(
        self,
        checkpoint: tf.train.Checkpoint,
        step: int,
        metrics: Mapping[str, float],
        phase: int = 0,
        batches: int = 0,
        saved: str = "",
        tuned: Mapping[str, Any] = types.MappingProxyType({}),
    ) -> bool:
        """Writes the weights, the options `tuned` for them and the metric if it beats the best so far; returns whether
        it does.

        Among equal metrics, the lower held-out loss is better: a small held-out set has many ties. `saved` is the
        prefix of a checkpoint of this step, if the run has just written one: it is not stored twice. `phase` is the
        first phase that is measured like this one, `batches` the number of measured batches, 0 for all. A best
        checkpoint that was measured differently, on other lengths or another number of batches, is not comparable and
        is replaced.
        """
        if self.metric not in metrics:
            raise ValueError(f"best checkpoint: expected a metric among {sorted(metrics)}, got {self.metric!r}")
        value, loss = float(metrics[self.metric]), float(metrics.get("loss", math.inf))
        loss = loss if math.isfinite(loss) else math.inf
        comparable = self.record and (self.record.get("phase", 0), self.record.get("batches")) == (phase, batches)
        if not math.isfinite(value):
            return False
        if comparable and (self.sign * value, -loss) <= (
            self.sign * self.record["value"],
            -self.record.get("loss", -math.inf),
        ):
            return False
        CheckpointFolder(checkpoint, self.run.best, keep=1).save(step, saved)
        # before the metric: after a kill in between, this evaluation is better again
        write_tuned(tuned, self.run.best.checkpoint(step))
        self.record = (
            {"metric": self.metric, "value": value, "step": step, "batches": batches}
            | ({"phase": phase} if phase else {})
            | ({"loss": loss} if loss < math.inf and self.metric != "loss" else {})
        )
        self.run.write_best_record(self.record)
        return True

    def forget(self) -> None:
        """Removes the best checkpoint, because it belongs to another run or was measured on other data."""
        self.record = {}
        remove(self.folder)

    def describe(self) -> str:
        """Returns a line for the user with metric, value, step and folder."""
        value = shown(self.metric, self.record["value"])
        return f"{self.record['metric']} {value} at step {self.record['step']}, saved in {BEST_FOLDER}/"

    def restore(self, checkpoint: tf.train.Checkpoint) -> None:
        """Restores the best checkpoint. Raises ValueError if it cannot be read."""
        if CheckpointFolder(checkpoint, self.run.best).restore_newest() is None:
            raise ValueError(f"{self.folder}: expected the best checkpoint of the run, found none")
