"""SavedModels of several tasks on one encoder: each task has a signature and a folder of files that describe it."""

import os

from official_bert.storage.files import list_names

FOLDER = os.path.join("assets.extra", "tasks")  # in it a folder for each task, with the files of other models' `assets`


def task_names(folder: str) -> list[str]:
    """Returns the names of a SavedModel's tasks, which are those of their signatures; [] for other models."""
    return list_names(os.path.join(folder, FOLDER))


def assets_of(folder: str, task: str = "") -> str:
    """Returns the folder with the files that describe a SavedModel, or one of its tasks."""
    return os.path.join(folder, FOLDER, task) if task else os.path.join(folder, "assets")
