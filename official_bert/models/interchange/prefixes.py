"""Finds the TensorFlow checkpoints in a folder, and the newest complete one.

The files in the folder decide. TensorFlow's `checkpoint` state file may be missing, empty or old after a power failure; it is used
only to choose between checkpoints of several names.
"""

import os
import re
from typing import Any

import tensorflow as tf
from absl import logging

from official_bert.config import load_config
from official_bert.copies import local_copy
from official_bert.files import exists, folder_of, is_file, is_folder, is_remote, list_names, normal, read_json

CONFIG_FILE, BEST_FOLDER, METRIC_FILE, TUNED_FILE = "config.yaml", "best", "metric.json", "tuned.json"  # in the folder of a run
NUMBERED = re.compile(r"(.+)-(\d+)")
PART = re.compile(r"\.(index|data-\d+-of-\d+|meta)$")  # of the files of a checkpoint
UNREADABLE = (tf.errors.OpError, ValueError, IndexError, RuntimeError)


def local_checkpoint(path: str) -> str:
    """A path on this machine with the checkpoint at a path, and with the small files beside it that tell of its model.

    These are the files of its folder but other checkpoints, and for `best/` those of the run.
    """
    if not is_remote(path):
        return path
    folder = normal(path if is_folder(path) else folder_of(path))
    for place in [folder, folder_of(folder)] if os.path.basename(folder) == BEST_FOLDER else [folder]:
        for name in list_names(place):
            if not PART.search(name) and is_file(beside := os.path.join(place, name)):
                local_copy(beside)
    local_copy(PART.sub("", path))
    return local_copy(path)


def answering_folder(path: str) -> str:
    """Returns the `best/` of a run's folder if the run answers with its best checkpoint and has one, any other path unchanged."""
    best = os.path.join(path, BEST_FOLDER)
    if not is_file(os.path.join(best, METRIC_FILE)) or not is_file(config := os.path.join(path, CONFIG_FILE)):
        return path
    return best if load_config(config).training.answer_with == "best" else path


def step_of(prefix: str) -> int:
    """Returns the step in a checkpoint's name, -1 if it has none."""
    found = NUMBERED.fullmatch(os.path.basename(prefix))
    return int(found[2]) if found else -1


def tuned_for(prefix: str) -> dict[str, Any]:
    """Reads the options that an evaluation tuned for a checkpoint: that of its step, or the last one before it; {} if there is none."""
    path = os.path.join(folder_of(prefix), TUNED_FILE)
    found = read_json(path) if exists(path) else {}
    if "steps" not in found:
        return found  # of an earlier version, for all checkpoints of the folder
    steps = [step for step in map(int, found["steps"]) if step <= step_of(prefix)]
    return found["steps"][str(max(steps))] if steps else {}


def prefixes_in(folder: str) -> list[str]:
    """Returns the prefixes of the checkpoints of one name in a folder, such as `ckpt-20` and `ckpt-10`, newest first.

    If there are several names, the name in the state file or else `ckpt` is taken; the result is empty if neither is among them.
    """
    if not os.path.isdir(folder):
        return []
    names: dict[str, list[str]] = {}
    for file in os.listdir(folder):
        if file.endswith(".index"):
            prefix = file.removesuffix(".index")
            found = NUMBERED.fullmatch(prefix)
            names.setdefault(found[1] if found else prefix, []).append(os.path.join(folder, prefix))
    told = _told_by_state_file(folder)
    if not names:
        return [told] if told else []
    found = NUMBERED.fullmatch(os.path.basename(told))
    name = found[1] if found else os.path.basename(told)
    chosen = next((one for one in (name, *(names if len(names) == 1 else ()), "ckpt") if one in names), None)
    return sorted(names[chosen], key=step_of, reverse=True) if chosen else []


def _told_by_state_file(folder: str) -> str:
    """Returns the newest checkpoint according to the state file, "" if it does not exist."""
    try:
        return tf.train.latest_checkpoint(folder) or ""
    except UNREADABLE:
        return ""


def damage(prefix: str) -> str:
    """Reads a whole checkpoint and returns the first error, "" if it is complete."""
    try:
        reader = tf.train.load_checkpoint(prefix)
        for name in reader.get_variable_to_shape_map():
            reader.get_tensor(name)
        return ""
    except UNREADABLE as error:
        return str(error).split("\n")[0][:200]


def newest_whole(folder: str) -> str | None:
    """Returns the prefix of the newest readable checkpoint in a folder; warns about newer ones.

    Returns the newest one if none can be read, so that its reader reports the error; None if there are none.
    """
    found = prefixes_in(folder)
    for prefix in found if len(found) > 1 else ():
        if not (why := damage(prefix)):
            return prefix
        warn_of(prefix, why)
    return found[0] if found else None


def warn_of(prefix: str, why: str) -> None:
    """Warns that a checkpoint is skipped."""
    logging.warning("checkpoint %s cannot be read (%s); trying another", prefix, why)
