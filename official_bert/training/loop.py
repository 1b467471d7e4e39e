"""The loop around the step: batches in, several steps a host call, metrics, evaluations, checkpoints, resume."""

import os
import signal
import time
from collections.abc import Mapping
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from official_bert.models import checkpoints
from official_bert.training import checkpointing, distribution
from official_bert.training.distribution import Placement
from official_bert.training.step import FIRST_SCALE, State, Step
from official_bert.training.task import BatchSource, TaskBase
from official_bert.training.watching import Watcher

STOPPED = 75  # exit status after SIGTERM: saved, run the same command again to go on (EX_TEMPFAIL)
HOST_SECONDS = 10.0  # the host regains control at least so often


class Trainer:
    """A model, its optimizer's moments and its step, on the devices of a strategy."""

    def __init__(self, task: TaskBase, strategy: tf.distribute.Strategy, total_steps: int):
        self.task, self.config, self.strategy = task, task.config, strategy
        distribution.check_batch(self.config.training.batch_size, strategy, self.config.training.accumulation_steps)
        with strategy.scope():
            self.model = task.build_model()
            trainable = [variable.value for variable in self.model.trainable_variables]
            names = [variable.path.partition("/")[2] for variable in self.model.trainable_variables]
            self.first, self.second = ([tf.Variable(tf.zeros_like(weight), trainable=False) for weight in trainable]
                                       for _ in range(2))
            self.scale = tf.Variable(FIRST_SCALE, trainable=False)
            self.finite_steps = tf.Variable(0, trainable=False)
            self.done = tf.Variable(0, dtype=tf.int64, trainable=False)
        self.weights = trainable
        self.step = Step(task, self.model, self.config, total_steps, strategy.num_replicas_in_sync)
        self.checkpoint = checkpoints.weights_checkpoint(
            self.model, first=dict(zip(names, self.first)), second=dict(zip(names, self.second)), scale=self.scale,
            finite_steps=self.finite_steps, step=self.done)
        self.run_steps = tf.function(self._run_steps, reduce_retracing=True)
        self.run_evaluation = tf.function(self._run_evaluation, reduce_retracing=True)

    def _replica_step(self, batch: Mapping[str, tf.Tensor], step: tf.Tensor):
        """What one replica does of a step: the new state and the metrics, nothing assigned."""
        context = tf.distribute.get_replica_context()
        one = context.num_replicas_in_sync == 1

        def all_reduce(tensors):
            return list(tensors) if one else list(context.all_reduce(tf.distribute.ReduceOp.SUM, list(tensors)))
        weights, first, second = ([tf.convert_to_tensor(variable) for variable in group]
                                  for group in (self.weights, self.first, self.second))
        state = State(weights, first, second, tf.convert_to_tensor(self.scale), tf.convert_to_tensor(self.finite_steps))
        replica = context.replica_id_in_sync_group
        state, row = self.step.train(state, batch, step, tf.cast(replica, tf.int32), all_reduce)
        return [*state.weights, *state.first, *state.second, state.scale, state.finite_steps], row

    def _run_steps(self, iterator, count: tf.Tensor) -> tf.Tensor:
        """`count` steps, fewer where one is not finite; the rows of their metrics."""
        variables = [*self.weights, *self.first, *self.second, self.scale, self.finite_steps]
        rows = tf.TensorArray(tf.float32, size=0, dynamic_size=True, element_shape=[None], clear_after_read=False)
        for index in tf.range(count):
            values, row = self.strategy.run(self._replica_step, args=(next(iterator), tf.identity(self.done)))
            distribution.on_each(self.strategy, lambda variable, value: variable.assign(value), variables, values)
            self.done.assign_add(1)
            row = self.strategy.experimental_local_results(row)[0]
            rows = rows.write(index, row)
            if not self.step.scales_loss and row[self.step.names.index("finite")] < 1.0:
                break
        return rows.stack()

    def _run_evaluation(self, batch):
        def replica_step(local):
            return self.step.evaluate([tf.convert_to_tensor(weight) for weight in self.weights], local)
        losses, counters, predictions = self.strategy.run(replica_step, args=(batch,))
        reduced = [{name: tuple(self.strategy.reduce("SUM", value, axis=None) for value in pair)
                    for name, pair in part.items()} for part in (losses, counters)]
        return (*reduced, distribution.gather_rows(self.strategy, predictions | {
            "example_weights": self.strategy.run(lambda local: local["example_weights"], args=(batch,))}))

    def evaluate(self, source: BatchSource, limit: int = 0) -> tuple[dict[str, float], list[dict[str, Any]]]:
        """Mean losses and counters over the source (or its first `limit` batches), and predictions of its real rows."""
        sums: dict[str, np.ndarray] = {}
        rows: list[dict[str, Any]] = []
        batches = limit or source.batches_per_epoch
        for _, batch in zip(range(batches), distribution.distribute(source, self.strategy)):
            losses, counters, predictions = self.run_evaluation(batch)
            named = {f"{name}_loss" if name != "loss" else name: pair for name, pair in losses.items()} | counters
            for name, pair in named.items():
                sums[name] = sums.get(name, 0) + np.array([float(value) for value in pair])
            arrays = {name: value.numpy() for name, value in predictions.items()}
            rows += [{name: value[index] for name, value in arrays.items() if name != "example_weights"}
                     for index in np.flatnonzero(arrays["example_weights"] > 0)]
        means = {name: float(part / max(weight, 1e-9)) for name, (part, weight) in sums.items()}
        if "loss" not in means:
            means = {"loss": sum(value for name, value in means.items() if name.endswith("_loss"))} | means
        return means, rows


def train(task: TaskBase, output_dir: str, placement: Placement, init_checkpoint: str = "", report=print) -> dict[str, float]:
    """Trains (or goes on training) a task into a folder and returns the metrics of the last evaluation.

    Says first whether the run is fresh, initialised or resumed. Raises ValueError for whatever of configuration, data or folder
    does not fit, before the first step; SystemExit with status 75 after SIGTERM, the run saved.
    """
    with checkpointing.locked(output_dir):
        return _train(task, output_dir, placement, init_checkpoint, report)


def _train(task: TaskBase, output_dir: str, placement: Placement, init_checkpoint: str, report) -> dict[str, float]:
    strategy = distribution.make_strategy(placement)
    settings = task.config.training
    distribution.set_precision(settings.precision)
    source, held_out = task.train_source(), task.eval_source()
    total = settings.steps or int(settings.epochs * source.batches_per_epoch)
    if total < 1:
        raise ValueError("config.training: expected steps or epochs above 0, got neither")
    changed = checkpointing.check_same_run(task.config, output_dir)
    keras.utils.set_random_seed(task.config.seed)
    trainer = Trainer(task, strategy, total)
    manager = tf.train.CheckpointManager(trainer.checkpoint, output_dir, max_to_keep=settings.keep_checkpoints)
    restored = checkpointing.restore_newest(trainer.checkpoint, manager)
    if restored:
        report(f"resumed: {restored} at step {int(trainer.done)} of {total}; weights, optimizer, schedule, position in the data"
               + "".join(f"; {text}" for text in changed))
    elif init_checkpoint:
        report(f"initialised (weights only): {checkpoints.initialize_from(trainer.model, init_checkpoint)}")
    else:
        report(f"fresh: weights are random (seed {task.config.seed})")
    chief = distribution.is_chief(strategy)
    if chief:
        checkpointing.write_run_files(task, output_dir)
    watcher = Watcher(output_dir, total, chief)
    try:
        return Run(task, trainer, manager, watcher, source, held_out, total, output_dir).go()
    finally:
        watcher.close()


def evaluate(task: TaskBase, output_dir: str, placement: Placement) -> dict[str, float]:
    """Metrics of the newest readable checkpoint of a run's folder on the task's evaluation data.

    Raises ValueError where there is no evaluation data or no checkpoint.
    """
    strategy = distribution.make_strategy(placement)
    distribution.set_precision(task.config.training.precision)
    held_out = task.eval_source()
    if held_out is None:
        raise ValueError(f"task {task.config.task}: no evaluation data given")
    trainer = Trainer(task, strategy, max(task.config.training.steps, 1))
    manager = tf.train.CheckpointManager(trainer.checkpoint, output_dir, max_to_keep=None)
    if checkpointing.restore_newest(trainer.checkpoint, manager) is None:
        raise ValueError(f"--output_dir={output_dir}: no checkpoint found there")
    metrics, rows = trainer.evaluate(held_out, task.config.training.eval_steps)
    return {"step": float(trainer.done.numpy())} | metrics | task.evaluate(rows)


class Run:
    """The course of one training run, from where its trainer stands to its last step."""

    def __init__(self, task: TaskBase, trainer: Trainer, manager: tf.train.CheckpointManager, watcher: Watcher,
                 source: BatchSource, held_out: BatchSource | None, total: int, output_dir: str):
        self.task, self.trainer, self.manager, self.watcher = task, trainer, manager, watcher
        self.source, self.held_out, self.total, self.output_dir = source, held_out, total, output_dir
        self.settings = task.config.training
        self.best: float | None = None
        self.terminated = False
        self.pending: list[np.ndarray] = []

    def go(self) -> dict[str, float]:
        """Steps until the last one, with logs, evaluations and checkpoints in between."""
        previous = signal.signal(signal.SIGTERM, self._on_sigterm)
        try:
            self._steps()
        finally:
            signal.signal(signal.SIGTERM, previous)
        return self._evaluate(int(self.trainer.done)) if self.held_out else {}

    def _on_sigterm(self, *_) -> None:
        self.terminated = True

    def _steps(self) -> None:
        step = int(self.trainer.done)
        if step >= self.total:
            return
        iterator = iter(distribution.distribute(self.source, self.trainer.strategy, step))
        seconds_a_step, logged, logged_at = 0.0, step, time.monotonic()
        while step < self.total:
            count = self._steps_until_next_event(step, seconds_a_step)
            began = time.monotonic()
            rows = self._run(iterator, step, count)
            seconds_a_step = (time.monotonic() - began) / len(rows)
            self.pending.append(rows)
            step += count
            if step % self.settings.log_every == 0 or step == self.total:
                self._log(step, (step - logged) / (time.monotonic() - logged_at))
                logged, logged_at = step, time.monotonic()
            if step % self.settings.save_every == 0 or step == self.total or self.terminated:
                self.save()
            if self.terminated:
                self.watcher.say(f"SIGTERM: saved at step {step}; the same command goes on from there")
                raise SystemExit(STOPPED)
            if self.settings.eval_every and step % self.settings.eval_every == 0 and step < self.total and self.held_out:
                self._evaluate(step)
                logged_at = time.monotonic()

    def _steps_until_next_event(self, step: int, seconds_a_step: float) -> int:
        events = [self.settings.log_every, self.settings.save_every, self.settings.eval_every]
        left = [every - step % every for every in events if every] + [self.total - step, self.settings.steps_per_loop]
        bound = int(HOST_SECONDS / seconds_a_step) if seconds_a_step else 1
        return max(1, min(*left, bound))

    def _run(self, iterator, step: int, count: int) -> np.ndarray:
        try:
            rows = self.trainer.run_steps(iterator, tf.constant(count)).numpy()
        except (tf.errors.DataLossError, tf.errors.InvalidArgumentError) as error:
            raise ValueError(self.source.explain(error.message) or f"step {step}: {error.message}") from None
        finite = rows[:, self.trainer.step.names.index("finite")]
        if not self.trainer.step.scales_loss and not finite.all():
            bad = step + int(np.argmin(finite))
            raise ValueError(f"step {bad}: loss or gradient is not finite; the checkpoints before it are intact")
        return rows

    def _log(self, step: int, steps_per_second: float) -> None:
        rows = np.concatenate(self.pending)
        self.pending = []
        names = self.trainer.step.names
        metrics = dict(zip(names, rows.mean(axis=0).tolist()))
        metrics["learning_rate"] = float(rows[-1, names.index("learning_rate")])
        tokens = metrics.pop("tokens")
        metrics.pop("finite")
        metrics |= {"sequences_per_second": steps_per_second * self.settings.batch_size,
                    "tokens_per_second": steps_per_second * tokens}
        self.watcher.training(step, metrics, steps_per_second)

    def _evaluate(self, step: int) -> dict[str, float]:
        assert self.held_out is not None
        metrics, rows = self.trainer.evaluate(self.held_out, self.settings.eval_steps)
        metrics |= self.task.evaluate(rows)
        self.watcher.evaluation(step, metrics)
        return metrics

    def save(self) -> None:
        """Writes a checkpoint; one that cannot be written (a full disk) ends the run, those before it intact."""
        try:
            self.manager.save(checkpoint_number=int(self.trainer.done))
        except tf.errors.OpError as error:
            raise OSError(f"{self.output_dir}: the checkpoint at step {int(self.trainer.done)} could not be written: "
                          f"{str(error)[:200]}") from None
        self.watcher.say(f"saved {os.path.basename(self.manager.latest_checkpoint)}")
