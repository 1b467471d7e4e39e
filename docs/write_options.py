"""Writes docs/reference/options.md: every key with its default, its meaning and its values, from the fields of the
classes.

    .venv/bin/python docs/write_options.py
"""

import ast
import dataclasses
import inspect
import itertools
import pathlib
import types
import typing
from typing import Any

from official_bert.config import Config, OptimizerConfig, PhaseConfig, TokenizerConfig, TrainingConfig
from official_bert.data.labelled.splits import SplitOptions
from official_bert.data.pretraining.instances import InstanceConfig
from official_bert.data.pretraining.masking import MaskingConfig
from official_bert.data.pretraining.units import TextUnits
from official_bert.data.tabular.tables import TableOptions
from official_bert.fields import constraints_of
from official_bert.generation.word_search import Search
from official_bert.model_config import ModelConfig
from official_bert.serving.served_model import ServingOptions
from official_bert.tasks import loading
from official_bert.tasks.calibration import CalibrationOptions
from official_bert.tasks.squad.decoding import DecodingRules
from official_bert.tasks.texts.base import LabelOptions, TextOptions
from official_bert.tools.mining.rules import MiningRules
from official_bert.training_config import AdaptersConfig, DistillationConfig
from official_bert.typed_values import kinds_of

PAGE = pathlib.Path(__file__).parent / "reference" / "options.md"
HEAD = """# Options

All keys of a configuration, with their defaults, meanings and values. `make options` writes this page from the fields
of the classes; the same fields are checked when a configuration is read.

`--set optimizer.learning_rate=3e-5` sets a key on a command line, `optimizer: {learning_rate: 3e-5}` in the YAML, and
`learning_rate=3e-5` in [`fine_tune`](../python.md). A value that has no effect beside the others is refused. "May
change": the key may have another value when a run is resumed; any other change makes it another run.
"""
CONFIGURATION = {
    "The run": (Config, ""),
    "Model": (ModelConfig, "model."),
    "Tokenizer": (TokenizerConfig, "tokenizer."),
    "Optimizer": (OptimizerConfig, "optimizer."),
    "Training": (TrainingConfig, "training."),
    "Distillation": (DistillationConfig, "training.distillation."),
    "Adapters": (AdaptersConfig, "training.adapters."),
    "Phases": (PhaseConfig, "phases[]."),
}
SHARED = {
    "Parts of a data set": SplitOptions,
    "Tables": TableOptions,
    "Calibration": CalibrationOptions,
    "Texts": TextOptions,
    "Labels": LabelOptions,
    "Decoding of answers": DecodingRules,
}
GROUPS = {"masking": ("Masks", MaskingConfig), "search": ("Search", Search)}
COMMANDS = {
    "Exported models: run_export": (ServingOptions, "--"),
    "Hard negatives: tools/mine_negatives.py": (MiningRules, "--"),
    "Pre-training instances: tools/create_pretraining_data.py": (InstanceConfig, ""),
    "Words and phrases of the text: tools/create_pretraining_data.py": (TextUnits, "--"),
}
KINDS = {int: "whole number", float: "number", bool: "true or false", str: "text"}


def meanings(cls: type) -> dict[str, str]:
    """Returns the docstrings of a class's own fields: the string below each."""
    body = typing.cast(ast.ClassDef, ast.parse(inspect.getsource(cls)).body[0]).body
    return {
        above.target.id: " ".join(below.value.value.split()).removesuffix(".")
        for above, below in itertools.pairwise(body)
        if isinstance(above, ast.AnnAssign)
        and isinstance(above.target, ast.Name)
        and isinstance(below, ast.Expr)
        and isinstance(below.value, ast.Constant)
    }


def kind_in_words(kind: Any) -> str:
    """Returns a field's type in words: the choices of a literal, `list of texts`."""
    origin, parts = typing.get_origin(kind), typing.get_args(kind)
    if origin is typing.Literal:
        return ", ".join(f"`{part}`" if part != "" else "empty" for part in parts)
    if origin in (types.UnionType, typing.Union):
        return " or ".join(kind_in_words(part) for part in parts if part is not type(None))
    if origin is tuple:
        return f"list of {kind_in_words(parts[0])}s"
    return KINDS.get(kind, "mapping")


def values_in_words(cls: type, field: dataclasses.Field) -> str:
    """Returns what a field may be set to, what it needs beside it, and whether it may change when a run is resumed."""
    words, more = [kind_in_words(kinds_of(cls)[field.name])], field.metadata
    if constraint := constraints_of(cls).get(field.name):
        has_noun = constraint.words.startswith(("a ", "text ")) and words != ["whole number"]
        words = [*([] if has_noun else words), constraint.words]
    if "only_with" in more:
        key, values = more["only_with"]
        words.append(f"with `{key}{': ' if values else ''}{' or '.join(values)}`")
    if "readers" in more:
        words.append(f"read by {more['readers']}")
    if more.get("changeable"):
        words.append("may change")
    return "; ".join(words)


def default_in_words(default: Any) -> str:
    """Returns a default as YAML has it."""
    if default is None or default in ("", (), {}):
        return ""
    if isinstance(default, bool):
        return f"`{str(default).lower()}`"
    return f"`{', '.join(default) if isinstance(default, tuple) else default}`"


def table(cls: type, prefix: str) -> str:
    """Returns the table of a class's own fields, without those that hold other classes."""
    lines = ["| key | default | meaning | values |", "|---|---|---|---|"]
    told = meanings(cls)
    for field in dataclasses.fields(cls):
        default = {} if typing.get_origin(kinds_of(cls)[field.name]) is dict else field.default
        if field.name in cls.__annotations__ and default is not dataclasses.MISSING:
            cells = (
                f"`{prefix}{field.name}`",
                default_in_words(default),
                told[field.name],
                values_in_words(cls, field),
            )
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def section(level: int, title: str, cls: type, prefix: str, more: str = "") -> str:
    """Returns a heading, what the class says of itself, and its table."""
    about = " ".join(inspect.getdoc(cls).partition("\n\n")[0].split("\n"))
    return f"{'#' * level} {title}\n\n{about}{more}\n\n{table(cls, prefix)}\n"


def task_section(name: str) -> str:
    """Returns the section of a task, with links to the sections of the options that it shares."""
    options = loading.task_class(name).Options
    titles = {cls: title for title, cls in SHARED.items()} | {
        loading.task_class(other).Options: f"`{other}`" for other in loading.MODULES
    }
    parents = [titles[cls] for cls in options.__mro__[1:] if cls in titles]
    links = [f"[{title}](#{title.strip('`').lower().replace(' ', '-')})" for title in parents]
    links += [f"[{title}](#{title.lower()})" for key, (title, _) in GROUPS.items() if key in kinds_of(options)]
    return section(3, f"`{name}`", options, "options.", f" Also: {', '.join(links)}.")


def page() -> str:
    """Returns the page."""
    parts = [
        HEAD,
        *(section(2, title, cls, prefix) for title, (cls, prefix) in CONFIGURATION.items()),
        "## Options of tasks\n\nA task has the keys of its own section, and those of the sections that it names.\n",
        *(task_section(name) for name in loading.MODULES),
        *(section(3, title, cls, "options.") for title, cls in SHARED.items()),
        *(section(3, title, cls, f"options.{key}.") for key, (title, cls) in GROUPS.items()),
        "## Settings of commands\n\nThese are flags; `--help` shows all flags of a command.\n",
        *(section(3, title, cls, prefix) for title, (cls, prefix) in COMMANDS.items()),
    ]
    return "\n".join(parts)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
