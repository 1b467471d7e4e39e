"""Model cards (Mitchell et al. 2019) as Markdown for people, and what they share with the page about an evaluation.

From which weights, data, settings and programs the numbers come; what a model is for, and how good it is.
"""

import datetime
import importlib.metadata
import math
import operator
import os
import platform
import shlex
import sys
import types
from collections.abc import Mapping, Sequence
from typing import Any

from official_bert.config import Config, build, differences, to_dict
from official_bert.reports.comparable import CONFIDENCE, ComparableAnswers
from official_bert.reports.comparison import measure_interval
from official_bert.reports.metric_text import shown
from official_bert.reports.sections import Section, table_section
from official_bert.storage.files import exists, read_text, written_whole

MARK = "<!-- Written by official_bert at the end of a run. Without this line, the file is not overwritten. -->"
SHOWN = ("seed", "model", "optimizer", "training", "options")  # parts of the configuration; the rest are paths
# Keys that are shown whatever their values: readers look for them, and the commands have different defaults.
ALWAYS = (
    "seed",
    "optimizer.learning_rate",
    "optimizer.warmup_proportion",
    "training.batch_size",
    "training.epochs",
    "training.eval_epochs",
    "training.answer_with",
)
PACKAGES = ("official-bert", "tensorflow", "keras", "numpy")
MOST_CHARACTERS = 300  # of a setting
INTERVALS = (
    "Intervals of accuracy and exact match are those of a share of rows (Clopper-Pearson), others come from a "
    "bootstrap over the rows"
)
SETTINGS = "The most important settings, and those that are not the defaults; `config.yaml` has all"
Data = Sequence[tuple[str, str, int | None]]  # use, file, rows (None: not counted)


def make_card(
    title: str,
    config: Config,
    checkpoint: str,
    data: Data,
    metrics: Mapping[str, float],
    answers: Mapping[str, ComparableAnswers],
    options: Mapping[str, Any] = types.MappingProxyType({}),
    command: str = "",
) -> str:
    """Returns the card of a run.

    `checkpoint` is that which it began with ("": random weights), `data` are use, file and rows (None: not counted),
    `answers` the sets that were evaluated, for the intervals, `options` the defaults of the task's options, and
    `command` as `describe_programs` takes it.
    """
    intervals = {
        f"{metric}{name}": bounds
        for name, evaluated in answers.items()
        for metric, bounds in measure_interval(evaluated).items()
    }
    measured = [
        (name, shown(name, value), _interval(name, intervals.get(name)))
        for name, value in metrics.items()
        if name != "step"
    ]
    parts = [
        MARK,
        f"# {_cell(title)}",
        _table(("", ""), describe_model(config, checkpoint, data)),
        "## Metrics",
        _table(("metric", "value", f"{CONFIDENCE:.0%} interval"), measured)
        if metrics
        else "Not measured: there were no evaluation data.",
        f"{INTERVALS}." if intervals else "",
        "## Settings",
        f"{SETTINGS}:",
        _table(("key", "value"), list_settings(config, options)),
        "## Made with",
        _table(("", ""), describe_programs(command)),
    ]
    return "\n\n".join(filter(None, parts)) + "\n"


def write_card(path: str, card: str) -> bool:
    """Writes a card unless somebody has written a file of their own there; returns whether it was written."""
    if exists(path) and not read_text(path).startswith(MARK):
        return False
    with written_whole(path) as file:
        file.write(card)
    return True


def _interval(name: str, bounds: tuple[float, float] | None) -> str:
    """The bounds of an interval; "-" if there is none."""
    return "–" if bounds is None or math.isnan(bounds[0]) else f"{shown(name, bounds[0])} to {shown(name, bounds[1])}"


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table in Markdown."""
    lines = [f"| {' | '.join(map(_cell, row))} |" for row in rows]
    return "\n".join([f"| {' | '.join(header)} |", f"|{' --- |' * len(header)}", *lines])


def _cell(text: str) -> str:
    """A text of the data in a cell: it cannot end the cell, and holds no HTML."""
    plain = " ".join(text.split()).replace("&", "&amp;").replace("<", "&lt;")
    return "".join(f"\\{sign}" if sign in "\\`*_[]|#" else sign for sign in plain)


def describe_model(config: Config, checkpoint: str | None, data: Data, weights: str = "") -> list[tuple[str, str]]:
    """Returns task, the `weights` that were measured, the checkpoint that they began with ("": random; None: not
    known), and the data.
    """
    begun_with = [] if checkpoint is None else [("begun with", checkpoint or f"random weights (seed {config.seed})")]
    return [
        ("task", config.task),
        *([("weights", weights)] if weights else []),
        *begun_with,
        *((f"{use} data", f"{_names(files)}{'' if rows is None else f', {rows:,} rows'}") for use, files, rows in data),
    ]


def list_settings(config: Config, options: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Returns the values that are not the defaults, by key, after those of `ALWAYS`; `options` are the defaults of the
    task's options.
    """
    # those of the others are the defaults
    named = {key: value for key, value in options.items() if key in config.options}
    default = to_dict(build(Config, {"task": config.task, "options": named}))
    values = {key: operator.attrgetter(key)(config) for key in ALWAYS} | {
        change.key: change.after
        for change in differences(default, to_dict(config))
        if change.key.partition(".")[0] in SHOWN
    }
    return [(key, str(value)[:MOST_CHARACTERS]) for key, value in values.items()]


def describe_programs(command: str = "") -> list[tuple[str, str]]:
    """Returns the command (by default that of this process), the versions of the packages that compute, and the date
    (UTC).
    """
    versions = [f"{name} {version}" for name in PACKAGES if (version := _version(name))]
    # The name of the program is not quoted: `official-bert finetune` has a space.
    return [
        ("command", command or f"{os.path.basename(sys.argv[0])} {shlex.join(sys.argv[1:])}".rstrip()),
        ("versions", ", ".join([f"Python {platform.python_version()}", *versions])),
        ("date", datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d")),
    ]


def about_section(config: Config, checkpoint: str | None, data: Data, weights: str, command: str = "") -> Section:
    """Returns a section: what an evaluation measured, with what, and when."""
    about = [*describe_model(config, checkpoint, data, weights), *describe_programs(command)]
    return table_section(name="about", title="What was measured", values=dict(about), header=("", ""))


def settings_section(config: Config, options: Mapping[str, Any]) -> Section:
    """Returns the section with the settings of `list_settings`."""
    return table_section(
        name="settings",
        title="Settings",
        values=dict(list_settings(config, options)),
        header=("key", "value"),
        note=f"{SETTINGS}.".replace("`", ""),
    )


def _names(files: str) -> str:
    """The names of files in a list with commas, without their folders."""
    return ", ".join(os.path.basename(path.rstrip("/")) for path in files.split(","))


def _version(package: str) -> str:
    """The version of a package, "" if it is not installed (a checkout)."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""
