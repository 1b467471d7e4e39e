"""A run's values: frozen dataclasses, a strict YAML loader, dotted overrides.

Precedence, highest first: `--set a.b=c`, a 2018 flag given on the command line, the YAML, its `base:`.
A task's own values stand under `options:` and are checked by the `Options` dataclass in the task's file.
"""

import dataclasses
import difflib
import importlib.resources
import itertools
import json
import os
import re
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Annotated, Any

import yaml

from official_bert.fields import Constraint, check_fields
from official_bert.limits import MOST_BASES, MOST_YAML
from official_bert.model_config import OF_RELATIVES, ModelConfig
from official_bert.model_config import check_length as check_length
from official_bert.model_config import read_bert_config as read_bert_config
from official_bert.storage.files import (
    folder_of,
    is_file,
    normal,
    read_text,
    require_regular,
    written_whole,
)
from official_bert.training_config import OptimizerConfig, PhaseConfig, TrainingConfig, changeable
from official_bert.typed_values import build, defaults_of, mark_unlisted, read_yaml, read_yaml_value, without_unknown

STRATEGIES = ("one_device", "mirrored", "multi_worker", "tpu")  # where a run computes: training/distribution
# The keys that the weights of a checkpoint decide; others, such as dropout, are for the user to choose.
FIXED_BY_CHECKPOINT = (
    "model.vocab_size",
    "model.hidden_size",
    "model.num_hidden_layers",
    "model.num_attention_heads",
    "model.intermediate_size",
    "model.max_position_embeddings",
    "model.type_vocab_size",
    "model.attention",
    *(f"model.{key}" for key in OF_RELATIVES),
    "tokenizer.do_lower_case",
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class TokenizerConfig:
    """The vocabulary and whether text is lower-cased (and stripped of accents) before it is split."""

    vocab_file: str = changeable("")
    """Vocabulary: a file with one WordPiece a line, or the files of another tokenizer (docs/tokenizers.md)."""
    do_lower_case: bool = True
    """Whether text is lower-cased; the files of tokenizers other than WordPiece decide it themselves."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config:
    """All settings of a run, except its place and its files: those are flags."""

    task: str = "pretraining"
    """Name of a task (docs/finetuning.md), or a dotted module with one of yours."""
    seed: Annotated[int, Constraint(f"a number from 0 to {2**31 - 1}", lambda value: 0 <= value < 2**31)] = 12345
    """Seed of the order of data, of initial weights and of dropout."""
    model: ModelConfig = dataclasses.field(default_factory=ModelConfig)
    """The encoder."""
    tokenizer: TokenizerConfig = dataclasses.field(default_factory=TokenizerConfig)
    """The vocabulary."""
    optimizer: OptimizerConfig = dataclasses.field(default_factory=OptimizerConfig)
    """The optimizer and its schedule."""
    training: TrainingConfig = dataclasses.field(default_factory=TrainingConfig)
    """The training."""
    phases: tuple[PhaseConfig, ...] = ()
    """Phases, one after another under one schedule; empty: one phase of training.steps."""
    options: dict = dataclasses.field(default_factory=dict)
    """The task's own options."""

    def __post_init__(self) -> None:
        check_fields(self, "config.")


# The defaults of 2018's run_classifier.py and run_squad.py.
FINE_TUNING: Mapping[str, Any] = types.MappingProxyType(
    {"optimizer": {"learning_rate": 5e-5, "warmup_proportion": 0.1}, "training": {"epochs": 3.0}}
)
# Of the scripts of these names.
AS_IN_2018: Mapping[str, Any] = types.MappingProxyType(
    {
        "training": {"epoch_rounding": "down", "eval_epochs": 0.0, "answer_with": "last", "report": False},
        "options": {"dev_share": 0.0},
    }
)


def inherited_and_own(path: str, recorded: bool = False) -> tuple[dict, dict]:
    """Returns the values that a YAML, of this package by its name, inherits from its `base:` (paths from the file's own
    folder, or names of this package), and its own.

    Raises ValueError for `base:` in a file that a run has `recorded`: a folder of data names no files outside it.
    """
    return _inherited_and_own(packaged(path), (), itertools.count(1), recorded)


def _inherited_and_own(
    path: str, seen: tuple[str, ...], numbers: Iterator[int], recorded: bool = False
) -> tuple[dict, dict]:
    """Does the same; `seen` are the files that led here, `numbers` count the files that are read."""
    if path in seen:
        raise ValueError(f"{path}: 'base' leads back to this file through {' -> '.join(seen)}")
    if next(numbers) > MOST_BASES:
        raise ValueError(
            f"{(*seen, path)[0]}: base: expected at most {MOST_BASES} files in all, each counted as often as it "
            "is named, got more"
        )
    values = read_yaml(read_text(path, "configuration file", MOST_YAML), path) or {}
    if not isinstance(values, dict):
        raise ValueError(f"{path}: expected a mapping, got {values!r:.80}")
    merged: dict = {}
    bases = [listed] if isinstance(listed := values.pop("base", []), str) else listed
    if not isinstance(bases, list) or not all(isinstance(base, str) for base in bases):
        raise ValueError(f"{path}: base: expected a path, or a list of paths, got {listed!r:.80}")
    if bases and recorded:
        raise ValueError(f"{path}: base: expected none in the folder of a run, got {listed!r:.80}")
    if (changed := values.pop("changed", None)) is not None:
        if not isinstance(changed, list):
            raise ValueError(f"{path}: changed: expected a list of keys, got {changed!r:.80}")
        values = without_unknown(Config, mark_unlisted(values, [*map(str, changed)]))
    for base in bases:
        merged = merge(merged, merge(*_inherited_and_own(_base_path(base, path), (*seen, path), numbers)))
    return merged, values


def _base_path(base: str, path: str) -> str:
    """Returns the path of a `base:` of the file `path`. Raises ValueError, naming that file, if there is none."""
    try:
        base_path = packaged(base, folder_of(path))
        require_regular(base_path, base)
    except ValueError as error:
        raise ValueError(f"{path}: base: {error}") from None
    return base_path


def packaged(path: str, start: str = "") -> str:
    """Returns a path, relative to the folder `start`, if there is a file, else that of this package's `pretrain/small`
    or `configs/pretrain/small.yaml`.

    Raises ValueError, with the nearest names, if there is neither.
    """
    beside = normal(os.path.join(start, path))
    if is_file(beside):
        return beside
    folder = importlib.resources.files("official_bert.configs")
    files = {
        f"{group.name}/{file.name.removesuffix('.yaml')}": file
        for group in folder.iterdir()
        if group.is_dir()
        for file in group.iterdir()
        if file.name.endswith(".yaml")
    }
    name = path.removeprefix("configs/").removesuffix(".yaml")
    if name in files:
        return str(files[name])
    nearest = difflib.get_close_matches(name, files, n=3, cutoff=0.4)
    raise ValueError(
        f"{beside}: no such configuration file, and none of this package"
        + (f"; similar names: {', '.join(nearest)}" if nearest else ", such as pretrain/small")
    )


def merge(below: Mapping, above: Mapping) -> dict:
    """Returns `above` merged over `below`: mappings merge key by key, other values are replaced."""
    merged = dict(below)
    for key, value in above.items():
        both = isinstance(value, Mapping) and isinstance(merged.get(key), Mapping)
        merged[key] = merge(merged[key], value) if both else value
    return merged


# What is text as it stands, such as a delimiter; | and # mean something else in YAML.
_PUNCTUATION = re.compile(r"[^\w\[\]{}\"']*")


def parse_override(text: str) -> dict:
    """Returns `a.b=c` as {"a": {"b": c}}; c is read as YAML, except that 2e-5 is a number (in quotes it is text).

    Raises ValueError, naming the key and the text, for anything else.
    """
    key, equals, value = text.partition("=")
    if not equals or not all(key.split(".")):
        raise ValueError(f"--set {text}: expected key=value with a dotted key, as in optimizer.learning_rate=1e-4")
    parsed = value if _PUNCTUATION.fullmatch(value) else read_yaml_value(value, f"--set {key}")
    if isinstance(parsed, str) and parsed == value.strip():  # without quotes
        try:
            parsed = float(parsed) if any(digit in parsed for digit in "0123456789") else parsed
        except ValueError:
            pass
    return nest({key: parsed})


def nest(dotted: Mapping[str, Any]) -> dict:
    """Returns {"a.b": c} as {"a": {"b": c}}."""
    nested: dict = {}
    for key, value in dotted.items():
        for part in reversed(key.split(".")):
            value = {part: value}
        nested = merge(nested, value)
    return nested


@dataclasses.dataclass(frozen=True)
class CheckpointValues:
    """The values of a checkpoint's model and tokenizer, as parts of a configuration."""

    values: Mapping[str, Any]
    origin: str = "the checkpoint"


@dataclasses.dataclass(frozen=True)
class ConfigSources:
    """What a user gives for a configuration; a later field overrides an earlier one."""

    path: str = ""  # a YAML
    bert_config_file: str = ""  # the model's JSON of 2018
    # 2018's flags on the command line, by dotted key
    flags: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    overrides: tuple[str, ...] = ()  # a.b=c, of --set
    recorded: bool = False  # by a run, the YAML: keys that were removed since are left out

    def read(self) -> tuple[dict, dict]:
        """Returns the values that the YAML inherits through `base:`, and its own, under those of the other sources."""
        inherited, values = inherited_and_own(self.path, self.recorded) if self.path else ({}, {})
        values = without_unknown(Config, values, removed=True) if self.recorded else values
        if self.bert_config_file:
            values = merge(values, {"model": read_bert_config(self.bert_config_file)})
        for part in (nest(self.flags), *map(parse_override, self.overrides)):
            values = merge(values, part)
        return inherited, values

    def keys(self) -> set[str]:
        """Returns the dotted keys of flags and overrides."""
        return {*self.flags, *(text.partition("=")[0] for text in self.overrides)}

    def over(self, *overrides: str) -> "ConfigSources":
        """Returns these sources over other overrides."""
        return dataclasses.replace(self, overrides=(*overrides, *self.overrides))


def load_config(
    path: str | None = None,
    *,
    flags: Mapping[str, Any] | None = None,
    overrides: Iterable[str] = (),
    bert_config_file: str | None = None,
    recorded: bool = False,
    **more: Any,
) -> Config:
    """Returns a configuration from these sources (`ConfigSources`); `more` are arguments of `resolve_config`."""
    sources = ConfigSources(path or "", bert_config_file or "", flags or {}, tuple(overrides), recorded)
    return resolve_config(sources, **more)


def resolve_config(
    sources: ConfigSources,
    *,
    defaults: Mapping[str, Any] | None = None,
    checkpoint: CheckpointValues | None = None,
    report: Callable[[str], None] = lambda _: None,
    count_entries: Callable[[str], int] | None = None,
) -> Config:
    """Returns a run's configuration by precedence: `defaults`, what the YAML inherits, the `checkpoint`, then the
    sources.

    `report` gets a line if the checkpoint overrides inherited values. The sources' own `phases` replace inherited
    `steps` and `epochs`. `count_entries` counts those of a vocabulary file ("": of the vocabulary that counts without
    one; 0: there is none): they are the `model.vocab_size` of a model that says none; rows beyond them are reported.

    Raises ValueError, naming file and key, for unknown keys and wrong types, and if the sources contradict the
    checkpoint.
    """
    checkpoint = checkpoint or CheckpointValues({})
    inherited, values = sources.read()
    if wrong := _contradictions(checkpoint.values, values):
        raise ValueError(
            f"{checkpoint.origin}: "
            + "; ".join(f"config.{change.key} is {change.before!r} there, got {change.after!r}" for change in wrong)
        )
    if yielding := _contradictions(checkpoint.values, inherited):
        report(
            f"{checkpoint.origin}: its values instead of those of base: in {sources.path}: "
            + ", ".join(f"{change.key} {change.before!r} instead of {change.after!r}" for change in yielding)
        )
    below = merge(merge(defaults or {}, inherited), checkpoint.values)
    if values.get("phases"):  # they say how many steps the run has, instead of the base
        below = merge(below, {"training": {"steps": 0, "epochs": 0.0}})
    config = build(Config, merge(below, values), "config")
    rows, entries = config.model.vocab_size, count_entries(config.tokenizer.vocab_file) if count_entries else 0
    if entries and "vocab_size" not in merge(below, values).get("model", {}):
        report(f"model.vocab_size: {entries}, the entries of the vocabulary {config.tokenizer.vocab_file}")
        return dataclasses.replace(config, model=dataclasses.replace(config.model, vocab_size=entries))
    if 0 < entries < rows:
        report(
            f"model.vocab_size: {rows}, of which {rows - entries} rows are spare: the vocabulary has {entries} entries"
        )
    return config


def _contradictions(stored: Mapping, values: Mapping) -> list["Difference"]:
    """Returns the keys that a checkpoint decides and that have other values; None is no value of theirs."""
    return [
        change
        for change in differences(stored, values)
        if change.key in FIXED_BY_CHECKPOINT and None not in (change.before, change.after)
    ]


def to_dict(config: Any) -> dict:
    """Returns a configuration as plain YAML types."""
    return json.loads(json.dumps(dataclasses.asdict(config)))


def plain_defaults(options: type | None) -> dict[str, Any]:
    """Returns the defaults of a task's options as plain YAML types; {} without options."""
    return json.loads(json.dumps(defaults_of(options), default=dataclasses.asdict)) if options else {}


def save_config(config: Config, path: str, options: type | None = None) -> None:
    """Writes the resolved YAML, whole or not at all, with all keys and a list `changed` of those that differ from their
    defaults; of the task's options, these are in the dataclass `options`.

    Another version, or another fork, ignores a key that it does not know if that is not in the list.
    """
    values = to_dict(config)
    defaults = to_dict(Config()) | {"options": plain_defaults(options)}
    changed = [change.key for change in differences(defaults, merge(defaults, values))]
    with written_whole(path) as file:
        yaml.safe_dump(values | {"changed": changed}, file, sort_keys=False, allow_unicode=True)


@dataclasses.dataclass(frozen=True)
class Difference:
    """A dotted key with different values in two configurations."""

    key: str
    before: Any
    after: Any

    def describe(self) -> str:
        """Returns `key: before -> after`."""
        return f"{self.key}: {self.before!r} -> {self.after!r}"


def differences(old: Mapping, new: Mapping, where: str = "") -> list[Difference]:
    """Returns the dotted keys in which two plain configurations differ."""
    changes = []
    for key in dict.fromkeys([*old, *new]):
        name, before, after = f"{where}{key}", old.get(key), new.get(key)
        if isinstance(before, Mapping) and isinstance(after, Mapping):
            changes += differences(before, after, f"{name}.")
        elif before != after:
            changes.append(Difference(name, before, after))
    return changes


def may_change(key: str) -> bool:
    """Tells whether a run may be resumed with another value of a dotted key of `Config`."""
    section, _, name = key.rpartition(".")
    kind = typing.get_type_hints(Config).get(section, Config if not section else None)
    fields = {field.name: field for field in dataclasses.fields(kind)} if dataclasses.is_dataclass(kind) else {}
    return name in fields and fields[name].metadata.get("changeable", False)
