"""The flags of the 2018 scripts: which key of the configuration each sets, which have no meaning here, and what 2018's
run_pretraining.py does without flags.

Importing this defines no flag; a command calls what it needs.
"""

import types
from collections.abc import Iterable, Mapping
from typing import Any

from absl import flags

# The flags of the 2018 scripts that say what to run, and the key that each sets. Scripts differ in a few.
FLAG_KEYS: Mapping[str, str] = types.MappingProxyType(
    {
        "train_batch_size": "training.batch_size",
        "eval_batch_size": "training.eval_batch_size",
        "learning_rate": "optimizer.learning_rate",
        "num_train_steps": "training.steps",
        "num_train_epochs": "training.epochs",
        "num_warmup_steps": "optimizer.warmup_steps",
        "warmup_proportion": "optimizer.warmup_proportion",
        "save_checkpoints_steps": "training.save_every",
        "iterations_per_loop": "training.steps_per_loop",
        "max_eval_steps": "training.eval_steps",
        "vocab_file": "tokenizer.vocab_file",
        "do_lower_case": "tokenizer.do_lower_case",
        "max_seq_length": "options.max_seq_length",
        "max_predictions_per_seq": "options.max_predictions_per_seq",
        "doc_stride": "options.doc_stride",
        "max_query_length": "options.max_query_length",
        "max_answer_length": "options.max_answer_length",
        "n_best_size": "options.n_best_size",
        "null_score_diff_threshold": "options.null_score_diff_threshold",
        "version_2_with_negative": "options.version_2_with_negative",
    }
)
# Those of flags that 2018's scripts lack.
OWN_FLAG_KEYS: Mapping[str, str] = types.MappingProxyType({"hours": "training.hours", "encoding": "options.encoding"})
BOOLS = ("do_lower_case", "version_2_with_negative")
FLOATS = ("learning_rate", "num_train_epochs", "warmup_proportion", "null_score_diff_threshold")
TEXTS = ("vocab_file",)
# Flags of the 2018 scripts that have no meaning here: type, and why.
WITHOUT_MEANING: Mapping[str, tuple[str, str]] = types.MappingProxyType(
    {
        "master": ("string", "--tpu_name finds the TPU"),
        "num_tpu_cores": ("integer", "a TPU says how many cores it has"),
        "use_one_hot_embeddings": ("boolean", "embeddings are gathered on every device"),
        "verbose_logging": ("boolean", "what is left out is counted and shown without it"),
        "predict_batch_size": ("integer", "--eval_batch_size is the size of every batch without training"),
    }
)
NO_MEANING = "2018: has no meaning here: "
# What 2018's run_pretraining.py does if nothing else is said, and the other keys that say the same in another way.
PRE_TRAINING_OF_2018: Mapping[str, Any] = types.MappingProxyType(
    {
        "optimizer.learning_rate": 5e-5,
        "optimizer.warmup_steps": 10000,
        "training.steps": 100000,
        "training.eval_batch_size": 8,
        "training.eval_steps": 100,
    }
)
REPLACED_BY: Mapping[str, tuple[str, ...]] = types.MappingProxyType(
    {"training.steps": ("training.epochs", "phases"), "optimizer.warmup_steps": ("optimizer.warmup_proportion",)}
)


def define_2018(names: Iterable[str]) -> None:
    """Defines flags of 2018's scripts; each sets the configuration key that its help names and has no default."""
    for name in names:
        define = (
            flags.DEFINE_bool
            if name in BOOLS
            else flags.DEFINE_float
            if name in FLOATS
            else flags.DEFINE_string
            if name in TEXTS
            else flags.DEFINE_integer
        )
        define(name, None, f"2018: {FLAG_KEYS[name]}.")


def define_without_meaning(names: Iterable[str]) -> None:
    """Flags of 2018's scripts that are accepted, and that `run_main` says once to have no meaning."""
    for name in names:
        kind, why = WITHOUT_MEANING[name]
        define: Any = {"string": flags.DEFINE_string, "integer": flags.DEFINE_integer, "boolean": flags.DEFINE_bool}[
            kind
        ]
        define(name, None, f"{NO_MEANING}{why}.")


def flags_without_meaning(flag_values: Any) -> list[str]:
    """Returns the flags on the command line that have no meaning here, each with the reason."""
    return [
        f"--{name} ({flag_values[name].help.removeprefix(NO_MEANING).rstrip('.')})"
        for name in sorted(flag_values)
        if flag_values[name].present and (flag_values[name].help or "").startswith(NO_MEANING)
    ]


def defaults_of_2018(overrides: Iterable[str]) -> dict[str, Any]:
    """`PRE_TRAINING_OF_2018` by key of the configuration, without what the overrides (a.b=c) say in another way."""
    said = [override.partition("=")[0] for override in overrides]
    return {key: value for key, value in PRE_TRAINING_OF_2018.items() if not set(REPLACED_BY.get(key, ())) & set(said)}


def flags_by_key(flag_values: Any) -> dict[str, Any]:
    """Returns the values of the flags on the command line that set a key of the configuration, by that key
    (`flag_values`: absl's `FLAGS`).

    Raises ValueError for no time at all.
    """
    present = {
        name: flag_values[name].value
        for name in (*FLAG_KEYS, *OWN_FLAG_KEYS)
        if name in flag_values and flag_values[name].present
    }
    if "hours" in present and not present["hours"] > 0.0:
        raise ValueError(f"--hours: expected a time above 0, got {present['hours']:g}")
    return {(FLAG_KEYS.get(name) or OWN_FLAG_KEYS[name]): value for name, value in present.items()}
