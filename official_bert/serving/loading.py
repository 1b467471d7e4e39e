"""Loads exported models for commands and tests of ours; a server, or anyone else, needs only TensorFlow for it."""

import os
from collections.abc import Callable, Mapping
from typing import Any, Literal

import tensorflow as tf

from official_bert.files import list_versions


def latest_version(folder: str) -> str:
    """The SavedModel of the highest version in `folder` (models/NAME/text), as TF Serving would choose it.

    Raises ValueError where there is none.
    """
    if not (versions := list_versions(folder, ["saved_model.pb"])):
        names = os.listdir(folder) if os.path.isdir(folder) else []
        raise ValueError(f"{folder}: expected a model that run_export wrote (VERSION/saved_model.pb), got "
                         + (f"{sorted(names)}" if names else "no such folder"))
    return os.path.join(folder, versions[max(versions)])


def load_model(path: str, form: Literal["text", "ids"] = "text") -> Callable[..., Mapping[str, Any]]:
    """The newest version of the model under `path` (models/NAME, or one SavedModel) as a function of named inputs.

    Inputs may be lists or arrays; outputs are NumPy arrays by name, strings as bytes. The function's `inputs` are the
    names and tensor specs that it takes. Raises ValueError where there is no such model.
    """
    if form == "text":
        import tensorflow_text  # noqa: F401  registers the op of the tokenizer
    folder = path if os.path.exists(os.path.join(path, "saved_model.pb")) else latest_version(os.path.join(path, form))
    loaded = tf.saved_model.load(folder)
    signature = loaded.signatures["serving_default"]
    inputs = signature.structured_input_signature[1]

    def answer(**values: Any) -> dict[str, Any]:
        if missing := sorted(set(inputs) ^ set(values)):
            raise ValueError(f"{folder}: expected the inputs {sorted(inputs)}; wrong: {missing}")
        tensors = {name: tf.constant(value, inputs[name].dtype) for name, value in values.items()}
        return {name: value.numpy() for name, value in signature(**tensors).items()}

    answer.inputs = inputs  # type: ignore[attr-defined]
    answer.loaded = loaded  # type: ignore[attr-defined]  # its variables live as long as it does
    return answer
