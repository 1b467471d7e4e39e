"""The flags that several commands have: where to run, and those of 2018 that set keys of the configuration.

Nothing is defined by importing this; a command calls what it needs.
"""

from collections.abc import Iterable
from typing import Any

from absl import flags

from official_bert.config import FLAG_KEYS, STRATEGIES

BOOLS = ("do_lower_case", "version_2_with_negative")
FLOATS = ("learning_rate", "num_train_epochs", "warmup_proportion", "null_score_diff_threshold")
TEXTS = ("vocab_file",)


def define_placement() -> None:
    """--strategy and what belongs to it."""
    flags.DEFINE_enum("strategy", "one_device", STRATEGIES, "Where to compute.")
    flags.DEFINE_integer("num_cpu_devices", 0, "With --strategy=mirrored and no GPU: logical CPU devices.")
    flags.DEFINE_string("worker_hosts", "", "With --strategy=multi_worker and no TF_CONFIG: host:port,host:port,...")
    flags.DEFINE_integer("task_index", 0, "The number of this worker among --worker_hosts.")
    flags.DEFINE_string("tpu_name", "", "With --strategy=tpu: the TPU's name; local on a TPU VM.")
    flags.DEFINE_string("tpu_zone", "", "The TPU's zone.")
    flags.DEFINE_string("gcp_project", "", "The TPU's project.")
    flags.DEFINE_bool("use_tpu", False, "2018's name of --strategy=tpu.")


def placement_values(values: Any) -> dict[str, Any]:
    """The arguments of `Placement` in absl's `FLAGS`."""
    names = ("num_cpu_devices", "worker_hosts", "task_index", "tpu_name", "tpu_zone", "gcp_project")
    return {"strategy": "tpu" if values.use_tpu else values.strategy} | {name: values[name].value for name in names}


def define_configuration() -> None:
    """--config, --set and --bert_config_file."""
    flags.DEFINE_string("config", None, "The run's YAML.")
    flags.DEFINE_multi_string("set", [], "Overrides, as in --set optimizer.learning_rate=3e-5.")
    flags.DEFINE_string("bert_config_file", None, "2018: the model's JSON; model.* of the configuration.")


def define_2018(names: Iterable[str]) -> None:
    """Flags of 2018's scripts; each sets the key of the configuration that its help names, and has no default of its own."""
    for name in names:
        define = (flags.DEFINE_bool if name in BOOLS else flags.DEFINE_float if name in FLOATS
                  else flags.DEFINE_string if name in TEXTS else flags.DEFINE_integer)
        define(name, None, f"2018: {FLAG_KEYS[name]}.")
