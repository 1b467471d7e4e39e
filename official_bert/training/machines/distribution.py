"""Distributed training: `tf.distribute` from --strategy, --tpu_name, --worker_hosts; precision, batches of replicas,
lost workers.
"""

import contextlib
import functools
import json
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Protocol

import keras
import tensorflow as tf

from official_bert.config import STRATEGIES
from official_bert.data.batches.sources import BatchSource, ExampleSource
from official_bert.dotted_names import by_name
from official_bert.training.machines.cluster import Placement

POLICIES = {"float32": "float32", "bfloat16": "mixed_bfloat16", "float16": "mixed_float16"}


def check_backend() -> None:
    """Raises ValueError if Keras runs on another backend than TensorFlow."""
    if keras.backend.backend() != "tensorflow":
        raise ValueError(
            f"KERAS_BACKEND: expected tensorflow, got {keras.backend.backend()!r}; "
            "the layers run on other backends, these commands do not"
        )


class ManyMachines(Protocol):
    """The functions of `many_machines.py` that the core calls."""

    multi_worker: Callable[[Placement], tf.distribute.Strategy]
    tpu: Callable[[Placement], tf.distribute.Strategy]
    reporting_lost_workers: Callable[[tf.distribute.Strategy, Callable[[], str]], contextlib.AbstractContextManager]
    reporting_bad_rows: Callable[[tf.distribute.Strategy, BatchSource], contextlib.AbstractContextManager]
    on_hosts: Callable[[BatchSource, Sequence[str], int, int], Callable[[int, int], tf.data.Dataset]]


def _many_machines() -> ManyMachines:
    return by_name("official_bert.training.machines.many_machines")


def make_strategy(placement: Placement) -> tf.distribute.Strategy:
    """Returns the strategy of that name; call it before TensorFlow initialises its devices.

    Raises ValueError for an unknown name, too few devices, a cluster without description, or no TPU.
    """
    check_backend()
    if placement.num_cpu_devices:
        _split_cpu(placement.num_cpu_devices)
    if placement.strategy == "one_device":
        return tf.distribute.get_strategy()
    makers: dict[str, Callable[[Placement], tf.distribute.Strategy]] = {
        "mirrored": _mirrored,
        "multi_worker": lambda placement: _many_machines().multi_worker(placement),
        "tpu": lambda placement: _many_machines().tpu(placement),
    }
    if placement.strategy not in makers:
        raise ValueError(f"--strategy: expected one of {list(STRATEGIES)}, got {placement.strategy!r}")
    return makers[placement.strategy](placement)


def _split_cpu(count: int) -> None:
    cpu = tf.config.list_physical_devices("CPU")[0]
    if len(tf.config.get_logical_device_configuration(cpu) or ()) == count:
        return  # an earlier run in this process did it
    try:
        tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * count)
    except RuntimeError as error:
        raise ValueError(f"--num_cpu_devices={count}: {error}") from None


def _mirrored(placement: Placement) -> tf.distribute.Strategy:
    gpus = tf.config.list_logical_devices("GPU")
    devices = [device.name for device in gpus or tf.config.list_logical_devices("CPU")]
    if not gpus and not placement.num_cpu_devices:
        raise ValueError("--strategy=mirrored: no GPU found; --num_cpu_devices=2 tries it on logical CPU devices")
    # Reduction on the CPU adds replicas in a fixed order, so that a run gives the same numbers again.
    ops = None if gpus else tf.distribute.ReductionToOneDevice()
    return tf.distribute.MirroredStrategy(devices, cross_device_ops=ops)


def other_hosts(strategy: tf.distribute.TPUStrategy) -> list[str]:
    """Returns TensorFlow's names for the processors of other machines that have the strategy's TPUs; our Python code
    does not run there.
    """
    hosts = {
        tf.DeviceSpec.from_string(name).replace(device_type="CPU", device_index=0)
        for name in strategy.extended.worker_devices
    }
    return sorted(host.to_string() for host in hosts if host.job not in (None, "localhost"))


def is_chief(strategy: tf.distribute.Strategy) -> bool:
    """Returns whether this process writes logs and checkpoints: true for the first worker, or the only one."""
    if not isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy):
        return True
    resolver = strategy.cluster_resolver
    return resolver.task_id == 0 and (resolver.task_type == "chief" or "chief" not in resolver.cluster_spec().jobs)


def answering_scope(placement: Placement) -> contextlib.AbstractContextManager:
    """Returns the scope in which to build a model that answers: on a run's devices, or on those of the one worker that
    answers.
    """
    return contextlib.nullcontext() if placement.strategy == "multi_worker" else make_strategy(placement).scope()


def answering_strategy(model: keras.Model) -> tf.distribute.Strategy:
    """Returns the strategy with which a model answers: that of its variables, but the answering worker of a cluster
    does not wait for others.
    """
    # a plain variable has no such field
    strategy = getattr(model.variables[0].value, "distribute_strategy", tf.distribute.get_strategy())
    return tf.distribute.get_strategy() if isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy) else strategy


def set_precision(name: str, tf32: bool = True) -> None:
    """Sets Keras' policy, and on GPUs whether float32 products are rounded to TF32; variables are always float32."""
    keras.config.set_dtype_policy(POLICIES[name])
    tf.config.experimental.enable_tensor_float_32_execution(tf32)


@contextlib.contextmanager
def own_precision() -> Iterator[None]:
    """Restores the precision of before at its end: that of a run would also be that of later models of the process."""
    policy, tf32 = keras.config.dtype_policy(), tf.config.experimental.tensor_float_32_execution_enabled()
    try:
        yield
    finally:
        keras.config.set_dtype_policy(policy)
        tf.config.experimental.enable_tensor_float_32_execution(tf32)


def reporting_lost_workers(
    strategy: tf.distribute.Strategy, when: Callable[[], str]
) -> contextlib.AbstractContextManager:
    """Raises ValueError if another worker has ended with an error, and OSError with TensorFlow's cause if it is lost.

    The messages name the worker's error and include `when`, for example the step.
    """
    if not isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy):
        return contextlib.nullcontext()
    return _many_machines().reporting_lost_workers(strategy, when)


def reporting_bad_rows(strategy: tf.distribute.Strategy, source: BatchSource) -> contextlib.AbstractContextManager:
    """Tells the other workers of a cluster about a row that cannot be read while steps are computed."""
    if not isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy):
        return contextlib.nullcontext()
    return _many_machines().reporting_bad_rows(strategy, source)


def sum_over_replicas(strategy: tf.distribute.Strategy, value: tf.Variable | tf.Tensor) -> int:
    """Returns the sum of each replica's integer over all workers; all of them must call it."""
    if not isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy):
        return int(value.numpy()) * strategy.num_replicas_in_sync

    def total() -> tf.Tensor:
        # The copy is on this replica's device; a constant of Python has none, and all_reduce needs one.
        return tf.distribute.get_replica_context().all_reduce("SUM", tf.identity(tf.cast(value, tf.int64)))

    return int(strategy.experimental_local_results(tf.function(lambda: strategy.run(total))())[0])


def of_first_worker(strategy: tf.distribute.Strategy, number: int) -> int:
    """Returns the first worker's integer on every worker; all of them must call it."""
    if not isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy):
        return number
    replicas = len(strategy.extended.worker_devices)
    return sum_over_replicas(strategy, tf.constant(number if is_chief(strategy) else 0, tf.int64)) // replicas


def check_same(strategy: tf.distribute.Strategy, what: str, value: Any) -> None:
    """Raises ValueError unless all workers have the same value of JSON types; `what` names it. All workers must call
    it.

    Each worker makes its own updates: with another rate or other data, their weights would silently differ.
    """
    number = zlib.crc32(json.dumps(value, sort_keys=True).encode())
    if sum_over_replicas(strategy, tf.constant(number, tf.int64)) != number * strategy.num_replicas_in_sync:
        raise ValueError(
            f"--strategy=multi_worker: expected the same {what} on every worker, got another one on at least one of "
            f"them"
        )


def check_batch(key: str, batch_size: int, strategy: tf.distribute.Strategy, accumulation_steps: int = 1) -> int:
    """Returns the rows of one replica's micro-batch. Raises ValueError if the global batch `training.<key>` is not
    divisible.
    """
    micro_batches = strategy.num_replicas_in_sync * accumulation_steps
    if batch_size < 1 or batch_size % micro_batches:
        raise ValueError(
            f"config.training.{key}: expected a multiple of {strategy.num_replicas_in_sync} replicas times "
            f"{accumulation_steps} accumulation steps = {micro_batches}, got {batch_size}"
        )
    return batch_size // micro_batches


def distribute(source: BatchSource, strategy: tf.distribute.Strategy, start: int = 0, stop: int = 0) -> tf.data.Dataset:
    """Returns the source's batches from `start` on, distributed: each replica gets its block of rows of every global
    batch.

    TPUs of other machines need to know the end: the batches stop at `stop` (default: the end of the first epoch).
    Raises ValueError for data that only this machine can read.
    """
    on_tpu = isinstance(strategy, tf.distribute.TPUStrategy)
    if on_tpu and isinstance(source, ExampleSource):
        source.fix_lengths()  # a TPU compiles a program for every length
    replicas = strategy.num_replicas_in_sync
    hosts = other_hosts(strategy) if on_tpu else []
    if replicas == 1 and not hosts:
        return source.dataset(start)
    read = (
        _many_machines().on_hosts(source, hosts, start, stop or source.batches_per_epoch)
        if hosts
        else functools.partial(source.dataset, start)
    )

    def worker_batches(context: tf.distribute.InputContext) -> tf.data.Dataset:
        rows = source.batch_size // replicas
        return read(context.num_input_pipelines, context.input_pipeline_id).rebatch(rows, drop_remainder=True)

    return strategy.distribute_datasets_from_function(worker_batches)


def over_batches(run: Any, source: BatchSource, strategy: tf.distribute.Strategy, limit: int = 0) -> Iterator[Any]:
    """Yields the results of `run`, a `tf.function`, for each distributed batch of the source or its first `limit`."""
    dataset = distribute(source, strategy)
    # one graph for all lengths, not one for the first and another for all others
    if strategy.num_replicas_in_sync == 1:
        run.get_concrete_function(dataset.element_spec)
    for _, batch in zip(range(limit or source.batches_per_epoch), dataset):
        yield run(batch)


def gather_replicas(strategy: tf.distribute.Strategy, values: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
    """Returns the rows of all replicas as rows of the global batch, in its order."""
    return {
        name: value if strategy.num_replicas_in_sync == 1 else strategy.gather(value, axis=0)
        for name, value in values.items()
    }


def assign(strategy: tf.distribute.Strategy, variables: Iterable[tf.Variable], values: Iterable) -> None:
    """Assigns values to variables on every device that has copies of them."""
    for variable, value in zip(variables, values):
        strategy.extended.update(variable, lambda copy, new: copy.assign(new), args=(value,), group=False)


def update(
    strategy: tf.distribute.Strategy, function: Callable[..., None], variables: Sequence[tf.Variable], values: tuple
) -> None:
    """Calls `function` on every device with its copies of the variables and its part of the values.

    `extended.update` would pass only the first variable's copy, and the others as a whole.
    """

    def update_copies(first: tf.Variable, *mine: Any) -> None:
        other_copies = [
            next(copy for copy in strategy.experimental_local_results(variable) if copy.device == first.device)
            for variable in variables[1:]
        ]
        function(first, *other_copies, *mine)

    strategy.extended.update(variables[0], update_copies, args=values, group=False)
