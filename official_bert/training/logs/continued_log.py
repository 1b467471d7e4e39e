"""The log of a run after a kill: it has each step once, with the numbers of an undisturbed run."""

import contextlib
import json
from typing import Any

import numpy as np

from official_bert.run_folder import RunFolder
from official_bert.storage.files import exists, read_text, written_whole


def remove_later_lines(path: str, done: int) -> None:
    """Removes the log lines after step `done`, because those steps will run again."""
    lines = read_text(path).splitlines(keepends=True) if exists(path) else []
    kept = [line for line in lines if not _is_later(line, done)]
    if len(kept) < len(lines):
        with written_whole(path) as file:
            file.writelines(kept)


def _is_later(line: str, done: int) -> bool:
    row: Any = None
    with contextlib.suppress(ValueError, RecursionError):
        row = json.loads(line)
    is_measured = isinstance(row, dict) and any(key.startswith(("train/", "eval/")) for key in row)
    return is_measured and type(row.get("step")) is int and row["step"] > done


def keep(rows: list[np.ndarray], step: int, run: RunFolder) -> None:
    """Saves the metrics [steps, names] since the last log line beside the checkpoint of a step."""
    run.write_unlogged(step, np.concatenate(rows).tolist() if rows else [])


def kept(step: int, width: int, run: RunFolder) -> list[np.ndarray]:
    """Returns the metrics saved beside the checkpoint of a step, or [] unless their rows have `width` numbers."""
    with contextlib.suppress(ValueError, TypeError, OverflowError):
        if (rows := np.array(run.unlogged(step), np.float32)).shape[1:] == (width,):
            return [rows]
    return []
