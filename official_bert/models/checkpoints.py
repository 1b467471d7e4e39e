"""Weights on disk: our own checkpoints, and initial weights from whatever format a path holds."""

from collections.abc import Mapping
from typing import Any

import keras
import tensorflow as tf

from official_bert.config import to_dict
from official_bert.models.encoder import weights_by_name
from official_bert.models.interchange import formats, tf1
from official_bert.models.interchange.formats import find_prefix as newest_checkpoint
from official_bert.models.interchange.ours import named_weights
from official_bert.models.interchange.stored import StoredModel

__all__ = ["initialize_from", "model_values", "named_weights", "newest_checkpoint", "restore_model", "weights_checkpoint"]
# Heads of as many rows as a task has classes: another task's is no mistake, it is made anew.
TASK_HEADS = ("classifier/", "tagger/", "span/")


def weights_checkpoint(model: keras.Model, **more) -> tf.train.Checkpoint:
    """A checkpoint of the weights by name, and of whatever else is given."""
    return tf.train.Checkpoint(weights=named_weights(model), **more)


def restore_model(path: str) -> keras.Model:
    """The model at a path, of whatever format, with its heads; ValueError where anything is missing or left over."""
    return formats.make_model(formats.read(path))


def model_values(path: str) -> dict[str, Any]:
    """The `model:` part of a configuration for the model at a path; empty where its files do not say."""
    config = formats.read(path).config
    return {} if config is None else to_dict(config)


def initialize_from(model: keras.Model, path: str) -> str:
    """Takes weights, and only weights, from a checkpoint of any format; returns a sentence that says what was found, how much of
    it was taken, what is new in the model, and what in the checkpoint the model has no use for.

    Raises ValueError where there is no checkpoint, or where it is one of another size: it names the first weights that do
    not fit.
    """
    try:
        found = formats.read(path)
    except ValueError as error:
        raise ValueError(f"--init_checkpoint={error}") from None
    variables = weights_by_name(model)
    if found.table is tf1.TABLE and "tagger/output_bias" in variables:
        found = formats.as_head(found, "tagger")
    taken = {name: weight for name, weight in found.weights.items() if name in variables}
    wrong = formats.misfits(found, variables)
    for name in [name for name in taken if name.startswith(TASK_HEADS)]:
        if taken[name].shape != tuple(variables[name].shape):
            del taken[name]
            wrong = [text for text in wrong if not text.startswith(f"{found.table.theirs(name) or name}:")]
    _check_size(model, found, taken, wrong)
    for name, weight in taken.items():
        variables[name].assign(weight.reshape(variables[name].shape))
    return _sentence(found, variables, taken) + _differences(model, found)


def _check_size(model: keras.Model, found: StoredModel, taken: Mapping, wrong: list[str]) -> None:
    """ValueError where the checkpoint is that of a model of another size, or of none of BERT's kind."""
    where = f"--init_checkpoint={found.origin}"
    encoder = getattr(model, "encoder", model)
    inside = [name for name in weights_by_name(encoder) if not name.startswith("pooler/")]
    if not taken:
        raise ValueError(f"{where}: holds no variable of this model; it has {sorted(found.weights)[:5]}")
    if wrong:
        raise ValueError(f"{where}: a model of another size: {'; '.join(wrong[:3])}")
    if missing := [found.table.theirs(name) or name for name in inside if name not in taken]:
        raise ValueError(f"{where}: a model of another size: {', '.join(missing[:3])} missing in it")
    layers = [name for name in found.weights if name.startswith("layer_") and name not in taken]
    if layers:
        raise ValueError(f"{where}: a model of another size: the model has no {', '.join(layers[:3])}")
    heads = None if found.config is None else found.config.num_attention_heads
    if heads not in (None, encoder.settings["num_attention_heads"]):
        raise ValueError(f"{where}: a model of another size: num_attention_heads: expected "
                         f"{encoder.settings['num_attention_heads']}, got {heads}")


def _sentence(found: StoredModel, variables: Mapping, taken: Mapping) -> str:
    new = sorted(set(variables) - set(taken))
    unused = [*sorted(set(found.weights) - set(taken)), *found.unknown]
    parts = [f"{found.origin}: {len(taken)} of {len(variables)} variables taken"]
    parts += [f"{what}: {', '.join(names[:6])}{' ...' if len(names) > 6 else ''}"
              for what, names in (("new", new), ("not used", unused)) if names]
    return "; ".join([*parts, *found.notes])


def _differences(model: keras.Model, found: StoredModel) -> str:
    """How the model will compute otherwise than the one that was trained."""
    settings = getattr(model, "encoder", model).settings
    if found.config is None:
        return ""
    return "".join(f"; {key} is {getattr(found.config, key)} there and {settings[key]} here"
                   for key in ("hidden_act", "layer_norm_epsilon") if getattr(found.config, key) != settings[key])
