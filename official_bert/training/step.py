"""One step of training, as pure functions of tensors: forward, backward, accumulation, clipping, update.

`Step.train` takes weights, moments, a batch and integers, and returns new weights and moments, which the loop assigns. The
same function runs under every strategy and is lowered for TPUs. Losses are divided once, by the global batch's weights, so
that replicas, accumulation steps and one big batch are the same training.
"""

import dataclasses
import functools
from collections.abc import Callable, Sequence

import keras
import tensorflow as tf

from official_bert.config import Config
from official_bert.training import optimization
from official_bert.training.flops import training_flops
from official_bert.training.optimization import Moments
from official_bert.training.task import Batch, TaskBase

EPSILON = 1e-5  # added to a sum of weights before dividing by it, as in 2018's masked-LM loss
SCALE_UP_EVERY = 2000  # finite steps after which float16's loss scale is doubled
FIRST_SCALE = 2.0 ** 15
TOTALS = ("tokens", "flops")  # sums over a step, not means: real tokens, operations of the model
FACTS = ("learning_rate", "gradient_norm", "parameter_norm", "failed", "skipped", "loss_scale")  # of an update
Tensors = list[tf.Tensor]
AllReduce = Callable[[Tensors], Tensors]


@dataclasses.dataclass(frozen=True)
class State:
    """Everything that a step changes: weights, Adam's moments, float16's loss scale, and the finite steps since it changed."""

    weights: Tensors
    first: Tensors
    second: Tensors
    scale: tf.Tensor
    finite_steps: tf.Tensor


def fold_seeds(sites: Sequence[keras.Variable], seed: int, step: tf.Tensor, part: tf.Tensor) -> Tensors:
    """Makes a dropout seed for each site, a function of (seed, step, part = replica and micro-batch, site) alone.

    `sites` are the variables that training does not change: seed states and frozen weights, which stay unchanged.
    """
    at_step = tf.random.experimental.stateless_fold_in(tf.constant([seed, 0], tf.int32), tf.cast(step, tf.int32))
    at_part = tf.random.experimental.stateless_fold_in(at_step, tf.cast(part, tf.int32))
    return [tf.cast(tf.random.experimental.stateless_fold_in(at_part, index), site.dtype) if is_seed(site)
            else tf.convert_to_tensor(site.value) for index, site in enumerate(sites)]


def is_seed(variable: keras.Variable) -> bool:
    """Whether a variable is the state of a dropout's seed, not a frozen weight."""
    return tf.as_dtype(variable.dtype).is_integer


def _cut(value: tf.Tensor, count: int) -> tf.Tensor:
    """[rows,...] -> [count,rows / count,...]."""
    rows = value.shape[0] // count
    cut = tf.reshape(value, tf.concat([[count, rows], tf.shape(value)[1:]], axis=0))
    return tf.ensure_shape(cut, (count, rows, *value.shape[1:]))


class Step:
    """The step functions of a task and its model. `names` are the names of the metrics that `train` returns, in their order."""

    def __init__(self, task: TaskBase, model: keras.Model, config: Config, total_steps: int, num_replicas: int = 1):
        self.task, self.model, self.config = task, model, config
        self.total_steps, self.num_replicas = total_steps, num_replicas
        self.scales_loss = config.training.precision == "float16"
        self.decayed = [optimization.is_decayed(variable.path) for variable in model.trainable_variables]
        each = () if tuple(task.loss_names) == ("loss",) else tuple(f"{name}_loss" for name in task.loss_names)
        self.names = ("loss", *each, *task.counter_names, *FACTS, *TOTALS)
        compiled = functools.partial(tf.function, jit_compile=True, autograph=False)
        # Compiled, an update reads and writes a weight's numbers once instead of many times. Weights of one shape share a
        # function, so only a few are compiled.
        self.compiled_updates = {key: compiled(functools.partial(self._update_one, decayed=key[1])) for key in self._update_keys()}
        # Compiled because the graph optimizer's form of such sums in a loop within a loop (TemporaryVariable) fails.
        self.compiled_add = compiled(lambda sums, made: tf.nest.map_structure(tf.add, sums, made))
        self.compiled_gradients = compiled(self.gradients) if config.training.xla else self.gradients

    def train(self, state: State, batch: Batch, step: tf.Tensor, replica: tf.Tensor,
              all_reduce: AllReduce) -> tuple[State, tf.Tensor]:
        """Returns the new state and the metrics (float32, `names`) after one replica's part of a global batch."""
        weights_of = self.task.loss_weights(batch)
        totals = dict(zip(weights_of, all_reduce(list(weights_of.values()))))
        gradients, sums, counts = self._accumulate(state, batch, totals, step, replica)
        reduced = all_reduce([*gradients, *sums.values(), *(value for pair in counts.values() for value in pair)])
        gradients, rest = reduced[:len(gradients)], reduced[len(gradients):]
        losses = {name: value / (totals[name] + EPSILON) for name, value in zip(sums, rest)}
        pairs = dict(zip(counts, zip(rest[len(sums)::2], rest[len(sums) + 1::2])))
        loss = tf.add_n(list(losses.values()))
        state, facts = self._update(state, gradients, loss, step)
        row = {f"{name}_loss": value for name, value in losses.items()} | {"loss": loss} | facts
        row |= {name: count if name in TOTALS else tf.math.divide_no_nan(count, weight) for name, (count, weight) in pairs.items()}
        return state, tf.stack([tf.cast(row[name], tf.float32) for name in self.names])

    def _others(self) -> Tensors:
        """The variables that training does not change, for evaluation: no dropout reads its seed, so seeds are 0."""
        return [tf.zeros(variable.shape, variable.dtype) if is_seed(variable) else tf.convert_to_tensor(variable.value)
                for variable in self.model.non_trainable_variables]

    def _accumulate(self, state: State, batch: Batch, totals: dict, step: tf.Tensor, replica: tf.Tensor):
        """Sums gradients, losses and counters over a replica's micro-batches, one after the other."""
        count = self.config.training.accumulation_steps

        def measure(index, part):
            seeds = fold_seeds(self.model.non_trainable_variables, self.config.seed, step, replica * count + index)
            return self.compiled_gradients(state.weights, seeds, part, totals, state.scale)
        if count == 1:
            return measure(0, batch)
        pieces = {key: _cut(value, count) for key, value in batch.items()}
        zeros = ([tf.zeros_like(weight) for weight in state.weights], {name: tf.constant(0.0) for name in totals},
                 {name: (tf.constant(0.0), tf.constant(0.0)) for name in (*self.task.counter_names, *TOTALS)})

        def add(index, sums):
            made = measure(index, {key: value[index] for key, value in pieces.items()})
            return index + 1, self.compiled_add(sums, made)
        # A loop in the graph: unrolled, micro-batches would run in parallel and save no memory.
        return tf.while_loop(lambda index, _: index < count, add, (tf.constant(0), zeros), parallel_iterations=1)[1]

    def gradients(self, weights: Tensors, seeds: Tensors, batch: Batch, totals: dict, scale: tf.Tensor):
        """Returns one micro-batch's gradients of the (scaled) global loss, sums of losses, (sum, weight) of counters."""
        with tf.GradientTape() as tape:
            tape.watch(weights)
            outputs, _ = self.model.stateless_call(weights, seeds, dict(batch), training=True)
            losses = self.task.losses(outputs, batch)
            loss = tf.add_n([part / (totals[name] + EPSILON) for name, (part, _) in losses.items()])
            scaled = loss * scale if self.scales_loss else loss
        found = tape.gradient(scaled, weights, unconnected_gradients=tf.UnconnectedGradients.ZERO)
        work = {"tokens": tf.reduce_sum(tf.cast(batch["input_mask"], tf.float32)),
                "flops": training_flops(self.config.model, batch)}
        counters = self.task.counters(outputs, batch) | {name: (work[name], tf.constant(1.0)) for name in TOTALS}
        return ([tf.convert_to_tensor(gradient) for gradient in found], {name: part for name, (part, _) in losses.items()},
                counters)

    def _update_keys(self) -> list[tuple[tuple[int, ...], bool]]:
        """Each weight's shape, and whether it decays."""
        return [(tuple(variable.shape), decayed) for variable, decayed in zip(self.model.trainable_variables, self.decayed)]

    def _update(self, state: State, gradients: Tensors, loss: tf.Tensor, step: tf.Tensor) -> tuple[State, dict[str, tf.Tensor]]:
        """Clips and updates; keeps weights and moments if the step must not be taken."""
        rule, training = self.config.optimizer, self.config.training
        scale, finite_steps = state.scale, state.finite_steps
        gradient_scale = 1.0 / scale if self.scales_loss else tf.constant(1.0)
        norm = tf.linalg.global_norm(gradients) * gradient_scale
        gradient_scale *= optimization.clip_scale(norm, rule.clip_norm)
        finite = tf.reduce_all(tf.math.is_finite(tf.stack([loss, norm])))
        taken = finite & (norm <= training.skip_gradient_norm) if training.skip_gradient_norm else finite
        rate = optimization.scheduled_rate(rule, step, self.total_steps)
        new = [self.compiled_updates[key](*values, gradient_scale, rate, step, taken)
               for key, *values in zip(self._update_keys(), state.weights, gradients, state.first, state.second)]
        weights, first, second = (list(part) for part in zip(*new))
        parameter_norm = tf.linalg.global_norm(weights)
        # An overflow of float16 is only skipped while there is a loss scale to halve.
        failed = (~finite & (scale <= 1.0) if self.scales_loss else ~finite) | ~tf.math.is_finite(parameter_norm)
        if self.scales_loss:
            held = tf.where(finite, finite_steps + 1, 0)
            grown = held >= SCALE_UP_EVERY
            scale = tf.where(finite, tf.where(grown, scale * 2.0, scale), tf.maximum(scale / 2.0, 1.0))
            finite_steps = tf.where(grown, 0, held)
        facts = {"learning_rate": rate, "gradient_norm": norm, "parameter_norm": parameter_norm,
                 "failed": tf.cast(failed, tf.float32), "skipped": tf.cast(~failed & ~taken, tf.float32), "loss_scale": scale}
        return State(weights, first, second, scale, finite_steps), facts

    def _update_one(self, weight: tf.Tensor, gradient: tf.Tensor, first: tf.Tensor, second: tf.Tensor, gradient_scale: tf.Tensor,
                    rate: tf.Tensor, step: tf.Tensor, taken: tf.Tensor, decayed: bool) -> tuple[tf.Tensor, ...]:
        """Returns a weight and its moments after the step, unchanged if it is not `taken`."""
        new, moments = optimization.update(self.config.optimizer, weight, gradient * gradient_scale, Moments(first, second), rate,
                                           step, decayed)
        return tuple(tf.where(taken, after, before) for after, before in zip((new, *moments), (weight, first, second)))

    def evaluate(self, weights: Tensors, batch: Batch):
        """Returns (sum, weight) of losses and of counters, and the predictions of the batch's rows."""
        outputs, _ = self.model.stateless_call(weights, self._others(), dict(batch), training=False)
        return self.task.losses(outputs, batch), self.task.counters(outputs, batch), self.task.predictions(outputs, batch)
