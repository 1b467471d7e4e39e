"""Strict YAML (only values that JSON has too, no key twice), and dataclasses from parsed YAML or JSON.

Both are strict about keys and types, with errors that name the file or the dotted key.
"""

import contextlib
import dataclasses
import difflib
import functools
import math
import re
import types
import typing
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple, TypeVar

import yaml
from absl import logging

from official_bert.limits import DEEPEST, LONGEST_NUMBER, MOST_ALIASES, MOST_EXPANDED, MOST_VALUES, MOST_YAML

T = TypeVar("T")
PLAIN = ("null", "bool", "int", "float", "str", "seq", "map")  # YAML's names of the kinds that a configuration may hold
# no file of text can hold it; YAML makes it of an escape, also of a pair
HALF_CHARACTER = re.compile("[\ud800-\udfff]")
# what PyYAML raises for `!!int x` and the like
WRONG_SCALAR = (ValueError, LookupError, AttributeError, ArithmeticError)

# Our keys, some with a value, by the names that other libraries have for them.
OTHER_NAMES = types.MappingProxyType(
    {
        "sep": "delimiter",
        "delim": "delimiter",
        "text_classification": "classification",
        "sentiment_analysis": "classification",
        "token_classification": "ner",
        "question_answering": "squad",
        "feature_extraction": "embeddings",
        "lr": "learning_rate",
        "batch": "batch_size",
        "bs": "batch_size",
        "train_batch_size": "batch_size",
        "per_device_train_batch_size": "batch_size",
        "per_device_eval_batch_size": "eval_batch_size",
        "num_epochs": "epochs",
        "n_epochs": "epochs",
        "epoch": "epochs",
        "num_train_epochs": "epochs",
        "max_steps": "steps",
        "max_length": "max_seq_length",
        "max_len": "max_seq_length",
        "seq_length": "max_seq_length",
        "gradient_accumulation_steps": "accumulation_steps",
        "warmup_ratio": "warmup_proportion",
        "early_stopping_patience": "patience",
        "load_best_model_at_end": 'answer_with="best"',
        "restore_best_weights": 'answer_with="best"',
        "metric_for_best_model": "metrics",
        "class_weight": "class_weights",
        "random_state": "seed",
        "training_data": "train",
        "train_data": "train",
        "train_dataset": "train",
        "validation_data": "eval",
        "eval_data": "eval",
        "eval_dataset": "eval",
        "validation": "eval",
        "test": "predict",
        "test_data": "predict",
        "model": "init_checkpoint",
        "checkpoint": "init_checkpoint",
        "pretrained": "init_checkpoint",
        "text": "text_column",
        "text_col": "text_column",
        "label": "label_column",
        "label_col": "label_column",
        "target": "label_column",
    }
)


@functools.cache
def kinds_of(cls: type) -> Mapping[str, Any]:
    """Returns the types of a dataclass's fields by name."""
    return typing.get_type_hints(cls)


def dotted_keys(cls: type, prefix: str = "") -> list[str]:
    """Returns the keys of a dataclass, and those of the dataclasses in it with the names of their sections."""
    keys: list[str] = []
    for name, kind in kinds_of(cls).items():
        if dataclasses.is_dataclass(kind):
            keys += dotted_keys(kind, f"{prefix}{name}.")  # type: ignore[arg-type]
        else:
            keys.append(f"{prefix}{name}")
    return keys


def defaults_of(cls: type) -> dict[str, Any]:
    """Returns the fields of a dataclass that have a default."""
    defaults = {
        field.name: field.default if field.default_factory is dataclasses.MISSING else field.default_factory()
        for field in dataclasses.fields(cls)
    }
    return {name: default for name, default in defaults.items() if default is not dataclasses.MISSING}


def did_you_mean(name: str, keys: Iterable[str]) -> str:
    """Returns a question with the known keys that a wrong one is likely to mean, of any section; "" if none is like it.

    Names of other libraries (`OTHER_NAMES`) mean ours.
    """
    by_last: dict[str, list[str]] = {}
    for key in keys:
        by_last.setdefault(key.rpartition(".")[2].removeprefix("--"), []).append(key)
    last = name.rpartition(".")[2]
    plain = last.replace("-", "_").lower()
    own, equals, value = OTHER_NAMES.get(plain, plain).partition("=")
    near = [own] if own in by_last else difflib.get_close_matches(last, by_last, n=1, cutoff=0.6)
    meant = [f"{key}{equals}{value}" for one in near for key in by_last[one]]
    return f"did you mean {' or '.join(meant)}?" if meant else ""


def and_others(count: int) -> str:
    """Ends a message about the first of things that fare alike: `, as are 3 more`; "" if there are no others."""
    return f", as {'are' if count > 1 else 'is'} {count} more" if count else ""


class Removed(NamedTuple):
    """A key that a dataclass had, in `REMOVED` of its class: the value that switched it off, and what replaces it."""

    off: Any
    instead: str


class Unlisted(str):
    """A key that the `changed` of its file does not list: it has its default, and who does not know it ignores it."""


def mark_unlisted(values: Mapping, changed: Sequence[str], where: str = "") -> dict:
    """Returns the values of a file whose `changed` lists the dotted keys that differ from their defaults."""
    marked = {}
    for key, value in values.items():
        name = f"{where}{key}."
        listed = any(f"{other}.".startswith(name) or name.startswith(f"{other}.") for other in changed)
        value = mark_unlisted(value, changed, name) if isinstance(value, Mapping) else value
        marked[key if listed else Unlisted(key)] = value
    return marked


def without_unknown(cls: type, values: Mapping, where: str = "", removed: bool = False) -> dict:
    """Returns values without the `Unlisted` keys that a dataclass, and those in it, do not know; says once which.

    With `removed`, also without the keys that they had.
    """
    kinds = kinds_of(cls)
    known: dict = {}
    for key, value in values.items():
        parts = (kinds.get(key), *typing.get_args(kinds.get(key)))
        section = next((part for part in parts if dataclasses.is_dataclass(part)), None)
        if key in removed_keys(cls):
            known |= {} if removed else {key: value}
        elif section and isinstance(value, Mapping):
            known[key] = without_unknown(section, value, f"{where}{key}.", removed)  # type: ignore[arg-type]
        elif key in kinds or not isinstance(key, Unlisted):
            known[key] = value
        else:
            _say_once(f"{where}{key}: not known here and ignored; it had its default when the file was written")
    return known


@functools.cache
def _say_once(line: str) -> None:
    logging.warning("%s", line)


def removed_keys(cls: type) -> Mapping[str, Removed]:
    """Returns the keys that a dataclass had."""
    return getattr(cls, "REMOVED", {})


def build(cls: type[T], values: Any, where: str = "config", keys: Sequence[str] = ()) -> T:
    """Makes dataclass `cls` from a parsed YAML mapping.

    Raises ValueError, naming the dotted key, for unknown and missing keys and for values of another type. `keys` are
    those of the whole of which `cls` is a section: an unknown key may belong to another one.
    """
    keys = keys or dotted_keys(cls)
    kinds, values = kinds_of(cls), _known(cls, values, where, keys)  # type: ignore[arg-type]
    if missing := [
        field.name
        for field in dataclasses.fields(cls)  # type: ignore[arg-type]
        if field.name not in values
        and field.default is dataclasses.MISSING
        and field.default_factory is dataclasses.MISSING
    ]:
        raise ValueError(f"{where}: missing keys {missing}")
    typed = {key: _typed(kinds[key], value, f"{where}.{key}", keys) for key, value in values.items()}
    try:
        built = cls(**typed)  # says more about some numbers
    except ValueError as error:
        raise ValueError(f"{where}: {error}" if where.endswith(".json") else f"{error}") from None
    for key, value in typed.items():
        if any(
            isinstance(part, float) and not math.isfinite(part)
            for part in (value if isinstance(value, tuple) else (value,))
        ):
            raise ValueError(f"{where}.{key}: expected a finite number, got {value}")
    return built


def check_keys(cls: type, values: Mapping, where: str = "config", keys: Sequence[str] = ()) -> None:
    """Raises ValueError, as `build` does, for unknown keys of a dataclass and of the dataclasses in it; `values` may be
    some of its own.
    """
    keys = keys or dotted_keys(cls)
    for key, value in _known(cls, values, where, keys).items():
        if dataclasses.is_dataclass(kind := kinds_of(cls)[key]) and isinstance(value, Mapping):
            check_keys(kind, value, f"{where}.{key}", keys)  # type: ignore[arg-type]


def _known(cls: type, values: Any, where: str, keys: Sequence[str]) -> dict:
    """Returns values without removed keys that are off; raises ValueError for unknown keys, and for those not off."""
    if not isinstance(values, Mapping):
        raise ValueError(f"{where}: expected a mapping, got {values!r:.80}")
    kinds, removed = kinds_of(cls), removed_keys(cls)
    for key in removed.keys() & values.keys():
        if values[key] != removed[key].off:
            raise ValueError(f"{where}.{key}: this key was removed; {removed[key].instead}; got {values[key]!r:.80}")
    values = {key: value for key, value in values.items() if key not in removed}
    if unknown := [key[:80] for key in sorted(set(map(str, values)) - set(kinds))[:8]]:
        hints = " ".join(filter(None, (did_you_mean(key, keys) for key in unknown)))
        own = next(
            (f"; those of the task stand there as {name}.{unknown[0]}" for name, kind in kinds.items() if kind is dict),
            "",
        )
        raise ValueError(f"{where}: unknown keys {unknown}; {hints or f'known: {sorted(kinds)}{own}'}")
    return values


def _typed(kind: Any, value: Any, where: str, keys: Sequence[str] = ()) -> Any:
    """Returns `value` as `kind`, strictly: YAML reads 2e-1 as a string and yes as a bool, and both are refused."""
    origin, parts = typing.get_origin(kind), typing.get_args(kind)
    if dataclasses.is_dataclass(kind):
        return build(kind, value, where, keys)  # type: ignore[arg-type]
    if origin in (types.UnionType, typing.Union):
        if sections := [part for part in parts if dataclasses.is_dataclass(part) and isinstance(value, Mapping)]:
            return build(sections[0], value, where, keys)  # type: ignore[arg-type]
        return _as_one_of(parts, value, where)
    if origin is dict:
        if not isinstance(value, Mapping):
            raise ValueError(f"{where}: expected a mapping, got {value!r:.80}")
        # in YAML, 1 and true are no texts
        keys = [str(key).lower() if isinstance(key, bool) else str(key) for key in value]
        return {key: _typed(parts[1], item, f"{where}.{key}") for key, item in zip(keys, value.values())}
    if origin in (list, tuple):
        if not isinstance(value, (list, tuple)):
            raise ValueError(f"{where}: expected a list, got {value!r:.80}")
        return tuple(_typed(parts[0], item, f"{where}[{index}]") for index, item in enumerate(value))
    if origin is Literal:
        if not any(type(value) is type(part) and value == part for part in parts):
            raise ValueError(f"{where}: expected one of {list(parts)}, got {value!r:.80}")
        return value
    return _plain(origin or kind, value, where)


def _plain(kind: type, value: Any, where: str) -> Any:
    """Returns `value` as a number, a text or a truth value; a whole number may stand for a float."""
    if kind is float and type(value) is int and abs(value) < 2**1000:
        value = float(value)
    if type(value) is not kind:
        raise ValueError(f"{where}: expected {kind.__name__}, got {value!r:.80}{_hint(kind, value, where)}")
    if type(value) is int and abs(value) >= 2**31:
        raise ValueError(f"{where}: expected a number below 2^31, got {value}")
    return value


def _as_one_of(kinds: Sequence[Any], value: Any, where: str) -> Any:
    """Returns `value` as the first of several kinds that it fits."""
    for kind in kinds:
        with contextlib.suppress(ValueError):
            return _typed(kind, value, where)
    hint = _hint(str, value, where) if str in kinds else ""
    raise ValueError(f"{where}: expected {' or '.join(map(_described, kinds))}, got {value!r:.80}{hint}")


def _described(kind: Any) -> str:
    """A kind in words."""
    origin, parts = typing.get_origin(kind), typing.get_args(kind)
    if origin is Literal:
        return " or ".join(map(repr, parts))
    if dataclasses.is_dataclass(kind):
        return "mapping"
    return {tuple: "list of {}", dict: "mapping to {}"}.get(origin, "{}").format(
        (parts or (kind,))[-2 if origin is tuple else -1].__name__
    )


def _hint(kind: type, value: Any, where: str) -> str:
    """Returns a hint for a string that should probably be a number, or the other way round."""
    if kind is str and isinstance(value, (bool, int, float)):
        text = f'"{("no", "yes")[value] if isinstance(value, bool) else value}"'  # YAML reads yes, on and true alike
        key, bracket, _ = where.removeprefix("config.").partition("[")
        return f" (quotes make it text, as in '{key}={f'[{text}]' if bracket else text}')"
    if kind is not float or not isinstance(value, str):
        return ""
    try:
        return f" (write {float(value)!r}: YAML wants a dot in a number with an exponent)" if float(value) else ""
    except ValueError:
        return ""


class _Refused(yaml.YAMLError):
    """YAML that a configuration may not hold, and its line."""

    def __init__(self, reason: str, node: yaml.Node):
        super().__init__(reason)
        self.line = node.start_mark.line + 1


class _BoundedLoader(yaml.SafeLoader):
    """Refuses more anchors, aliases and values than people write."""

    aliases = values = 0

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        self.aliases += self.check_event(yaml.AliasEvent)
        self.values += 1
        for kind, count, most in (
            ("aliases (*name)", self.aliases, MOST_ALIASES),
            ("anchors (&name)", len(self.anchors), MOST_ALIASES),
            ("values", self.values, MOST_VALUES),
        ):
            if count > most:
                raise yaml.YAMLError(f"expected at most {most:,} {kind}, got more")
        return super().compose_node(parent, index)

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        if node.tag.endswith((":int", ":float")) and len(node.value) > LONGEST_NUMBER:
            raise ValueError(f"expected numbers of at most {LONGEST_NUMBER:,} characters")  # parts of 60 are quadratic
        return super().construct_object(node, deep)


class _StrictLoader(_BoundedLoader):
    """Refuses duplicate keys in a mapping (plain YAML silently keeps the last) and dates, sets, bytes and others."""

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        kind = node.tag.removeprefix("tag:yaml.org,2002:")
        shown = repr(node.value[:60]) if isinstance(node.value, str) else f"YAML's {kind}"
        if kind not in PLAIN:
            more = (
                ""
                if not isinstance(node.value, str)
                else f" (YAML's {kind}{'; in quotes it is text' if kind == 'timestamp' else ''})"
            )
            raise _Refused(f"expected text, a number, true, false, null, a list or a mapping, got {shown}{more}", node)
        if isinstance(node.value, str) and HALF_CHARACTER.search(node.value):
            raise _Refused(f"{shown} has half a character (a surrogate)", node)
        try:
            return super().construct_object(node, deep)
        except WRONG_SCALAR:
            raise _Refused(f"{shown} is no {kind}", node) from None

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict:
        seen: set[Any] = set()
        for key_node, _ in node.value if isinstance(node, yaml.MappingNode) else ():
            key = self.construct_object(key_node, deep=True)
            if isinstance(key, (list, dict)):  # as in `{{ steps }}`: YAML's own constructor refuses it
                continue
            if key in seen:
                raise _Refused(f"duplicate key {key!r:.80}", key_node)
            seen.add(key)
        return super().construct_mapping(node, deep)


def read_yaml(text: str, path: str, may_merge: bool = False) -> Any:
    """Returns the value in a YAML file's text. Raises ValueError, naming the file, and the line of a refused value, for
    anything else.

    With `may_merge`, mappings may take in others (`<<: *name`); then keys that stand there twice are not seen.
    """
    try:
        return _loaded(text, path, _BoundedLoader if may_merge else _StrictLoader)
    except _Refused as error:
        raise ValueError(f"{path}:{error.line}: {error}") from None
    except (yaml.YAMLError, RecursionError, *WRONG_SCALAR) as error:
        raise ValueError(f"{path}: not valid YAML: {_said(error)}") from None


def read_yaml_value(text: str, where: str) -> Any:
    """Returns the value in a YAML text of the command line. Raises ValueError, naming `where` and the text, for
    anything else.
    """
    try:
        return _loaded(text, where)
    except (_Refused, RecursionError) as error:
        raise ValueError(f"{where}: {text[:60]!r} is not a YAML value: {_said(error)}") from None
    except yaml.YAMLError:
        raise ValueError(f"{where}: {text[:60]!r} is not a YAML value") from None


def _loaded(text: str, name: str, kind: type[_BoundedLoader] = _StrictLoader) -> Any:
    if len(text) > MOST_YAML:
        raise yaml.YAMLError(f"expected at most {MOST_YAML:,} bytes, got {len(text):,}")
    loader = kind(text)
    loader.name = name
    node = loader.get_single_node()
    if node is None:
        return None
    if (size := _expanded_size(node, {}, DEEPEST)) > MOST_EXPANDED:
        raise yaml.YAMLError(
            f"expected at most {MOST_EXPANDED:,} bytes of values, its aliases make {size:,} of {len(text):,}"
        )
    return loader.construct_document(node)


def _expanded_size(node: yaml.Node, sizes: dict[int, int], limit: int) -> int:
    """The characters of a value with its aliases written out; `sizes` are those of nodes that were seen, by identity.

    Raises RecursionError for lists and mappings too deep in each other, or in themselves.
    """
    if not limit:
        raise RecursionError
    if id(node) not in sizes:
        parts = [part for pair in node.value for part in pair] if isinstance(node, yaml.MappingNode) else node.value
        sizes[id(node)] = 1 + (
            len(node.value)
            if isinstance(node, yaml.ScalarNode)
            else sum(_expanded_size(part, sizes, limit - 1) for part in parts)
        )
    return sizes[id(node)]


def _said(error: Exception) -> str:
    """An error's words on one line."""
    return "nested too deeply" if isinstance(error, RecursionError) else " ".join(str(error).split())
