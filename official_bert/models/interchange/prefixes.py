"""TensorFlow checkpoints in a folder: which are there, and which of them is whole.

What lies in the folder counts. TensorFlow's `checkpoint` state file may be missing, empty or old after a loss of power; it only
decides between checkpoints of several names.
"""

import os
import re

import tensorflow as tf
from absl import logging

NUMBERED = re.compile(r"(.+)-(\d+)")
UNREADABLE = (tf.errors.OpError, ValueError, IndexError, RuntimeError)


def step_of(prefix: str) -> int:
    """The step in a checkpoint's name, -1 if it has none."""
    found = NUMBERED.fullmatch(os.path.basename(prefix))
    return int(found[2]) if found else -1


def prefixes_in(folder: str) -> list[str]:
    """The prefixes of the checkpoints of one name in a folder, such as `ckpt-20` and `ckpt-10`, newest first.

    If there are several names, that of the state file, or else `ckpt`; none if that does not decide it.
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
    """The newest checkpoint according to the state file, "" if it names none that exists."""
    try:
        return tf.train.latest_checkpoint(folder) or ""
    except UNREADABLE:
        return ""


def damage(prefix: str) -> str:
    """Reads all of a checkpoint and returns the first error, "" if it is whole."""
    try:
        reader = tf.train.load_checkpoint(prefix)
        for name in reader.get_variable_to_shape_map():
            reader.get_tensor(name)
        return ""
    except UNREADABLE as error:
        return str(error).split("\n")[0][:200]


def newest_whole(folder: str) -> str | None:
    """The prefix of the newest checkpoint in a folder that can be read; warns of newer ones.

    The newest one if none can be read, so that its reader tells the error; None if there are none.
    """
    found = prefixes_in(folder)
    for prefix in found if len(found) > 1 else ():
        if not (why := damage(prefix)):
            return prefix
        warn_of(prefix, why)
    return found[0] if found else None


def warn_of(prefix: str, why: str) -> None:
    """Warns that a checkpoint is passed over."""
    logging.warning("checkpoint %s cannot be read (%s); trying another", prefix, why)
