"""Finds the newest complete TensorFlow checkpoint of any origin in a folder, and copies checkpoints to this machine."""

import os
import re
from collections.abc import Callable

import tensorflow as tf
from absl import logging

from official_bert.dotted_names import by_name
from official_bert.run_folder import RunFolder, prefixes_in
from official_bert.storage.files import (
    folder_of,
    is_file,
    is_folder,
    is_remote,
    list_names,
    normal,
    require_regular_files,
)
from official_bert.storage.stores import locate

PART = re.compile(r"\.(index|data-\d+-of-\d+|meta)$")  # of the files of a checkpoint
OTHER_READING = "nor is it the name of a repository of the Hugging Face hub (owner/name, and no folder owner here)"
UNREADABLE = (tf.errors.OpError, ValueError, IndexError, RuntimeError)


def local_checkpoint(path: str) -> str:
    """Returns a path on this machine with the checkpoint at `path` and the small files that describe its model.

    These are the files of its folder except other checkpoints, and for `best/` those of the run. `path` may also be a
    name on a hub, or an archive with a checkpoint.
    """
    if not is_remote(path):
        if os.path.exists(path) and not path.endswith(".zip"):
            return path
        local_folder: Callable[[str], str] = by_name("official_bert.models.interchange.hub:local_folder")
        return local_folder(path)
    folder = normal(path if is_folder(path) else folder_of(path))
    for place in {folder, RunFolder.around(path).path}:
        for name in list_names(place):
            if not PART.search(name) and is_file(beside := os.path.join(place, name)):
                locate(beside).fetch()
    locate(PART.sub("", path)).fetch()
    return locate(path).fetch()


def damage(prefix: str) -> str:
    """Reads a whole checkpoint and returns the first error; "" if there is none."""
    try:
        reader = tf.train.load_checkpoint(prefix)
        for name in reader.get_variable_to_shape_map():
            reader.get_tensor(name)
        return ""
    except UNREADABLE as error:
        return str(error).split("\n")[0][:200]


def newest_whole(folder: str) -> str | None:
    """Returns the prefix of the newest readable checkpoint in a folder; warns about newer ones that cannot be read.

    If none can be read, returns the newest one, so that its reader reports the error; None if there are none. Raises
    ValueError for a pipe or a device in the folder.
    """
    require_regular_files(os.path.join(folder, ""))
    prefixes = prefixes_in(folder)
    for prefix in prefixes if len(prefixes) > 1 else ():
        if not (why := damage(prefix)):
            return prefix
        warn_of(prefix, why)
    return prefixes[0] if prefixes else None


def warn_of(prefix: str, why: str) -> None:
    """Warns that a checkpoint is skipped."""
    logging.warning("checkpoint %s cannot be read (%s); trying another", prefix, why)
