"""Reads the results of the runs that `tools/run_ablations.py` has made."""

import json
import pathlib
from typing import Any

from official_bert.run_folder import CHECKPOINT, LOG_FILE, SEARCH_FILE
from official_bert.storage.files import read_json, read_lines, read_log


def read_rows(path: str) -> list[dict[str, Any]]:
    """Returns the finished rows in a file of results. Raises ValueError that names the line if it is no result."""
    rows = []
    for number, line in enumerate(read_lines(path), 1):
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            row = None
        if not (isinstance(row, dict) and {"scale", "row"} <= row.keys()):
            raise ValueError(f"{path}:{number}: expected a row of results in JSON, got {line[:60]!r}")
        rows.append(row)
    return rows


def curve_of(run: pathlib.Path) -> dict[str, Any]:
    """Returns the held-out masked-LM losses of a pre-training from its log, [[step, loss], ...], and its last
    evaluation.

    Raises ValueError if the log has no evaluation.
    """
    evaluated = [row for row in read_log(str(run / LOG_FILE)) if {"eval/mlm_loss", "eval/next_token_loss"} & set(row)]
    if not evaluated:
        raise ValueError(f"{run / LOG_FILE}: holds no evaluation")
    name = "eval/mlm_loss" if "eval/mlm_loss" in evaluated[-1] else "eval/next_token_loss"
    curve = {row["step"]: round(row[name], 5) for row in evaluated}  # a step may be logged twice, after a kill
    return {
        "curve": sorted(map(list, curve.items())),
        "own": {
            key.removeprefix("eval/"): round(value, 5)
            for key, value in evaluated[-1].items()
            if key.startswith("eval/")
        },
    }


def values_of(run: pathlib.Path, metric: str) -> list[float]:
    """Returns a metric of a search for each seed."""
    runs = read_json(str(run / SEARCH_FILE))["runs"]
    return [
        round(one["metrics"][metric], 5) for _, one in sorted(runs.items(), key=lambda item: item[1]["config"]["seed"])
    ]


def best_of(search: pathlib.Path) -> pathlib.Path:
    """Returns the folder of the best run of a search."""
    return search / read_json(str(search / SEARCH_FILE))["best"]


def remove_weights(search: pathlib.Path) -> None:
    """Removes the checkpoints of a search's runs except those of the best one, which may become a teacher."""
    best = best_of(search)
    for path in search.glob(f"**/{CHECKPOINT}-*"):
        if not path.is_relative_to(best):
            path.unlink()
