"""Weights on disk: our own checkpoints, and initial weights from whatever format a path holds."""

import os

import keras
import tensorflow as tf

from official_bert.models.encoder import weights_by_name
from official_bert.models.interchange import tf1


def named_weights(model: keras.Model) -> dict[str, tf.Variable]:
    """The model's weights by their path below the model: the same names wherever the model is built."""
    return {name: variable.value for name, variable in weights_by_name(model).items()}


def weights_checkpoint(model: keras.Model, **more) -> tf.train.Checkpoint:
    """A checkpoint of the weights by name, and of whatever else is given."""
    return tf.train.Checkpoint(weights=named_weights(model), **more)


def newest_checkpoint(path: str) -> str | None:
    """The prefix of the newest checkpoint in a folder, or `path` itself where it is a checkpoint's prefix."""
    if os.path.isdir(path):
        return tf.train.latest_checkpoint(path)
    return path if os.path.exists(path + ".index") else None


def initialize_from(model: keras.Model, path: str) -> str:
    """Takes weights, and only weights, from a checkpoint; returns a sentence that says what was found and what is new.

    Raises ValueError where there is no checkpoint, or where a weight has another shape: it names the first that do not fit.
    """
    prefix = newest_checkpoint(path)
    if prefix is None:
        raise ValueError(f"--init_checkpoint={path}: no checkpoint found there")
    reader = tf.train.load_checkpoint(prefix)
    stored = reader.get_variable_to_shape_map()
    ours = {_stored_name(name): variable for name, variable in named_weights(model).items()}
    if any(name in stored for name in ours):
        return _assign(prefix, "checkpoint of ours", reader, stored, ours)
    theirs = {name: variable.value for name, variable in tf1.variables_by_name(model).items()}
    return _assign(prefix, "TF 1 checkpoint", reader, stored, theirs)


def _stored_name(name: str) -> str:
    """How tf.train.Checkpoint spells a weight's name: slashes are escaped."""
    return f"weights/{name.replace('/', '.S')}/.ATTRIBUTES/VARIABLE_VALUE"


def _assign(prefix: str, kind: str, reader, stored: dict, variables: dict[str, tf.Variable]) -> str:
    found = {name: variable for name, variable in variables.items() if name in stored}
    if not found:
        raise ValueError(f"--init_checkpoint={prefix}: holds no variable of this model; it has {sorted(stored)[:5]}")
    wrong = [f"{name}: expected {tuple(variable.shape)}, got {tuple(stored[name])}" for name, variable in found.items()
             if tf.TensorShape(stored[name]).num_elements() != variable.shape.num_elements()]
    if wrong:
        raise ValueError(f"--init_checkpoint={prefix}: a model of another size: {'; '.join(wrong[:3])}")
    for name, variable in found.items():
        variable.assign(reader.get_tensor(name).reshape(variable.shape))
    new = sorted(set(variables) - set(found))
    return (f"{kind} {prefix}: {len(found)} of {len(variables)} variables taken"
            + (f"; new: {', '.join(new[:6])}{' ...' if len(new) > 6 else ''}" if new else ""))
