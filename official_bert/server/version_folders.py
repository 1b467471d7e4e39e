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
    found = []
    for path in files.files_below(folder):
        try:
            found.append((path.removeprefix(folder).strip("/"), *_size_and_change(path)))
        except OSError:
            return None
    if not any(name in MODEL_FILES for name, _, _ in found):
        return None
    return max(changed for _, _, changed in found), tuple(sorted(found))


def _size_and_change(path: str) -> tuple[int, float]:
    """The bytes of a file, and when it changed, in seconds."""
    if files.is_remote(path):
        return files.size_of(path), files.modified(path) / 1e9
    status = os.stat(path)
    # The time of the inode too: copying with `cp -p` or rsync makes new files look old.
    return status.st_size, max(status.st_mtime, status.st_ctime)


def why_no_versions(base_path: str) -> str:
    """Says what is wrong with a folder without versions, with a hint for the two usual mistakes."""
    if not files.is_folder(base_path):
        return f"{base_path}: no such folder"
    below = sorted(name for name in files.list_names(base_path) if model_versions(os.path.join(base_path, name)))
    hint = f"; did you mean {os.path.join(base_path, below[-1])}?" if below else ""
    if files.exists(os.path.join(base_path, "saved_model.pb")):
        hint = "; it is itself a version: give the folder above it"
    return f"{base_path}: expected folders named by numbers, each with a saved_model.pb{hint}"
