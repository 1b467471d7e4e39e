"""Loads exported models as Python functions, for our commands and tests. Servers need only TensorFlow."""

import functools
import os
from collections.abc import Callable, Mapping
from typing import Any, Literal

import tensorflow as tf

from official_bert.run_folder import RunFolder
from official_bert.runtimes.model_weights import check_saved_model
from official_bert.runtimes.operations import register_operations
from official_bert.runtimes.saved_tasks import assets_of, task_names
from official_bert.serving.served_model import ServedModel
from official_bert.storage.files import exists, list_names, list_versions
from official_bert.storage.stores import locate


def latest_version(folder: str) -> str:
    """Returns the SavedModel of the highest version in `folder` (models/NAME/text), as TF Serving would choose it.

    Raises ValueError if there is none.
    """
    if not (versions := list_versions(folder, ["saved_model.pb"])):
        names = list_names(folder)
        raise ValueError(
            f"{folder}: expected a model that run_export wrote (VERSION/saved_model.pb), got "
            + (f"{names}" if names else "no such folder")
        )
    return os.path.join(folder, versions[max(versions)])


def exported_folder(path: str) -> str | None:
    """Returns the SavedModel that a path refers to: itself, or the newest version in models/NAME or models/NAME/text;
    None if there is none.

    Also returns None for a training run's folder, because the run may have continued after a model was exported there.
    """
    if exists(os.path.join(path, "saved_model.pb")):
        return path
    if RunFolder(path).has_begun:
        return None
    for folder in (os.path.join(path, "text"), path, os.path.join(path, "ids")):
        if list_versions(folder, ["saved_model.pb"]):
            return latest_version(folder)
    return None


class ModelFunction:
    """A model as a function of named inputs. It takes lists or arrays and returns NumPy arrays by name, with strings as
    bytes.

    `inputs` and `outputs` are tensor specs by name, `owner` holds the variables, `assets` is the folder of files that
    describe the model.
    """

    def __init__(
        self,
        signature: Any,
        owner: Any,
        place: str,
        prompted: Mapping[str, Callable[[], Callable]] | None = None,
        assets: str = "",
    ):
        self.signature, self.owner, self.place, self.prompted = signature, owner, place, prompted or {}
        self.assets = assets
        self.inputs: Mapping[str, tf.TensorSpec] = signature.structured_input_signature[1]
        self.outputs: Mapping[str, tf.TensorSpec] = signature.structured_outputs

    @functools.cache  # noqa: B019  of a model, which lives as long as it is used
    def after(self, prompt: str) -> "ModelFunction":
        """Returns the function for texts with a prompt in front, by the prompt's name in `prompted`."""
        return ModelFunction(self.prompted[prompt](), self.owner, self.place)

    def __call__(self, **values: Any) -> dict[str, Any]:
        """Returns the outputs; raises ValueError unless `values` have the names of `inputs`."""
        if missing := sorted(set(self.inputs) ^ set(values)):
            raise ValueError(f"{self.place}: expected the inputs {sorted(self.inputs)}; wrong: {missing}")
        tensors = {name: tf.constant(value, self.inputs[name].dtype) for name, value in values.items()}
        return {name: value.numpy() for name, value in self.signature(**tensors).items()}


def load_exported(path: str, form: Literal["text", "ids"] = "text", task: str = "") -> ModelFunction:
    """Loads the newest version of the model under `path` (models/NAME, models/NAME/text, or one SavedModel).

    `task` chooses one of several tasks. The function's `place` is the SavedModel's folder. Raises ValueError if there
    is no such model or task, or if a weight is not finite.
    """
    versions = path if list_versions(path, ["saved_model.pb"]) else os.path.join(path, form)
    folder = path if exists(os.path.join(path, "saved_model.pb")) else latest_version(versions)
    folder_here = locate(folder).fetch()
    if task not in (tasks := task_names(folder_here) or [""]):
        expected = f"one of {', '.join(tasks)}, its tasks" if tasks[0] else "none, because it has one task"
        raise ValueError(f"--signature={task}: expected {expected}, for {path}")
    definition = register_operations(folder_here)
    saved_model = tf.saved_model.load(folder_here)
    for meta_graph in definition.meta_graphs:
        check_saved_model(folder_here, meta_graph.graph_def, folder)
    default = saved_model.signatures[task or "serving_default"]
    named = {
        name: lambda signature=signature: signature
        for name, signature in saved_model.signatures.items()
        if form == "text"
        and not task
        and signature is not default
        and list(signature.structured_input_signature[1]) == ["text"]
        and signature.structured_outputs.keys() == default.structured_outputs.keys()
    }
    return ModelFunction(default, saved_model, folder, named, assets_of(folder, task))


def function_of(served: ServedModel) -> ModelFunction:
    """Returns the function of the `text` form of a served model that is not exported."""
    graph = tf.function(lambda **tensors: served.answer_text(tensors), autograph=False)
    named = {
        name: functools.partial(
            tf.function(functools.partial(_prompted, served, prompt), autograph=False).get_concrete_function,
            **served.text_inputs,
        )
        for name, prompt in served.prompts.items()
    }
    return ModelFunction(graph.get_concrete_function(**served.text_inputs), served, "this model", named)


def _prompted(served: ServedModel, prompt: str, **tensors: tf.Tensor) -> dict[str, tf.Tensor]:
    return served.answer_prompted(tensors, prompt)
