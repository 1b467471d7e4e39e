"""Model folders in the layout of TF Serving: a folder for each version, named by its number."""

import os
import re
from collections.abc import Mapping

from official_bert.runtimes.saved_tasks import task_names
from official_bert.storage import files

MODEL_FILES = ("saved_model.pb", "saved_model.pbtxt")
# what an export that is under way, or was killed, writes into (`files.written_folder`)
UNFINISHED = r"\.tmp\.\d+\.[0-9a-f]{8}/"


def model_versions(base_path: str) -> Mapping[int, str]:
    """Returns the versions in `base_path`, the folders that are named by a number and hold a model: {number: name}."""
    return files.list_versions(base_path, MODEL_FILES)


def tasks_of(base_path: str) -> list[str]:
    """Returns the names of the tasks in a model's newest version; [] unless it has several tasks."""
    versions = model_versions(base_path)
    return task_names(os.path.join(base_path, versions[max(versions)])) if versions else []


def fingerprint(folder: str) -> tuple | None:
    """Returns (newest change, names, sizes and times of all files) of a SavedModel's folder; None if a file vanishes
    meanwhile or the folder holds no model.
    """
    entries = []
    for path in files.files_below(folder):
        try:
            changed = max(files.modified(path), _inode_changed(path))
            entries.append((path.removeprefix(folder).strip("/"), files.size_of(path), changed / 1e9))
        except OSError:
            return None
    if not any(name in MODEL_FILES for name, _, _ in entries):
        return None
    return max(changed for _, _, changed in entries), tuple(sorted(entries))


def _inode_changed(path: str) -> int:
    """Returns when a file's inode changed, in nanoseconds.

    `cp -p` and rsync keep the old modification time of a new file.
    """
    return os.stat(path).st_ctime_ns if os.path.exists(path) else 0


def find_models(folder: str) -> Mapping[str, str]:
    """Returns the exported models in or below a folder: the folder of their versions by name, sorted by name.

    The name is that of the export's folder: NAME for NAME/text, NAME_ids for NAME/ids, and NAME itself for another
    layout. Raises ValueError if there is no model, if two have one name, or if a name cannot stand in an address.
    """
    if not files.is_folder(folder):
        raise ValueError(f"--models={folder}: no such folder")
    bases = {
        files.folder_of(files.folder_of(path))
        for path in files.files_below(folder)
        if os.path.basename(path) in MODEL_FILES and not re.search(UNFINISHED, path.removeprefix(folder))
    }
    models: dict[str, str] = {}
    for base in sorted(base for base in bases if model_versions(base)):
        name = _name_of(base)
        if set("/:") & set(name) or not name:
            raise ValueError(
                f"--models={folder}: {base}: expected a folder name without a colon, because it becomes the model's "
                f"name"
            )
        if other := models.get(name):
            raise ValueError(
                f"--models={folder}: expected different names of models, got {name} twice: {other} and {base}; rename "
                "a folder, or name them in a --model_config_file"
            )
        models[name] = base
    if not models:
        raise ValueError(
            f"--models={folder}: expected exported models below it, as run_export writes them "
            "(NAME/text/1/saved_model.pb), got none"
        )
    return dict(sorted(models.items()))


def _name_of(base: str) -> str:
    """Returns the name of the model whose versions a folder holds."""
    path = files.absolute(base)
    form, above = os.path.basename(path), os.path.basename(os.path.dirname(path))
    return {"text": above, "ids": f"{above}_ids"}.get(form, form) if above else form


def why_no_versions(base_path: str) -> str:
    """Returns what is wrong with a folder without versions, with a hint for the two usual mistakes."""
    if not files.is_folder(base_path):
        return f"{base_path}: no such folder"
    below = sorted(name for name in files.list_names(base_path) if model_versions(os.path.join(base_path, name)))
    hint = f"; did you mean {os.path.join(base_path, below[-1])}?" if below else ""
    if files.exists(os.path.join(base_path, "saved_model.pb")):
        hint = "; it is itself a version: give the folder above it"
    return f"{base_path}: expected folders named by numbers, each with a saved_model.pb{hint}"
