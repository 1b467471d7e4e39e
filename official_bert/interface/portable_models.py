"""Answers texts with models of other runtimes: TensorFlow prepares the rows of ids and finishes the answers, the runtime computes."""

import dataclasses
import os
import types

from official_bert.config import Config
from official_bert.copies import local_copy
from official_bert.files import exists, folder_of, list_versions
from official_bert.models.encoder import encoder_settings
from official_bert.models.run_folder import RunFolder
from official_bert.runtimes.engines import FILE, load_engine
from official_bert.serving.formats.description import as_model
from official_bert.serving.formats.writing import FORMATS
from official_bert.serving.loading import ModelFunction, function_of
from official_bert.serving.served_model import ServingOptions, make_served_model
from official_bert.tasks.loading import load_task


def portable_folder(path: str) -> str | None:
    """Returns the folder of a model of another runtime that a path means; None if there is none, and for a training run's folder.

    The path is a version's folder, a file in it, models/NAME/onnx, or models/NAME if that has no SavedModel: then the first format of
    `FORMATS` that is there.
    """
    if exists(os.path.join(path, FILE)):
        return path
    if path.endswith((".onnx", ".tflite")) and exists(os.path.join(folder_of(path), FILE)):
        return folder_of(path)
    if RunFolder(path).has_begun:  # it may have gone on since its model was exported
        return None
    for folder in (path, *(os.path.join(path, form) for form in FORMATS)):
        if versions := list_versions(folder, [FILE]):
            return os.path.join(folder, versions[max(versions)])
    return None


def load_portable(folder: str) -> ModelFunction:
    """Loads a model of another runtime as a function of texts.

    Raises ValueError if its runtime is not installed, or if its files cannot be read.
    """
    folder_here = local_copy(folder)
    engine, described = load_engine(folder_here)
    config = portable_config(folder_here)
    task = load_task(config, os.path.join(folder_here, "assets"))
    stand_in = types.SimpleNamespace(encoder=types.SimpleNamespace(settings=encoder_settings(config.model)))
    served = make_served_model(task, stand_in, ServingOptions(**described["options"]))
    served.engine = as_model(engine, described)
    model = function_of(served)
    model.place = folder
    return model


def portable_config(folder: str) -> Config:
    """Returns the configuration that travels with a model on this machine, with the vocabulary beside it."""
    assets = os.path.join(folder, "assets")
    config = RunFolder(assets).recorded_config()
    tokenizer = dataclasses.replace(config.tokenizer, vocab_file=RunFolder(assets).vocab_file)
    return dataclasses.replace(config, tokenizer=tokenizer)
