"""What stands on a model card and on the page about an evaluation: from which weights, data, settings and programs the numbers come."""

import datetime
import importlib.metadata
import os
import platform
import shlex
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from official_bert.config import Config, build, differences, to_dict
from official_bert.reports.sections import Section

SHOWN = ("seed", "model", "optimizer", "training", "options")  # parts of the configuration; the rest are paths
PACKAGES = ("official-bert", "tensorflow", "keras", "numpy")
MOST_CHARACTERS = 300  # of a setting
Data = Sequence[tuple[str, str, int | None]]  # use, file, rows (None: not counted)


def describe_model(config: Config, checkpoint: str | None, data: Data, weights: str = "") -> list[tuple[str, str]]:
    """Returns task, the `weights` that were measured, the checkpoint that they began with ("": random; None: not known), and the data."""
    begun_with = [] if checkpoint is None else [("begun with", checkpoint or f"random weights (seed {config.seed})")]
    return [("task", config.task), *([("weights", weights)] if weights else []), *begun_with,
            *((f"{use} data", f"{_names(files)}{'' if rows is None else f', {rows:,} rows'}") for use, files, rows in data)]


def list_settings(config: Config, options: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Returns the values that are not the defaults, by key; `options` are the defaults of the task's options."""
    named = {key: value for key, value in options.items() if key in config.options}  # those of the others are the defaults
    default = to_dict(build(Config, {"task": config.task, "options": named}))
    return [(change.key, str(change.after)[:MOST_CHARACTERS]) for change in differences(default, to_dict(config))
            if change.key.partition(".")[0] in SHOWN]


def describe_programs() -> list[tuple[str, str]]:
    """Returns the command, the versions of the packages that compute, and the date (UTC)."""
    versions = [f"{name} {version}" for name in PACKAGES if (version := _version(name))]
    return [("command", shlex.join([os.path.basename(sys.argv[0]), *sys.argv[1:]])),
            ("versions", ", ".join([f"Python {platform.python_version()}", *versions])),
            ("date", datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d"))]


def about_section(config: Config, checkpoint: str | None, data: Data, weights: str) -> Section:
    """What an evaluation measured, with what, and when."""
    about = [*describe_model(config, checkpoint, data, weights), *describe_programs()]
    return Section(name="about", title="What was measured", values=dict(about), header=("", ""), rows=about)


def settings_section(config: Config, options: Mapping[str, Any]) -> Section:
    """The settings that are not the defaults."""
    settings = list_settings(config, options)
    return Section(name="settings", title="Settings", values=dict(settings), header=("key", "value"), rows=settings,
                   note="Those that are not the defaults; config.yaml has all.")


def _names(files: str) -> str:
    """The names of files in a list with commas, without their folders."""
    return ", ".join(os.path.basename(path.rstrip("/")) for path in files.split(","))


def _version(package: str) -> str:
    """The version of a package, "" if it is not installed (a checkout)."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""
