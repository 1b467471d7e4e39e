"""A model's folder as TF Serving lays it out: a folder for each version, named by its number."""

import os
from collections.abc import Mapping

from official_bert import files

MODEL_FILES = ("saved_model.pb", "saved_model.pbtxt")


def model_versions(base_path: str) -> Mapping[int, str]:
    """Lists the folders in `base_path` that are named by a number and hold a model: {number: name}."""
    return files.list_versions(base_path, MODEL_FILES)


def fingerprint(folder: str) -> tuple | None:
    """Returns (newest change, sizes and times of all files) of a SavedModel's folder; None if it is changing or gone."""
    files = []
    for path, _, names in os.walk(folder):
        for name in names:
            try:
                status = os.stat(os.path.join(path, name))
            except OSError:
                return None
            # The time of the inode too: copying with `cp -p` or rsync makes new files look old.
            changed = max(status.st_mtime, status.st_ctime)
            files.append((os.path.relpath(os.path.join(path, name), folder), status.st_size, changed))
    if not any(name in MODEL_FILES for name, _, _ in files):
        return None
    return max(changed for _, _, changed in files), tuple(sorted(files))


def why_no_versions(base_path: str) -> str:
    """Says what is wrong with a folder without versions, with a hint for the two usual mistakes."""
    if not os.path.isdir(base_path):
        return f"{base_path}: no such folder"
    below = sorted(name for name in os.listdir(base_path) if model_versions(os.path.join(base_path, name)))
    hint = f"; did you mean {os.path.join(base_path, below[-1])}?" if below else ""
    if os.path.exists(os.path.join(base_path, "saved_model.pb")):
        hint = "; it is itself a version: give the folder above it"
    return f"{base_path}: expected folders named by numbers, each with a saved_model.pb{hint}"
