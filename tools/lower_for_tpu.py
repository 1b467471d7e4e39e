"""Lowers the train step and the evaluation step of a task to TPU HLO, on a machine without a TPU.

    make venv-tpu && .venv-tpu/bin/python tools/lower_for_tpu.py --config=configs/pretrain/tiny.yaml
    .venv-tpu/bin/python tools/lower_for_tpu.py --config=configs/pretrain/tiny.yaml --replicas=32

The step is that of `--strategy=tpu`: forward, backward, accumulation, clipping, update, with static shapes. With
several replicas it is the step of each, with all-reduces for the sums over all of them. The command fails for an op
that TPUs lack. It prints the size of the HLO and the number of each operation. No TPU has run the step.
"""

from official_bert.command_line import run_main

import collections
import re
from collections.abc import Callable, Sequence
from typing import Any

from absl import flags

from official_bert.config import TrainingConfig, load_config
from official_bert.storage.files import written_beside, written_whole

MOST_LISTED = 12  # operations, the most frequent first
FLAGS = flags.FLAGS
flags.DEFINE_string("config", None, "The run's YAML.", required=True)
flags.DEFINE_multi_string("set", [], "Overrides, as in run_pretraining.")
flags.DEFINE_string("platform", "TPU", "TPU, or CPU for this machine.")
flags.DEFINE_integer(
    "replicas",
    1,
    "Cores of the slice, on all of its hosts; each gets its share of training.batch_size.",
    lower_bound=1,
)
flags.DEFINE_string("hlo_file", "", "Where to write the HLO of the train step, as text without large constants.")
flags.DEFINE_string("proto_file", "", "Where to write the complete HLO, as a HloModuleProto.")


def lower(function: Callable, arguments: list, platform: str, proto_file: str = "") -> str:
    """Returns the HLO of a function of (nested) tensors, and writes the complete HLO if a file is named.

    Raises ValueError with the compiler's reason if it cannot be lowered.
    """
    import tensorflow as tf

    flat = tf.nest.flatten(arguments)
    compiled = tf.function(lambda *values: function(*tf.nest.pack_sequence_as(arguments, values)), jit_compile=True)
    try:
        hlo_of = compiled.experimental_get_compiler_ir(*flat)
        if proto_file:
            with written_beside(proto_file) as path, open(path, "wb") as file:
                file.write(hlo_of(stage="hlo_serialized", platform_name=platform))
        return hlo_of(stage="hlo", platform_name=platform)
    except (ValueError, TypeError, tf.errors.OpError) as error:
        raise ValueError(f"cannot be lowered for {platform}: {' '.join(str(error).split())[:600]}") from None


def all_reduce_over(replicas: int) -> Callable[[Sequence[Any]], list[Any]]:
    """Returns a function that sums tensors over the replicas with the operation that `TPUStrategy` uses for
    `all_reduce`.
    """
    import tensorflow as tf

    group = [list(range(replicas))]
    return lambda tensors: [tf.raw_ops.CrossReplicaSum(input=tensor, group_assignment=group) for tensor in tensors]


def report(name: str, hlo: str) -> None:
    """Prints the size and the counts of operations. Raises ValueError for a shape that is not static."""
    if re.search(r"\[[^\]]*(<=|\?)", hlo):
        raise ValueError(f"{name}: the HLO has a shape that is not static")
    counts = collections.Counter(re.findall(r"^\s+(?:ROOT )?%?\S+ = \S+ ([\w-]+)\(", hlo, re.MULTILINE))
    listed = ", ".join(f"{count} {operation}" for operation, count in counts.most_common(MOST_LISTED))
    print(f"{name}: {len(hlo):,} bytes of HLO, {sum(counts.values()):,} operations: {listed}")


def lower_train_step(step: Any, task: Any, batch: Any, replicas: int, platform: str, proto_file: str = "") -> str:
    """Returns the HLO of a task's train step for the batch of a replica, and writes the complete HLO if a file is
    named.

    Its results are the new weights, moments and loss scale, in the order of the arguments that they replace, and the
    metrics.
    """
    import keras
    import tensorflow as tf

    from official_bert.training.step import State

    all_reduce = all_reduce_over(replicas) if replicas > 1 else list
    teacher = step.objective.targets.teacher.model.variables if step.recipe.training.teacher else []
    scalars = [tf.TensorSpec((), tf.as_dtype(tf.float32)), tf.TensorSpec((), tf.int32)]
    integers = [tf.TensorSpec((), tf.int64), tf.TensorSpec((), tf.int32)]

    def train(
        weights: "list[tf.Tensor]",
        first: "list[tf.Tensor]",
        second: "list[tf.Tensor]",
        scalars: "list[tf.Tensor]",
        batch: "dict[str, tf.Tensor]",
        integers: "list[tf.Tensor]",
        of_teacher: "list[tf.Tensor]",
    ) -> "list[tf.Tensor]":
        with keras.StatelessScope(list(zip(teacher, of_teacher))):
            state, row = step.train(State(weights, first, second, *scalars), batch, *integers, all_reduce)
        return tf.nest.flatten([state.weights, state.first, state.second, state.scale, state.finite_steps, row])

    weights = specs_of(step.model.trainable_variables)
    return lower(train, [weights, weights, weights, scalars, batch, integers, specs_of(teacher)], platform, proto_file)


def lower_evaluation_step(step: Any, batch: Any, platform: str) -> str:
    """Returns the HLO of an evaluation step, for the batch of a replica."""
    import tensorflow as tf

    return lower(
        lambda *given: tf.nest.flatten(step.evaluate(*given)),
        [specs_of(step.model.trainable_variables), batch],
        platform,
    )


def rows_of_replica(training: TrainingConfig, replicas: int) -> int:
    """Returns the rows of a batch for each replica. Raises ValueError if the batch cannot be divided."""
    if training.batch_size % (shares := replicas * training.accumulation_steps):
        raise ValueError(
            f"config.training.batch_size: expected a multiple of {replicas} replicas times "
            f"{training.accumulation_steps} accumulation steps = {shares}, got {training.batch_size}"
        )
    return training.batch_size // replicas


def specs_of(variables: Sequence[Any]) -> list[Any]:
    """Returns the shapes and types of variables."""
    import tensorflow as tf

    return [tf.TensorSpec(variable.shape, variable.dtype) for variable in variables]


def main(_: list[str]) -> None:
    """Builds task, model and step, and lowers both steps."""
    from official_bert.models import parameter_groups
    from official_bert.runs.beginning.phases import total_steps
    from official_bert.runs.beginning.preparation import distilled_of
    from official_bert.tasks.loading import load_task
    from official_bert.training.machines import distribution
    from official_bert.training.step import Step

    config, replicas = load_config(FLAGS.config, overrides=FLAGS.set), FLAGS.replicas
    training = config.training
    distribution.set_precision(training.precision)
    task: Any = load_task(config)
    model = task.build_model()
    parameter_groups.freeze(model, training.freeze)
    batch = task.data.batch_spec(rows_of_replica(training, replicas))
    step = Step(task.recipe(model, distilled_of(task)), max(total_steps(config), 1), replicas)
    hlo = lower_train_step(step, task, batch, replicas, FLAGS.platform, FLAGS.proto_file)
    if FLAGS.hlo_file:
        with written_whole(FLAGS.hlo_file) as file:
            file.write(hlo)
    report(f"{config.task} train step", hlo)
    report(f"{config.task} evaluation step", lower_evaluation_step(step, batch, FLAGS.platform))


if __name__ == "__main__":
    run_main(main)
