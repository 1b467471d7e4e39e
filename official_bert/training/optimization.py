"""Optimizers (AdamW, LAMB, StableAdamW): pure functions of tensors, and Keras optimizers around them.

`adamw` is 2018's `AdamWeightDecayOptimizer`: no bias correction, epsilon 1e-6, decay of all weights except LayerNorm
and biases. `adamw_bias_corrected` is AdamW as published (Loshchilov and Hutter, 2019), `lamb` is LAMB as published (You
et al., 2020, algorithm 2): with bias correction, and with the decay inside the trust ratio. `stable_adamw` is AdamW as
published with Adafactor's clipping of each weight's update (Wortsman et al., 2023, algorithm 2), as ModernBERT was
trained. Updates of large weights are compiled by XLA, which takes a weight's numbers through memory a few times instead
of many; once in a process for all weights of a shape, in every training.
"""

import dataclasses
import functools
import math
import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import keras
import tensorflow as tf

from official_bert.config import OptimizerConfig
from official_bert.training.learning_rate import check_lengths, scheduled_rate

READ_BY_UPDATE = ("name", "beta_1", "beta_2", "epsilon", "weight_decay_rate")  # fields of OptimizerConfig
# numbers of a weight that are updated together on a CPU: with both moments and the gradient half a megabyte
BLOCK = 2**14
NOT_DECAYED = re.compile(r"(LayerNorm|layer_norm|/bias$|_bias$)")  # 2018: ["LayerNorm", "layer_norm", "bias"]


def is_decayed(path: str) -> bool:
    """Returns whether the weight at `path` decays: all do except those of LayerNorm and biases."""
    return NOT_DECAYED.search(path) is None


class Moments(NamedTuple):
    """The running means of a weight's gradient and of its square: Adam's m and v."""

    first: tf.Tensor
    second: tf.Tensor


def update(
    config: OptimizerConfig,
    weight: tf.Tensor,
    gradient: tf.Tensor,
    moments: Moments,
    rate: tf.Tensor,
    step: tf.Tensor,
    decayed: bool,
) -> tuple[tf.Tensor, Moments]:
    """Returns one weight after step number `step` (from 0), and its moments. Pure; all tensors are float32."""
    first = config.beta_1 * moments.first + (1.0 - config.beta_1) * gradient
    second = config.beta_2 * moments.second + (1.0 - config.beta_2) * tf.square(gradient)
    corrected_first, corrected_second = first, second
    if config.name != "adamw":
        count = tf.cast(step, tf.float32) + 1.0
        # 1 - beta ** count, without float32's loss of digits in the difference.
        corrected_first = first / -tf.math.expm1(count * math.log(config.beta_1))
        corrected_second = second / -tf.math.expm1(count * math.log(config.beta_2))
    change = corrected_first / (tf.sqrt(corrected_second) + config.epsilon)
    if decayed:
        change += config.weight_decay_rate * weight
    if config.name == "lamb" and decayed:
        change *= trust_ratio(weight, change)
    if config.name == "stable_adamw":  # the decay too, as the rate of the weight is divided
        change /= tf.maximum(1.0, surprise(gradient, corrected_second, config.epsilon))
    return weight - rate * change, Moments(first, second)


def trust_ratio(weight: tf.Tensor, change: tf.Tensor) -> tf.Tensor:
    """Returns LAMB's `|weight| / |change|`, or 1 if either is 0."""
    weight_norm, change_norm = tf.norm(weight), tf.norm(change)
    return tf.where((weight_norm > 0) & (change_norm > 0), tf.math.divide_no_nan(weight_norm, change_norm), 1.0)


def surprise(gradient: tf.Tensor, second: tf.Tensor, epsilon: float) -> tf.Tensor:
    """Returns the root mean square of a weight's gradient divided by its expected size: above 1 if gradients have
    grown.

    The second moment follows a sudden growth of the gradients only after many steps; until then, updates are too large.
    `second` is bias-corrected. A gradient that was always 0 counts as 0.
    """
    return tf.sqrt(tf.reduce_mean(tf.math.divide_no_nan(tf.square(gradient), tf.maximum(second, epsilon**2))))


def clip_scale(norm: tf.Tensor, clip_norm: float) -> tf.Tensor:
    """Returns the factor that clips gradients of global norm `norm` to `clip_norm`, or 1 if `clip_norm` is 0."""
    return clip_norm / tf.maximum(norm, clip_norm) if clip_norm else tf.constant(1.0)


class Decision(NamedTuple):
    """The scalars that every weight's update needs besides its gradient."""

    gradient_scale: tf.Tensor
    rate: tf.Tensor
    step: tf.Tensor
    taken: tf.Tensor  # False leaves everything as it is


Update = Callable[..., tuple[tf.Tensor, Moments]]  # with the arguments of `update`


def pure_update(
    rule: OptimizerConfig, shape: tuple[int, ...], decayed: bool, change: Update = update
) -> Callable[..., tuple[tf.Tensor, ...]]:
    """Returns `change` compiled: a function (weight, first, second, gradient, decision) -> (weight, first, second)."""
    return _compiled(_updated, change, _read_fields(rule), shape, decayed)


def update_in_place(
    rule: OptimizerConfig, shape: tuple[int, ...], decayed: bool, change: Update = update
) -> Callable[..., None]:
    """Returns `change` compiled: a function of (weight, first, second, gradient, decision) that overwrites the first
    three, which are variables.

    The variables are plain ones. A compiled function confuses `DistributedVariable`s of the same shape (TensorFlow's
    `DistributedVariableTraceType`): pass the copy of one device.
    """
    # of whole weights; another update may need them too
    needs_norms = change is not update or rule.name == "stable_adamw" or (rule.name == "lamb" and decayed)
    whole = needs_norms or block_size(math.prod(shape)) < BLOCK / 16 or tf.config.list_logical_devices("GPU")
    return _compiled(_overwrite if whole else _overwrite_in_blocks, change, _read_fields(rule), shape, decayed)


@functools.cache
def block_size(size: int) -> int:
    """Returns the largest divisor of a weight's size that is at most BLOCK, or 1 for smaller weights, which need no
    blocks.
    """
    return 1 if size <= BLOCK else next(block for block in range(BLOCK, 0, -1) if size % block == 0)


def _read_fields(rule: OptimizerConfig) -> OptimizerConfig:
    """The rule without what no update reads, so that trainings with other rates and schedules share a compiled
    function.
    """
    return OptimizerConfig(**{name: getattr(rule, name) for name in READ_BY_UPDATE})


@functools.cache
def _compiled(
    function: Callable, change: Update, rule: OptimizerConfig, shape: tuple[int, ...], decayed: bool
) -> Callable:
    # A function for each shape: TensorFlow warns of one that is traced for many. Small weights lie in the cache of a
    # CPU, where the third of a second that compiling a shape takes would not be won back.
    large = math.prod(shape) > BLOCK or bool(tf.config.list_logical_devices("GPU"))
    change = functools.partial(change, rule)
    return tf.function(functools.partial(function, change, decayed), jit_compile=large or None, autograph=False)


def _updated(
    change: Update,
    decayed: bool,
    weight: tf.Tensor,
    first: tf.Tensor,
    second: tf.Tensor,
    gradient: tf.Tensor,
    decision: Decision,
) -> tuple[tf.Tensor, ...]:
    """Returns a weight and its moments after the step, unchanged if it is not taken."""
    new = _taken(change, decayed, weight, first, second, gradient, decision)
    return tuple(tf.where(decision.taken, after, before) for after, before in zip(new, (weight, first, second)))


def _taken(
    change: Update,
    decayed: bool,
    weight: tf.Tensor,
    first: tf.Tensor,
    second: tf.Tensor,
    gradient: tf.Tensor,
    decision: Decision,
) -> tuple[tf.Tensor, ...]:
    """Returns a weight and its moments after a step that is taken."""
    new, moments = change(
        weight, gradient * decision.gradient_scale, Moments(first, second), decision.rate, decision.step, decayed
    )
    return new, *moments


def _overwrite(
    change: Update,
    decayed: bool,
    weight: tf.Variable,
    first: tf.Variable,
    second: tf.Variable,
    gradient: tf.Tensor,
    decision: Decision,
) -> None:
    """Writes what `_updated` returns over a weight and its moments: compiled, its results lie in the memory of its
    inputs.
    """
    new = _updated(change, decayed, weight.read_value(), first.read_value(), second.read_value(), gradient, decision)
    for variable, value in zip((weight, first, second), new):
        variable.assign(value, read_value=False)


def _overwrite_in_blocks(
    change: Update,
    decayed: bool,
    weight: tf.Variable,
    first: tf.Variable,
    second: tf.Variable,
    gradient: tf.Tensor,
    decision: Decision,
) -> None:
    """`_overwrite` for a CPU, block by block.

    XLA makes three loops of an update, one for each result. If they write over what they read, they take their path
    without vectors, and a large weight passes through memory three times. Here their results are blocks in the cache,
    which are copied into their places; the condition keeps XLA from writing them there at once.
    """
    block = block_size(math.prod(gradient.shape))
    count = math.prod(gradient.shape) // block
    arrays = [
        tf.TensorArray(tf.float32, count, element_shape=(block,)).unstack(
            tf.reshape(variable.read_value(), (count, block))
        )
        for variable in (weight, first, second)
    ]
    gradients = tf.reshape(gradient, (count, block))

    def overwrite(index: tf.Tensor, *arrays: tf.TensorArray) -> tuple[tf.Tensor | tf.TensorArray, ...]:
        before = tuple(array.read(index) for array in arrays)
        part = tf.slice(gradients, [index, 0], [1, block])[0]
        after = tf.cond(
            decision.taken,
            lambda: _taken(change, decayed, *before, part, decision),  # type: ignore[call-arg]
            lambda: before,
        )
        return index + 1, *(array.write(index, value) for array, value in zip(arrays, after))

    _, *arrays = tf.while_loop(lambda index, *_: index < count, overwrite, (tf.constant(0), *arrays))
    for variable, array in zip((weight, first, second), arrays):
        variable.assign(tf.reshape(array.stack(), variable.shape), read_value=False)


@keras.saving.register_keras_serializable("official_bert")
class BertOptimizer(keras.optimizers.Optimizer):
    """The optimizers above as a Keras optimizer, for `compile` or your own loop.

    The schedule ends at `total_steps`. It clips the gradients that Keras passes to it: under `tf.distribute`, clip them
    before.
    """

    def __init__(
        self,
        total_steps: int,
        optimizer: str = "adamw",
        peak_learning_rate: float = 1e-4,
        schedule: str = "linear",
        power: float = 1.0,
        end_learning_rate: float = 0.0,
        warmup_steps: int = 0,
        weight_decay_rate: float = 0.01,
        beta_1: float = 0.9,
        beta_2: float = 0.999,
        epsilon: float = 1e-6,
        clip_norm: float = 1.0,
        name: str = "bert_optimizer",
        decay_steps: int = 0,
        decay_shape: str = "linear",
        **kwargs: Any,
    ):
        kwargs.pop("learning_rate", None)
        super().__init__(learning_rate=peak_learning_rate, name=name, **kwargs)
        self.total_steps = total_steps
        self.rule = OptimizerConfig(
            name=optimizer,  # type: ignore[arg-type]
            learning_rate=peak_learning_rate,
            schedule=schedule,  # type: ignore[arg-type]
            power=power,
            end_learning_rate=end_learning_rate,
            warmup_steps=warmup_steps,
            weight_decay_rate=weight_decay_rate,
            beta_1=beta_1,
            beta_2=beta_2,
            epsilon=epsilon,
            clip_norm=clip_norm,
            decay_steps=decay_steps,
            decay_shape=decay_shape,  # type: ignore[arg-type]
        )
        check_lengths(self.rule, total_steps)

    def build(self, variables: Sequence[keras.Variable]) -> None:
        """Makes the moments of every variable."""
        if self.built:
            return
        super().build(variables)
        self.first, self.second = self.add_optimizer_variables(variables, ["first_moment", "second_moment"])
        self.decayed = [is_decayed(variable.path) for variable in variables]

    def apply(
        self, grads: Sequence[tf.Tensor | None], trainable_variables: Sequence[keras.Variable] | None = None
    ) -> tf.Tensor:
        """Clips by the global norm, then updates; Keras skips variables whose gradient is None, with a warning."""
        tensors = [None if grad is None else tf.convert_to_tensor(grad) for grad in grads]
        scale = clip_scale(tf.linalg.global_norm(tensors), self.rule.clip_norm)
        return super().apply([None if grad is None else grad * scale for grad in tensors], trainable_variables)

    def update_step(self, gradient: tf.Tensor, variable: keras.Variable, learning_rate: tf.Tensor) -> None:
        """Updates one variable."""
        index = self._get_variable_index(variable)
        step = tf.convert_to_tensor(self.iterations.value)
        moments = Moments(tf.convert_to_tensor(self.first[index]), tf.convert_to_tensor(self.second[index]))
        weight, moments = update(
            self.rule,
            tf.convert_to_tensor(variable),
            tf.convert_to_tensor(gradient),
            moments,
            scheduled_rate(self.rule, step, self.total_steps),
            step,
            self.decayed[index],
        )
        variable.assign(weight)
        self.first[index].assign(moments.first)
        self.second[index].assign(moments.second)

    def get_config(self) -> dict[str, Any]:
        rule = dataclasses.asdict(self.rule)
        renamed = {"optimizer": rule.pop("name"), "peak_learning_rate": rule.pop("learning_rate")}
        for key in ("warmup_proportion", "decay_proportion", "layer_decay", "head_rate"):  # of whole trainings
            rule.pop(key)
        return super().get_config() | {"total_steps": self.total_steps} | renamed | rule
