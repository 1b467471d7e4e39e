"""A model card (Mitchell et al. 2019): what a model is for, from what it was made and how good it is, as Markdown for people."""

import math
import types
from collections.abc import Mapping, Sequence
from typing import Any

from official_bert.config import Config
from official_bert.files import exists, read_text, written_whole
from official_bert.reports.comparison import CONFIDENCE, ComparableAnswers, measure_interval
from official_bert.reports.facts import Data, describe_model, describe_programs, list_settings
from official_bert.reports.metric_text import shown

MARK = "<!-- Written by official_bert at the end of a run. Without this line, the file is left as it is. -->"


def make_card(title: str, config: Config, checkpoint: str, data: Data, metrics: Mapping[str, float],
              answers: Mapping[str, ComparableAnswers], options: Mapping[str, Any] = types.MappingProxyType({})) -> str:
    """Returns the card of a run.

    `checkpoint` is that which it began with ("": random weights), `data` are use, file and rows (None: not counted), `answers` the sets
    that were evaluated, for the intervals, and `options` the defaults of the task's options.
    """
    intervals = {f"{metric}{name}": bounds for name, evaluated in answers.items() for metric, bounds in measure_interval(evaluated).items()}
    return "\n".join([
        MARK, "", f"# {_cell(title)}", "", *_table(("", ""), describe_model(config, checkpoint, data)),
        "", "## Metrics", "",
        *(_table(("metric", "value", f"{CONFIDENCE:.0%} interval (bootstrap over rows)"),
                 [(name, shown(name, value), _interval(name, intervals.get(name))) for name, value in metrics.items() if name != "step"])
          if metrics else ["Not measured: there were no evaluation data."]),
        "", "## Settings", "", "All values are in `config.yaml`; those that are not the defaults:", "",
        *_table(("key", "value"), list_settings(config, options)),
        "", "## Made with", "", *_table(("", ""), describe_programs()), ""])


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
