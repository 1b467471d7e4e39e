"""Tasks by name. A family of tasks is a folder: the task, how its files are read, its features, its metrics, its served model."""

import importlib
import os
import types
from collections.abc import Mapping

import keras

from official_bert.config import Config, load_config
from official_bert.models import checkpoints
from official_bert.training.checkpointing import BEST_FOLDER, CONFIG_FILE, VOCAB_FILE
from official_bert.training.task import TaskBase

# The names that configurations hold, and the modules of their `Task`.
MODULES: Mapping[str, str] = types.MappingProxyType({
    "pretraining": "official_bert.tasks.pretraining.task",
    "classification": "official_bert.tasks.texts.classification",
    "glue": "official_bert.tasks.texts.glue",
    "swag": "official_bert.tasks.texts.swag",
    "squad": "official_bert.tasks.squad.task",
    "ner": "official_bert.tasks.tagging.task"})


def task_class(name: str, where: str = "config.task") -> type[TaskBase]:
    """Returns the `Task` of a name of `MODULES`, or of a module of the user's own, given by its dotted name.

    Raises ValueError for another name, a module that cannot be imported, and one without a task.
    """
    if name in MODULES:
        return importlib.import_module(MODULES[name]).Task
    if "." not in name or not all(part.isidentifier() for part in name.split(".")):
        raise ValueError(f"{where}: expected one of {sorted(MODULES)}, or a module of yours as in my_project.my_task, got {name!r}")
    try:
        module = importlib.import_module(name)
    except ImportError as error:
        raise ValueError(f"{where}: {name} cannot be imported ({error}); is its folder the current one or in PYTHONPATH?") from None
    found = getattr(module, "Task", None)
    if not (isinstance(found, type) and issubclass(found, TaskBase) and hasattr(found, "Options")):
        raise ValueError(f"{where}: {name}: expected a class Task, derived from TaskBase, with its Options, and found none")
    return found


def load_task(config: Config) -> TaskBase:
    """Returns the task that `config.task` names; ValueError if there is none."""
    return task_class(config.task)(config)


def restore_for_inference(path: str) -> tuple[TaskBase, keras.Model]:
    """The task and the model, weights loaded, of a training run's folder or of one checkpoint's prefix in it.

    Raises ValueError where the folder has no configuration or no checkpoint.
    """
    folder = path if os.path.isdir(path) else os.path.dirname(path)
    config_path = os.path.join(folder, CONFIG_FILE)
    if not os.path.exists(config_path) and os.path.basename(os.path.normpath(folder)) == BEST_FOLDER:
        folder = os.path.dirname(os.path.normpath(folder))
        config_path = os.path.join(folder, CONFIG_FILE)
    if not os.path.exists(config_path):
        raise ValueError(f"{path}: expected the output folder of a training run, got none: {CONFIG_FILE} is missing")
    overrides = []
    if os.path.exists(os.path.join(folder, VOCAB_FILE)):
        overrides = [f"tokenizer.vocab_file={os.path.join(folder, VOCAB_FILE)}"]
    prefix = checkpoints.newest_checkpoint(path)
    if prefix is None:
        raise ValueError(f"{path}: no checkpoint found there")
    task = load_task(load_config(config_path, overrides=overrides))
    model = task.build_model()
    checkpoints.weights_checkpoint(model).read(prefix).assert_existing_objects_matched().expect_partial()
    return task, model
