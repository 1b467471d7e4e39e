"""The trainer: a model, its optimizer's moments and its step on the devices of a strategy."""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from official_bert.data.batches.sources import BatchSource
from official_bert.models import checkpoints
from official_bert.models.encoder import weights_by_name
from official_bert.objectives.objective import Batch
from official_bert.training.checkpointing import CheckpointFolder
from official_bert.training.machines import distribution
from official_bert.training.recipe import Recipe
from official_bert.training.step import FIRST_SCALE, State, Step

# A TPU then compiles for the exact shapes of a batch and does not pad it to bounds of its own.
EXACT_SHAPES = tf.distribute.RunOptions(experimental_enable_dynamic_batch_size=False)


class Trainer:
    """The variables that a run changes, and the compiled functions that change them.

    Create it and the recipe's model under the strategy.
    """

    def __init__(self, recipe: Recipe, strategy: tf.distribute.Strategy, total_steps: int):
        self.model, self.strategy, self.total_steps = (model := recipe.model), strategy, total_steps
        self.several_workers = isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy)
        with strategy.scope():
            trainable = [variable.value for variable in model.trainable_variables]
            names = [variable.path.partition("/")[2] for variable in model.trainable_variables]
            self.first, self.second = (
                [tf.Variable(tf.zeros_like(weight), trainable=False) for weight in trainable] for _ in range(2)
            )
            self.scale = tf.Variable(FIRST_SCALE, trainable=False)
            self.finite_steps = tf.Variable(0, trainable=False)
            self.done = tf.Variable(0, dtype=tf.int64, trainable=False)
            # Of a training of some hours: the share that has passed, as its steps see it, and the seconds of all its
            # processes.
            self.share, self.seconds = (
                tf.Variable(0.0, trainable=False),
                tf.Variable(0.0, dtype=tf.float64, trainable=False),
            )
        self.weights = trainable
        saved_weights = checkpoints.named_weights(model)
        if recipe.training.adapters:  # the base has the others
            named = weights_by_name(model).items()
            saved_weights = {name: saved_weights[name] for name, weight in named if weight.trainable}
        self.saved = {
            "weights": saved_weights,
            "first": dict(zip(names, self.first)),
            "second": dict(zip(names, self.second)),
            "scale": self.scale,
            "finite_steps": self.finite_steps,
            "step": self.done,
        }
        self.saved |= {"seconds": self.seconds} if recipe.training.hours else {}
        self.checkpoint = tf.train.Checkpoint(**self.saved)
        # Workers stop at the same step: the request of one reaches the others with the step's own sums.
        self.stop_wanted, self.stop_agreed = tf.Variable(0.0, trainable=False), tf.Variable(0.0, trainable=False)
        self.enter(recipe)

    def enter(self, recipe: Recipe) -> None:
        """Makes the step functions for the batches of a recipe, at the start and for each further phase."""
        share = self.share if recipe.training.hours else None
        self.step = Step(recipe, self.total_steps, self.strategy.num_replicas_in_sync, share)
        self.run_steps = tf.function(self._run_steps)
        # Batches bucketed by length have a few shapes: one graph for all.
        self.run_evaluation = tf.function(self._run_evaluation, reduce_retracing=True, autograph=False)

    @property
    def steps_done(self) -> int:
        """The number of optimizer steps so far."""
        return int(self.done.numpy())

    @property
    def bytes_saved(self) -> int:
        """The size of a checkpoint in bytes."""
        return sum(math.prod(variable.shape) * variable.dtype.size for variable in tf.nest.flatten(self.saved))

    def snapshot(self) -> tf.train.Checkpoint:
        """Returns a checkpoint of the current values, on the host, which further steps do not change.

        On a CPU it shares the variables' memory until the next step, which then writes its results elsewhere.
        """
        with tf.device("CPU:0"):
            return tf.train.Checkpoint(
                **tf.nest.map_structure(
                    lambda variable: tf.Variable(tf.identity(variable.read_value()), trainable=False), self.saved
                )
            )

    def _state(self) -> State:
        """The variables' values, on one replica."""
        weights, first, second = (
            [tf.convert_to_tensor(variable) for variable in group] for group in (self.weights, self.first, self.second)
        )
        return State(weights, first, second, tf.convert_to_tensor(self.scale), tf.convert_to_tensor(self.finite_steps))

    def _wants_to_stop(self) -> tf.Tensor:
        """The number of stop requests of all workers, on one replica."""
        return _all_reduce([tf.identity(self.stop_wanted)])[0] if self.several_workers else tf.constant(0.0)

    def _replica_step(
        self, batch: Mapping[str, tf.Tensor], step: tf.Tensor
    ) -> tuple[list[tf.Tensor], tf.Tensor, tf.Tensor]:
        """Runs one replica's part of a step: returns new state, metrics, and the number of stop requests; assigns
        nothing.
        """
        state, row = self.step.train(self._state(), batch, step, _replica(), _all_reduce)
        return (
            [*state.weights, *state.first, *state.second, state.scale, state.finite_steps],
            row,
            self._wants_to_stop(),
        )

    def _replica_gradients(self, batch: Mapping[str, tf.Tensor], step: tf.Tensor) -> tuple:
        """Runs one replica's part of a step up to the update of the weights."""
        return *self.step.prepare(self._state(), batch, step, _replica(), _all_reduce), self._wants_to_stop()

    # rewriting the source of all that a step calls takes seconds at each start
    @tf.autograph.experimental.do_not_convert
    def _take_step(self, batch: Mapping[str, tf.Tensor]) -> tuple[tf.Tensor, tf.Tensor]:
        """Takes a step; returns its metrics and the number of stop requests."""
        arguments = (batch, tf.identity(self.done))
        scaling = [self.scale, self.finite_steps]
        if isinstance(self.strategy, tf.distribute.TPUStrategy):
            values, row, stop = self.strategy.run(self._replica_step, args=arguments, options=EXACT_SHAPES)
            distribution.assign(self.strategy, [*self.weights, *self.first, *self.second, *scaling], values)
            return self._local(row), self._local(stop)
        gradients, decisions, scales, row, stop = self.strategy.run(self._replica_gradients, args=arguments)
        for update, factor, *variables, gradient in zip(
            self.step.updates_in_place, self.step.rate_factors, self.weights, self.first, self.second, gradients
        ):
            distribution.update(self.strategy, update, tuple(variables), (gradient, decisions[factor]))
        distribution.assign(self.strategy, scaling, scales)
        # Every replica has the same weights.
        norm = tf.linalg.global_norm([tf.convert_to_tensor(self._local(weight)) for weight in self.weights])
        return self.step.metrics(tf.nest.map_structure(self._local, row), norm), self._local(stop)

    def _local(self, value: Any) -> Any:
        """A value or variable of this worker's first replica."""
        return self.strategy.experimental_local_results(value)[0]

    def _run_steps(self, iterator: Iterator[Mapping[str, tf.Tensor]], count: tf.Tensor) -> tf.Tensor:
        """Runs `count` steps, fewer if one fails or a worker wants to stop; returns their metrics [steps, names]."""
        rows = tf.TensorArray(tf.float32, size=0, dynamic_size=True, element_shape=[None], clear_after_read=False)
        for index in tf.range(count):
            row, stop = self._take_step(next(iterator))
            self.done.assign_add(1)
            self.stop_agreed.assign(stop)
            rows = rows.write(index, row)
            if stop > 0 or row[self.step.names.index("failed")] > 0:
                break
        return rows.stack()

    def _run_evaluation(self, batch: Batch) -> tuple[dict[str, Any], ...]:
        def replica_step(local: Batch) -> tuple[dict, dict, Mapping[str, tf.Tensor]]:
            return self.step.evaluate([tf.convert_to_tensor(weight) for weight in self.weights], local)

        losses, counters, predictions = self.strategy.run(replica_step, args=(batch,), options=EXACT_SHAPES)
        reduced = [
            {
                name: tuple(self.strategy.reduce("SUM", value, axis=None) for value in pair)
                for name, pair in part.items()
            }
            for part in (losses, counters)
        ]
        return (
            *reduced,
            distribution.gather_replicas(
                self.strategy,
                predictions
                | {"example_weights": self.strategy.run(lambda local: local["example_weights"], args=(batch,))},
            ),
        )

    def evaluate(self, source: BatchSource, limit: int = 0) -> tuple[dict[str, float], list[dict[str, Any]]]:
        """Returns mean losses and counters over the source (or its first `limit` batches), and predictions of its real
        rows.

        Raises ValueError for a record that cannot be read or is refused; the error names its file and number.
        """
        try:
            return self._evaluate(source, limit)
        except (tf.errors.DataLossError, tf.errors.InvalidArgumentError) as error:
            if explanation := source.explain(error.message):
                raise ValueError(explanation) from None
            raise

    def _evaluate(self, source: BatchSource, limit: int) -> tuple[dict[str, float], list[dict[str, Any]]]:
        sums: dict[str, np.ndarray] = {}
        rows: list[dict[str, Any]] = []
        for batch_losses, counters, predictions in distribution.over_batches(
            self.run_evaluation, source, self.strategy, limit
        ):
            named = {f"{name}_loss" if name != "loss" else name: pair for name, pair in batch_losses.items()} | counters
            for name, pair in named.items():
                sums[name] = sums.get(name, 0) + np.array([float(value) for value in pair])
            rows += real_rows(predictions)
        means = {name: float(part / max(weight, 1e-9)) for name, (part, weight) in sums.items()}
        if losses := [value for name, value in means.items() if name.endswith("_loss")]:
            means = {"loss": sum(losses)} | means
        return means, rows

    def steps_agree(self) -> bool:
        """Returns whether all workers are at the same step; each has restored from the output folder that it sees."""
        return (
            distribution.sum_over_replicas(self.strategy, self.done)
            == self.steps_done * self.strategy.num_replicas_in_sync
        )

    def newest(self, folder: CheckpointFolder) -> str:
        """Returns the prefix of a folder's newest checkpoint, the same on all workers.

        They wait for a checkpoint that the first worker is writing.
        """
        folder.wait()
        self.any_worker(False)
        return folder.newest()

    def restore_newest(self, folder: CheckpointFolder) -> str | None:
        """Restores the newest readable checkpoint of a folder and returns its prefix, or None if there is none.

        Raises ValueError if the workers found different checkpoints, and if all are unreadable.
        """
        restored = folder.restore_newest() if self.newest(folder) else None
        if not self.steps_agree():
            raise ValueError(
                f"--output_dir={folder.folder}: expected a folder that all workers share, found different checkpoints"
            )
        return restored

    def any_worker(self, claim: bool) -> bool:
        """Returns whether `claim` is true on at least one worker. All workers must call it."""
        return distribution.sum_over_replicas(self.strategy, tf.constant(int(claim), tf.int64)) > 0


def _replica() -> tf.Tensor:
    """The number of the replica that runs this."""
    return tf.cast(tf.distribute.get_replica_context().replica_id_in_sync_group, tf.int32)


def _all_reduce(tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    """Sums tensors over the replicas."""
    context = tf.distribute.get_replica_context()
    return (
        list(tensors)
        if context.num_replicas_in_sync == 1
        else list(context.all_reduce(tf.distribute.ReduceOp.SUM, list(tensors)))
    )


def real_rows(predictions: Mapping[str, tf.Tensor]) -> list[dict[str, Any]]:
    """Returns predictions by row, as NumPy values, without filler rows (`example_weights` 0)."""
    arrays = {name: value.numpy() for name, value in predictions.items()}
    weights = arrays.pop("example_weights")
    return [{name: value[index] for name, value in arrays.items()} for index in np.flatnonzero(weights > 0)]
