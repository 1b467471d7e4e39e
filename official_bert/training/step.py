"""One training step, as pure functions of tensors: forward, backward, gradient accumulation, clipping, loss scale,
update.

`Step.measure` gives the gradients of the global batch, `Step.decide` what to do with them, and an update of each weight
writes the new numbers over the old ones. `Step.train` is the three in one pure function, which returns new
weights and moments: TPUs run it, and it is lowered for them. Losses are divided once, by the global batch's weights, so
that replicas, accumulation steps and one big batch are the same training.
"""

import dataclasses
import functools
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import keras
import tensorflow as tf
from jaxtyping import Float, Int, Shaped

from official_bert.layers.speed.computing import computing
from official_bert.model_config import ModelConfig
from official_bert.models import parameter_groups
from official_bert.objectives.losses import Fraction
from official_bert.objectives.objective import Batch
from official_bert.training import learning_rate, optimization
from official_bert.training.optimization import Decision
from official_bert.training.recipe import Recipe
from official_bert.training_config import TrainingConfig

EPSILON = 1e-5  # added to a sum of weights before dividing by it, as in 2018's masked-LM loss
SCALE_UP_EVERY = 2000  # finite steps after which float16's loss scale is doubled
FIRST_SCALE = 2.0**15
SHORT_ROW = 32  # tokens: the assumed length of rows in batches of changing length
MANY_NUMBERS = 2**29  # layer outputs of a training from which on compiling a step for every batch length pays
TOTALS = ("tokens", "flops")  # sums over a step, not means: real tokens, operations of the model
FACTS = ("learning_rate", "gradient_norm", "parameter_norm", "failed", "skipped", "loss_scale")  # of an update
Tensors = list[tf.Tensor]
AllReduce = Callable[[Tensors], Tensors]
SumsOfBatch = tuple[Tensors, dict[str, tf.Tensor], dict[str, Fraction]]  # gradients, sums of losses, counters
Evaluated = tuple[dict[str, Fraction], dict[str, Fraction], dict[str, tf.Tensor]]  # losses, counters, predictions


@dataclasses.dataclass(frozen=True)
class State:
    """The values that a step changes: weights, Adam's moments, float16's loss scale, and the finite steps since it
    changed.
    """

    weights: Tensors
    first: Tensors
    second: Tensors
    scale: tf.Tensor
    finite_steps: tf.Tensor


def fold_seeds(sites: Sequence[keras.Variable], seed: int, step: Int[Any, ""], part: Int[Any, ""]) -> Tensors:
    """Returns the values of `sites` for a step, with a new dropout seed for each seed state.

    A seed is a function of (seed, step, part = replica and micro-batch, site) alone. `sites` are the variables that
    training does not change: seed states and frozen weights. Only seed states are numbered, so that frozen weights do
    not change the seeds.
    """
    numbers = itertools.count()
    at_step = tf.random.experimental.stateless_fold_in(tf.constant([seed, 0], tf.int32), tf.cast(step, tf.int32))
    at_part = tf.random.experimental.stateless_fold_in(at_step, tf.cast(part, tf.int32))
    return [
        tf.cast(tf.random.experimental.stateless_fold_in(at_part, next(numbers)), site.dtype)
        if is_seed(site)
        else tf.convert_to_tensor(site.value)
        for site in sites
    ]


def is_seed(variable: keras.Variable) -> bool:
    """Returns whether a variable is the state of a dropout seed, not a frozen weight."""
    return tf.as_dtype(variable.dtype).is_integer


@functools.cache
def _compiled_add(shapes: tuple, names: tuple[str, ...]) -> Callable:
    """Returns a function that adds the results of micro-batches; one for all trainings of models of these shapes, with
    metrics of these names.
    """
    del shapes, names
    # Compiled because the graph optimizer's form of such sums in a loop within a loop (TemporaryVariable) fails.
    return tf.function(
        lambda sums, addends: tf.nest.map_structure(tf.add, sums, addends), jit_compile=True, autograph=False
    )


def _cut(value: Shaped[Any, "rows *each"], count: int) -> Shaped[Any, "{count} _ *each"]:
    """[rows,...] -> [count,rows / count,...]; on replicas, batches of changing length have no static number of rows."""
    static = None if value.shape[0] is None else value.shape[0] // count
    rows = tf.shape(value)[0] // count if static is None else static
    cut = tf.reshape(value, tf.concat([[count, rows], tf.shape(value)[1:]], axis=0))
    return tf.ensure_shape(cut, (count, static, *value.shape[1:]))


def compiles_every_length(sizes: ModelConfig, training: TrainingConfig, total_steps: int) -> bool:
    """Returns whether the element-wise chains are compiled for each length of batches whose length varies.

    On a CPU, compiling takes about half a second for each length. Steps are then 1.3 to 1.5 times as fast in bfloat16.
    In float32 they are 1.05 times as fast, which rounding lengths up takes back (docs/results/finetuning.md).
    """
    numbers = total_steps * training.batch_size * SHORT_ROW * sizes.hidden_size * sizes.num_hidden_layers
    return (
        training.precision == "bfloat16"
        and numbers >= MANY_NUMBERS
        and not training.xla
        and not tf.config.list_logical_devices("GPU")
        and not tf.config.list_logical_devices("TPU")
    )


def skips_padding(training: TrainingConfig) -> bool:
    """Returns whether layers skip the padding of batches whose length varies: by default on CPUs, where it was
    measured.

    Raises ValueError if it is asked for with XLA or on TPUs, which need shapes that are known beforehand.
    """
    choice = training.skip_padding
    fixed = "training.xla" if training.xla else "TPUs" if tf.config.list_logical_devices("TPU") else ""
    if choice is True and fixed:
        raise ValueError(
            f"config.training.skip_padding: expected auto or false with {fixed}, which need shapes known beforehand, "
            f"got true"
        )
    return not fixed and (choice is True or (choice == "auto" and not tf.config.list_logical_devices("GPU")))


class Step:
    """The step functions of a recipe. `names` are the metrics that `train` returns, in their order."""

    def __init__(self, recipe: Recipe, total_steps: int, num_replicas: int = 1, share: tf.Variable | None = None):
        self.recipe, self.objective, self.model = recipe, recipe.objective, recipe.model
        self.share = share  # of the training time that has passed, if training ends by time
        self.total_steps, self.num_replicas = total_steps, num_replicas
        self.compiles_every_length = compiles_every_length(recipe.sizes, recipe.training, total_steps)
        self.skips_padding = skips_padding(recipe.training)
        self.scales_loss = recipe.training.precision == "float16"
        # 2018 did not update weights without a gradient, so they did not decay.
        self.decayed = [
            optimization.is_decayed(variable.path) and (recipe.reads_pooler or "/pooler/" not in variable.path)
            for variable in self.model.trainable_variables
        ]
        each = () if (names := self.objective.names) == ("loss",) else tuple(f"{name}_loss" for name in names)
        self.names = ("loss", *each, *self.objective.counter_names, *FACTS, *TOTALS)
        keys = [
            (tuple(variable.shape), decayed, recipe.update)
            for variable, decayed in zip(self.model.trainable_variables, self.decayed)
        ]
        # for each weight
        self.rate_factors = parameter_groups.rate_factors(
            self.model, recipe.optimizer.layer_decay, recipe.optimizer.head_rate
        )
        self.pure_updates = [optimization.pure_update(recipe.optimizer, *key) for key in keys]
        self.updates_in_place = [optimization.update_in_place(recipe.optimizer, *key) for key in keys]
        self.compiled_add = _compiled_add(tuple(shape for shape, *_ in keys), self.names)
        # Functions of tensors alone, whose graphs have no variables: TensorFlow keeps each graph with a
        # `tf.custom_gradient` for good.
        self.graph_of_gradients = tf.function(self.gradients, jit_compile=recipe.training.xla or None, autograph=False)
        self.graph_of_evaluation = tf.function(self._evaluate, reduce_retracing=True, autograph=False)

    def train(
        self, state: State, batch: Batch, step: tf.Tensor, replica: tf.Tensor, all_reduce: AllReduce
    ) -> tuple[State, tf.Tensor]:
        """Returns the new state and the metrics (float32, `names`) after one replica's part of a global batch."""
        gradients, decisions, scaling, row = self.prepare(state, batch, step, replica, all_reduce)
        new = [
            update(*values, decisions[factor])
            for update, factor, *values in zip(
                self.pure_updates, self.rate_factors, state.weights, state.first, state.second, gradients
            )
        ]
        weights, first, second = (list(part) for part in zip(*new))
        return State(weights, first, second, *scaling), self.metrics(row, tf.linalg.global_norm(weights))

    def prepare(
        self, state: State, batch: Batch, step: tf.Tensor, replica: tf.Tensor, all_reduce: AllReduce
    ) -> tuple[Tensors, dict[float, Decision], Tensors, dict[str, tf.Tensor]]:
        """Returns the inputs of the weights' update.

        They are the gradients of the global batch, the decision for each of the `rate_factors`, the new loss scale, its
        finite steps, and values for the log.
        """
        gradients, loss, row = self.measure(state, batch, step, replica, all_reduce)
        decision, *scaling, facts = self.decide(gradients, loss, step, state.scale, state.finite_steps)
        decisions = {
            factor: decision if factor == 1.0 else decision._replace(rate=decision.rate * factor)
            for factor in self.rate_factors
        }
        return gradients, decisions, scaling, row | facts

    def measure(
        self, state: State, batch: Batch, step: tf.Tensor, replica: tf.Tensor, all_reduce: AllReduce
    ) -> tuple[Tensors, tf.Tensor, dict[str, tf.Tensor]]:
        """Returns the (scaled) gradients of the global batch's loss, the loss, and losses and counters by name."""
        weights_of = self.objective.weights(batch)
        totals = dict(zip(weights_of, all_reduce(list(weights_of.values()))))
        gradients, sums, counts = self._accumulate(state, batch, totals, step, replica)
        reduced = all_reduce([*gradients, *sums.values(), *(value for pair in counts.values() for value in pair)])
        gradients, reduced_sums = reduced[: len(gradients)], reduced[len(gradients) :]
        losses = {name: value / (totals[name] + EPSILON) for name, value in zip(sums, reduced_sums)}
        pairs = dict(zip(counts, zip(reduced_sums[len(sums) :: 2], reduced_sums[len(sums) + 1 :: 2])))
        loss = tf.add_n(list(losses.values()))
        row = {f"{name}_loss": value for name, value in losses.items()} | {"loss": loss}
        row |= {
            name: count if name in TOTALS else tf.math.divide_no_nan(count, weight)
            for name, (count, weight) in pairs.items()
        }
        return gradients, loss, row

    def metrics(self, row: dict[str, Shaped[Any, ""]], parameter_norm: Float[Any, ""]) -> Float[Any, " names"]:
        """Returns the values of `names` from the results of `measure` and `decide` and the norm of the new weights."""
        failed = row["failed"] | ~tf.math.is_finite(parameter_norm)
        row = row | {"parameter_norm": parameter_norm, "failed": failed, "skipped": ~failed & ~row["taken"]}
        return tf.stack([tf.cast(row[name], tf.float32) for name in self.names])

    def _others(self) -> Tensors:
        """The variables that training does not change, for evaluation: no dropout reads its seed, so seeds are 0."""
        return [
            tf.zeros(variable.shape, variable.dtype) if is_seed(variable) else tf.convert_to_tensor(variable.value)
            for variable in self.model.non_trainable_variables
        ]

    def _accumulate(self, state: State, batch: Batch, totals: dict, step: tf.Tensor, replica: tf.Tensor) -> SumsOfBatch:
        """Sums gradients, losses and counters over a replica's micro-batches, one after the other."""
        count = self.recipe.training.accumulation_steps

        def measure(index: tf.Tensor | int, part: Batch) -> SumsOfBatch:
            seeds = fold_seeds(self.model.non_trainable_variables, self.recipe.seed, step, replica * count + index)
            return self.graph_of_gradients(
                state.weights, seeds, self.objective.add_teacher_outputs(part), totals, state.scale
            )

        if count == 1:
            return measure(0, batch)
        pieces = {key: _cut(value, count) for key, value in batch.items()}
        zeros = (
            [tf.zeros_like(weight) for weight in state.weights],
            {name: tf.constant(0.0) for name in totals},
            {name: (tf.constant(0.0), tf.constant(0.0)) for name in (*self.objective.counter_names, *TOTALS)},
        )

        def add(index: tf.Tensor, sums: tuple) -> tuple[tf.Tensor, tuple]:
            addends = measure(index, {key: value[index] for key, value in pieces.items()})
            return index + 1, self.compiled_add(sums, addends)

        # A loop in the graph: unrolled, micro-batches would run in parallel and save no memory.
        return tf.while_loop(lambda index, _: index < count, add, (tf.constant(0), zeros), parallel_iterations=1)[1]

    def gradients(self, weights: Tensors, seeds: Tensors, batch: Batch, totals: dict, scale: tf.Tensor) -> SumsOfBatch:
        """Returns one micro-batch's gradients of the (scaled) global loss, the sums of its losses, and (sum, weight) of
        counters.

        The batch has its teacher's outputs. Raises ValueError if the configuration has a teacher and the objective does
        not.
        """
        if self.recipe.training.teacher and self.objective.eval_objective is self.objective:
            raise ValueError(
                f"config.training.teacher: {self.recipe.training.teacher}: expected an objective with this teacher "
                "(runs/beginning/preparation.py loads it), got the task's own"
            )
        with computing(removes_padding=self.skips_padding, compiles_every_length=self.compiles_every_length):
            with tf.GradientTape() as tape:
                tape.watch(weights)
                outputs, _ = self.model.stateless_call(weights, seeds, dict(batch), training=True)
                losses = self.objective.losses(outputs, batch)
                loss = tf.add_n([part / (totals[name] + EPSILON) for name, (part, _) in losses.items()])
                scaled = loss * scale if self.scales_loss else loss
            scaled_gradients = tape.gradient(scaled, weights, unconnected_gradients=tf.UnconnectedGradients.ZERO)
        work = {"tokens": tf.reduce_sum(tf.cast(batch["input_mask"], tf.float32)), "flops": self.recipe.flops(batch)}
        counters = self.objective.counters(outputs, batch) | {name: (work[name], tf.constant(1.0)) for name in TOTALS}
        return (
            [tf.convert_to_tensor(gradient) for gradient in scaled_gradients],
            {name: part for name, (part, _) in losses.items()},
            counters,
        )

    def decide(
        self, gradients: Tensors, loss: tf.Tensor, step: tf.Tensor, scale: tf.Tensor, finite_steps: tf.Tensor
    ) -> tuple[Decision, tf.Tensor, tf.Tensor, dict[str, tf.Tensor]]:
        """Returns the decision (clipping, and whether the step is taken), the new loss scale, its finite steps, and
        values for the log.
        """
        rule, training = self.recipe.optimizer, self.recipe.training
        gradient_scale = 1.0 / scale if self.scales_loss else tf.constant(1.0)
        norm = tf.linalg.global_norm(gradients) * gradient_scale
        gradient_scale *= optimization.clip_scale(norm, rule.clip_norm)
        finite = tf.reduce_all(tf.math.is_finite(tf.stack([loss, norm])))
        is_taken = finite & (norm <= training.skip_gradient_norm) if training.skip_gradient_norm else finite
        rate = (
            learning_rate.scheduled_rate(rule, step, self.total_steps)
            if self.share is None
            else learning_rate.rate_at_share(rule, tf.convert_to_tensor(self.share))
        )
        # An overflow of float16 is only skipped while there is a loss scale to halve.
        failed = ~finite & (scale <= 1.0) if self.scales_loss else ~finite
        if self.scales_loss:
            held = tf.where(finite, finite_steps + 1, 0)
            grown = held >= SCALE_UP_EVERY
            scale = tf.where(finite, tf.where(grown, scale * 2.0, scale), tf.maximum(scale / 2.0, 1.0))
            finite_steps = tf.where(grown, 0, held)
        facts = {"learning_rate": rate, "gradient_norm": norm, "failed": failed, "taken": is_taken, "loss_scale": scale}
        return Decision(gradient_scale, rate, step, is_taken), scale, finite_steps, facts

    def evaluate(self, weights: Tensors, batch: Batch) -> Evaluated:
        """Returns (sum, weight) of losses and of counters, and the predictions of the batch's rows."""
        return self.graph_of_evaluation(weights, self._others(), batch)

    def _evaluate(self, weights: Tensors, others: Tensors, batch: Batch) -> Evaluated:
        outputs, _ = self.model.stateless_call(weights, others, dict(batch), training=False)
        objective = self.objective.eval_objective
        predictions = objective.predictions(outputs, batch)
        return objective.losses(outputs, batch), objective.counters(outputs, batch), predictions
