"""A model card (Mitchell et al. 2019): what a model is for, from what it was made and how good it is, as Markdown for people."""

import datetime
import importlib.metadata
import math
import os
import platform
import shlex
import sys
from collections.abc import Mapping, Sequence

from official_bert.config import Config, build, differences, to_dict
from official_bert.files import exists, read_text, written_whole
from official_bert.reports.comparison import CONFIDENCE, ComparableAnswers, measure_interval
from official_bert.reports.metric_text import shown

MARK = "<!-- Written by official_bert at the end of a run. Without this line, the file is left as it is. -->"
SHOWN = ("seed", "model", "optimizer", "training", "options")  # parts of the configuration; the rest are paths
PACKAGES = ("official-bert", "tensorflow", "keras", "numpy")
MOST_CHARACTERS = 300  # of a setting


def make_card(title: str, config: Config, checkpoint: str, data: Sequence[tuple[str, str, int | None]], metrics: Mapping[str, float],
              answers: Mapping[str, ComparableAnswers]) -> str:
    """Returns the card of a run.

    `checkpoint` is that which it began with ("": random weights), `data` are use, file and rows (None: not counted), `answers` the sets
    that were evaluated, for the intervals.
    """
    default = to_dict(build(Config, {"task": config.task}))
    settings = [(one.key, one.after) for one in differences(default, to_dict(config)) if one.key.partition(".")[0] in SHOWN]
    intervals = {f"{metric}{name}": bounds for name, one in answers.items() for metric, bounds in measure_interval(one).items()}
    return "\n".join([
        MARK, "", f"# {_cell(title)}", "", *_table(("", ""), [
            ("task", config.task), ("begun with", checkpoint or f"random weights (seed {config.seed})"),
            *((f"{use} data", f"{os.path.basename(file)}{'' if rows is None else f', {rows:,} rows'}") for use, file, rows in data)]),
        "", "## Metrics", "",
        *(_table(("metric", "value", f"{CONFIDENCE:.0%} interval (bootstrap over rows)"),
                 [(name, shown(name, value), _interval(name, intervals.get(name))) for name, value in metrics.items() if name != "step"])
          if metrics else ["Not measured: there were no evaluation data."]),
        "", "## Settings", "", "All values are in `config.yaml`; those that are not the defaults:", "",
        *_table(("key", "value"), [(key, str(value)[:MOST_CHARACTERS]) for key, value in settings]),
        "", "## Made with", "", *_table(("", ""), [
            ("command", shlex.join([os.path.basename(sys.argv[0]), *sys.argv[1:]])),
            ("versions", ", ".join([f"Python {platform.python_version()}", *(f"{name} {version}" for name in PACKAGES
                                                                            if (version := _version(name)))])),
            ("date", datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d"))]), ""])


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


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """A table in Markdown."""
    return [f"| {' | '.join(header)} |", f"|{' --- |' * len(header)}", *(f"| {' | '.join(map(_cell, row))} |" for row in rows)]


def _cell(text: str) -> str:
    """A text of the data in a cell: it cannot end the cell, and holds no HTML."""
    plain = " ".join(text.split()).replace("&", "&amp;").replace("<", "&lt;")
    return "".join(f"\\{sign}" if sign in "\\`*_[]|#" else sign for sign in plain)


def _version(package: str) -> str:
    """The version of a package, "" if it is not installed (a checkout)."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""
