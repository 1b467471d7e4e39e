"""Compares devices with this machine's CPU: outputs, losses and gradients of a task's model, and whole trainings.

An error is the root mean square of a difference, relative to that of the CPU's float32 values. A tensor much smaller
than the other tensors of its kind is compared relative to all of them. For example, the gradient of a key's bias is 0
up to rounding, because softmax ignores that bias.
"""

import dataclasses
import functools
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from official_bert.data.batches.sources import BatchSource
from official_bert.objectives.objective import Batch
from official_bert.tasks.task import TaskBase
from official_bert.training.machines import distribution
from official_bert.training.step import Step, fold_seeds
from official_bert.training.trainer import Trainer

FLOOR = 0.1  # of the root mean square over all tensors of a kind: differences are compared with at least this
ROUNDINGS = 4.0  # an error of rounding, in units of the CPU's in the same precision
PRODUCT = 4096  # side of the matrices whose product says what a device can do
Values = Mapping[str, np.ndarray]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Finding:
    """The result of comparing the tensors of one case."""

    check: str
    case: str
    tensors: int  # compared
    worst: str  # the tensor of the largest error
    error: float  # of `worst`
    tolerance: float  # of `worst`
    # the first tensor beyond the tolerance, in the order in which a step computes them; "" if there is none
    first: str = ""

    @property
    def agrees(self) -> bool:
        """Whether all errors are within the tolerance."""
        return not self.first


def compare(
    check: str, case: str, got: Values, expected: Values, tolerance: float, rounded: Values | None = None
) -> Finding:
    """Compares tensors named `KIND NAME`, in the order of `expected`. Numbers that are not finite count as an infinite
    error.

    `rounded` are the CPU's values in the precision of `got`: errors may be ROUNDINGS times as large as theirs. Raises
    ValueError if the names differ.
    """
    if set(got) != set(expected):
        raise ValueError(
            f"{check}, {case}: expected the same tensors, got others: {sorted(set(got) ^ set(expected))[:3]}"
        )
    floors = {
        kind: FLOOR
        * _root_mean_square(
            np.concatenate([np.ravel(value) for name, value in expected.items() if _kind(name) == kind])
        )
        for kind in {_kind(name) for name in expected}
    }

    def errors_of(values: Values) -> dict[str, float]:
        return {name: _error(values[name], value, floors[_kind(name)]) for name, value in expected.items()}

    errors = errors_of(got)
    allowed = {name: max(tolerance, ROUNDINGS * error) for name, error in errors_of(rounded or expected).items()}
    worst = max(errors, key=lambda name: errors[name] / allowed[name])
    first = next((name for name, error in errors.items() if error > allowed[name]), "")
    return Finding(
        check=check,
        case=case,
        tensors=len(expected),
        worst=worst,
        error=errors[worst],
        tolerance=allowed[worst],
        first=first,
    )


def _kind(name: str) -> str:
    return name.partition(" ")[0]


def _root_mean_square(value: np.ndarray) -> float:
    return float(np.sqrt(np.mean(np.square(value.astype(np.float64))))) if value.size else 0.0


def _error(got: np.ndarray, expected: np.ndarray, floor: float) -> float:
    if got.shape != expected.shape or not np.isfinite(got).all():
        return float("inf")
    return _root_mean_square(got - expected) / max(_root_mean_square(expected), floor, 1e-30)


def draw_weights(task: TaskBase) -> list[np.ndarray]:
    """Returns initial weights for a task's model, the same for every precision."""
    with tf.device("CPU:0"):
        keras.utils.set_random_seed(task.config.seed)
        model = task.build_model()
        task.draw_first_weights(model)
        return [variable.numpy() for variable in model.trainable_variables]


def made_batch(spec: Mapping[str, tf.TensorSpec], words: int, labels: int) -> dict[str, np.ndarray]:
    """Returns a batch of a task's `batch_spec`: rows of different lengths, the last one filler, ids below `words`, tags
    below `labels`.
    """
    rng = np.random.default_rng(0)
    shape = tuple(spec["input_ids"].shape)
    places = np.arange(shape[-1])
    lengths = rng.integers(shape[-1] // 2, shape[-1] + 1, shape[:-1])[..., None]
    real = places < lengths
    instances = np.where(real, 1 + (places >= shape[-1] // 4), 0)
    starts = np.where(instances == 2, shape[-1] // 4, 0)
    values: dict[str, Callable[[tuple[int, ...]], Any]] = {
        "input_ids": lambda size: np.where(real, rng.integers(5, words, size), 0),
        "input_mask": lambda _: real,
        "segment_ids": lambda _: real & (places > shape[-1] // 3),
        "example_weights": lambda size: np.arange(size[0]) < size[0] - 1,
        "masked_lm_positions": lambda size: np.sort(rng.integers(1, shape[-1] // 2, size)),
        "masked_lm_weights": np.ones,
        "masked_lm_ids": lambda size: rng.integers(5, words, size),
        "next_sentence_labels": lambda size: rng.integers(0, 2, size),
        "instance_ids": lambda _: instances,
        "position_ids": lambda _: np.where(real, places - starts, 0),
        "cls_positions": lambda size: np.broadcast_to(np.where(np.arange(size[1]) == 1, shape[-1] // 4, 0), size),
        "instance_weights": lambda size: np.broadcast_to(np.arange(size[1]) < 2, size),
        "sample_keys": lambda size: rng.integers(0, 2**31, size),
        "text_numbers": lambda size: np.arange(np.prod(size)).reshape(size),
        "penalty_share": np.ones,
        "labels": lambda size: np.broadcast_to(np.arange(size[1]) == 0, size),
        "tag_mask": lambda _: real & (places > 0),
        "tags": lambda size: rng.integers(0, labels, size),
        "scores": lambda size: rng.uniform(0, 5, size),
        "start_positions": lambda size: rng.integers(1, 5, size),
        "end_positions": lambda size: rng.integers(5, 9, size),
        "label_ids": lambda size: rng.integers(0, labels if len(size) == 1 else 2, size),
    }
    return {name: np.asarray(values[name](tuple(part.shape)), part.dtype.as_numpy_dtype) for name, part in spec.items()}


def passes(
    task: TaskBase, weights: Sequence[np.ndarray], batch: Values, strategy: tf.distribute.Strategy | None = None
) -> dict[str, Values]:
    """Returns outputs, losses and gradients for a batch, by device and name: `output NAME`, `loss NAME`, `gradient
    WEIGHT`.

    Each replica of the strategy computes the whole batch; without a strategy the CPU computes it.
    """
    with tf.device("CPU:0"):
        model = task.build_model()
    for layer in model._flatten_layers():
        if isinstance(layer, keras.layers.Dropout):
            layer.rate = 0.0  # the numbers that it draws depend on the precision
    step = Step(task.recipe(model), 1)
    names = [variable.path.partition("/")[2] for variable in model.trainable_variables]

    def one_pass(values: list[tf.Tensor], part: Batch) -> dict[str, tf.Tensor]:
        seeds = fold_seeds(model.non_trainable_variables, 0, tf.constant(0), tf.constant(0))
        outputs, _ = model.stateless_call(values, seeds, dict(part), training=False)
        gradients, losses, _ = step.gradients(values, seeds, part, step.objective.weights(part), tf.constant(1.0))
        tensors = {f"output {name}": value for name, value in outputs.items()} | {
            f"loss {name}": value for name, value in losses.items()
        }
        tensors |= {f"gradient {name}": value for name, value in zip(names, gradients)}
        return {name: tf.cast(value, tf.float32) for name, value in tensors.items()}

    arguments = ([tf.constant(value) for value in weights], {name: tf.constant(value) for name, value in batch.items()})
    if strategy is None:
        with tf.device("CPU:0"):
            tensors = tf.function(one_pass, autograph=False)(*arguments)
        return {"CPU": {name: tensors[name].numpy() for name in _in_order(tensors, names)}}
    tensors = tf.function(lambda *replica_arguments: strategy.run(one_pass, args=replica_arguments), autograph=False)(
        *arguments
    )
    local = {name: strategy.experimental_local_results(tensors[name]) for name in _in_order(tensors, names)}
    return {
        _place(strategy, index, replica): {name: values[index].numpy() for name, values in local.items()}
        for index, replica in enumerate(next(iter(local.values())))
    }


def _in_order(results: Mapping[str, object], weights: Sequence[str]) -> list[str]:
    """Returns the names in the order of a step: outputs, losses, and gradients from the last layer to the first."""
    gradients = [f"gradient {name}" for name in reversed(weights)]
    return [*sorted({*results}.difference(gradients), key=lambda name: (_kind(name) != "output", name)), *gradients]


def _place(strategy: tf.distribute.Strategy, index: int, tensor: tf.Tensor) -> str:
    """Returns the name of a worker's replica with its device, such as `replica 1 (GPU:1)`.

    `tensor` is one of its results.
    """
    # A single device may be TensorFlow's choice, of which the strategy knows nothing.
    device = tensor.device if strategy.num_replicas_in_sync == 1 else strategy.extended.worker_devices[index]
    return f"replica {index} ({device.rpartition('device:')[2]})"


def training(
    task: TaskBase, source: BatchSource, strategy: tf.distribute.Strategy, steps: int
) -> dict[str, np.ndarray]:
    """Returns losses and weights after `steps` steps from the same initial weights: `loss of every step` and `weight
    NAME`.
    """
    keras.utils.set_random_seed(task.config.seed)
    with strategy.scope():
        model = task.build_model()
        task.draw_first_weights(model)
    trainer = Trainer(task.recipe(model), strategy, steps)
    rows = trainer.run_steps(iter(distribution.distribute(source, strategy)), tf.constant(steps)).numpy()
    return {"loss of every step": rows[:, 0]} | {
        f"weight {variable.path.partition('/')[2]}": variable.numpy() for variable in model.trainable_variables
    }


def in_rates(trained: Values, rate: float) -> dict[str, np.ndarray]:
    """Returns weights divided by the learning rate: Adam changes each weight by about this rate per step, whatever the
    size of its gradient.
    """
    return {name: value if _kind(name) == "loss" else value / rate for name, value in trained.items()}


def step_rate(task: TaskBase, batch: Values, strategy: tf.distribute.Strategy, seconds: float) -> dict[str, float]:
    """Returns sequences and operations per second of training, measured for about `seconds`.

    Each replica gets `batch`.
    """
    with strategy.scope():
        model = task.build_model()
        trainer = Trainer(task.recipe(model), strategy, 10**6)
    dataset = tf.data.Dataset.from_tensors({name: tf.constant(value) for name, value in batch.items()}).repeat()
    replicas = strategy.num_replicas_in_sync
    worker_batches = tf.autograph.experimental.do_not_convert(lambda _: dataset)
    iterator = iter(dataset if replicas == 1 else strategy.distribute_datasets_from_function(worker_batches))
    trainer.run_steps(iterator, tf.constant(1))
    began = time.perf_counter()
    trainer.run_steps(iterator, tf.constant(1)).numpy()
    count = max(2, int(seconds / (time.perf_counter() - began)))
    began = time.perf_counter()
    rows = trainer.run_steps(iterator, tf.constant(count)).numpy()
    elapsed = time.perf_counter() - began
    return {
        "sequences": count * replicas * len(batch["example_weights"]) / elapsed,
        "operations": float(rows[:, trainer.step.names.index("flops")].sum()) / elapsed,
    }


def product_rate(strategy: tf.distribute.Strategy, precision: str) -> float:
    """Returns the operations per second of a large matrix product on the strategy's first device."""
    first = tf.cast(tf.random.normal([PRODUCT, PRODUCT]), precision)

    @functools.partial(tf.function, autograph=False)
    def product() -> tf.Tensor:
        return strategy.run(
            lambda value: tf.reduce_sum(tf.cast(tf.matmul(value, value)[:1], tf.float32)), args=(first,)
        )

    strategy.experimental_local_results(product())[0].numpy()
    seconds = []
    for _ in range(5):
        began = time.perf_counter()
        results = strategy.experimental_local_results(product())
        for result in results:
            result.numpy()
        seconds.append((time.perf_counter() - began) / len(results))
    return 2.0 * PRODUCT**3 / min(seconds)
