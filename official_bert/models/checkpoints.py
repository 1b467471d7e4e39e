"""Weights on disk: our own checkpoints, and initial weights from checkpoints of any format."""

import dataclasses
import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

import keras
import tensorflow as tf
from absl import logging

from official_bert import config
from official_bert.dotted_names import by_name
from official_bert.model_config import OF_RELATIVES
from official_bert.models import adaptation
from official_bert.models.adaptation import ADAPTER
from official_bert.models.encoder import GENERATOR, encoder_within, weights_by_name
from official_bert.models.interchange import classes, formats
from official_bert.models.interchange.classes import Classes
from official_bert.models.interchange.formats import find_prefix as checkpoint_at
from official_bert.models.interchange.names import with_prefix
from official_bert.models.interchange.prefixes import local_checkpoint, newest_whole
from official_bert.models.interchange.projects.ours import named_weights
from official_bert.models.interchange.stored_models import StoredModel, require_config
from official_bert.run_folder import WITHOUT_WEIGHTS, RunFolder, not_a_run
from official_bert.storage.temporaries import new_folder, stand_for

__all__ = [
    "Initialization",
    "checkpoint_at",
    "initialize_from",
    "named_weights",
    "trained_weights",
    "weights_checkpoint",
]
# Heads with a row for each class of a task: one of another size is re-initialised.
TASK_HEADS = ("classifier/", "tagger/", "span/")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Initialization:
    """The result of `initialize_from`."""

    origin: str  # format and path
    taken: int  # number of the model's variables that got a weight
    new: tuple[str, ...]  # variables that got none
    unused: tuple[str, ...]  # weights that the model has no variable for
    notes: tuple[str, ...]  # assumptions made when reading the files
    differences: tuple[config.Difference, ...]  # settings that make the model compute differently from the trained one

    def describe(self) -> str:
        """Returns the result in one sentence, with at most six names of new and of unused weights."""
        facts = [f"{self.origin}: {self.taken} of {self.taken + len(self.new)} variables taken"]
        facts += [
            f"{what}: {', '.join(names[:6])}{' ...' if len(names) > 6 else ''}"
            for what, names in (("new", self.new), ("not used", self.unused))
            if names
        ]
        changed = [f"{setting.key} is {setting.before} there and {setting.after} here" for setting in self.differences]
        return "; ".join([*facts, *self.notes, *changed])


def trained_weights(run: RunFolder, init_checkpoint: str = "", best: bool = False) -> str:
    """Returns the path of the weights for evaluation and prediction: a checkpoint of the run, or else
    `init_checkpoint`.

    Raises ValueError if neither exists.
    """
    if run.has_weights(best):
        return str(newest_whole(local_checkpoint(run.answering_folder(best))))
    if not init_checkpoint:
        raise not_a_run(f"--output_dir={run.path}", f"{WITHOUT_WEIGHTS}, and no --init_checkpoint given")
    return init_checkpoint


def weights_checkpoint(model: keras.Model) -> tf.train.Checkpoint:
    """Returns a checkpoint object of the model's weights by name."""
    return tf.train.Checkpoint(weights=named_weights(model))


def initialize_from(
    model: keras.Model, path: str, task: Classes | None = None, layers: Sequence[int] = ()
) -> Initialization:
    """Loads the weights of a checkpoint of any format into a model, with its classes in the order of the `task`.

    A head for other classes is re-initialised, and adapters of the model then add nothing. With `layers`, the model
    gets these layers of the checkpoint, in this order. Raises ValueError if there is no checkpoint, or if it holds a
    model of another size; the error names the first weights that do not fit.
    """
    try:
        stored = formats.read(path)
    except ValueError as error:
        raise ValueError(f"--init_checkpoint={error}") from None
    if layers:
        stored = with_layers(stored, layers)
    variables = {name: variable for name, variable in weights_by_name(model).items() if ADAPTER not in name}
    adaptation.reset(model)
    stored, remarks = classes.in_order_of(_with_parts(stored, model, variables), task or Classes())
    wrong = formats.misfits(stored, variables)
    other_heads = {
        name
        for name, weight in stored.weights.items()
        if name in variables and name.startswith(TASK_HEADS) and weight.shape != tuple(variables[name].shape)
    }
    weights = {name: weight for name, weight in stored.weights.items() if name in variables and name not in other_heads}
    _check_size(model, stored, weights, [misfit for misfit in wrong if misfit.name not in other_heads])
    for name, weight in weights.items():
        variables[name].assign(weight.reshape(variables[name].shape))
    return Initialization(
        origin=stored.origin,
        taken=len(weights),
        new=tuple(sorted(set(variables) - set(weights))),
        unused=(*sorted(set(stored.weights) - set(weights)), *stored.unknown),
        notes=(*stored.notes, *stored.warnings, *remarks),
        differences=_differences(model, stored),
    )


def _with_parts(stored: StoredModel, model: keras.Model, variables: Collection[str]) -> StoredModel:
    """Returns a checkpoint with its weights under the names of a model that has these `variables`: as a tagger's head,
    of a generator, of a decoder.
    """
    if stored.any_linear_head and "tagger/output_bias" in variables:
        stored = formats.as_head(stored, "tagger")
    if any(name.startswith(f"{GENERATOR}/") for name in variables):
        put_together: Callable[[StoredModel, Iterable[str]], StoredModel]
        put_together = by_name("official_bert.models.interchange.members.generators").put_together
        stored = put_together(stored, variables)
    return model.with_decoder(stored) if hasattr(model, "with_decoder") else stored


def merged_copy(path: str, base: str) -> str:
    """Returns the path of a temporary model, deleted at exit, in which the adapters of a PEFT folder are merged with
    their base.

    Without a base, it returns `path`. Raises ValueError if the adapter does not fit.
    """
    if not base:
        return path
    stored = formats.read(path, base=base)
    for warning in stored.warnings:
        logging.warning("%s: %s", path, warning)
    folder = os.path.join(new_folder(), os.path.basename(os.path.normpath(path)))
    formats.write(dataclasses.replace(stored, adapters=None), "ours", folder)
    stand_for(folder, path)
    return folder


def with_layers(stored: StoredModel, layers: Sequence[int]) -> StoredModel:
    """Returns a model with only these layers of a stored one, in this order.

    Raises ValueError for layers that the model lacks, and if its layers share weights.
    """
    model = require_config(stored)
    if wrong := [layer for layer in layers if layer >= model.num_hidden_layers]:
        raise ValueError(
            f"--init_checkpoint={stored.origin}: expected layers from 0 to {model.num_hidden_layers - 1}, got "
            f"{wrong[0]}"
        )
    if model.layer_groups:
        raise ValueError(
            f"--init_checkpoint={stored.origin}: expected a model whose layers have weights of their own, got shared "
            f"ones (model.layer_groups {model.layer_groups})"
        )
    weights = {name: weight for name, weight in stored.weights.items() if not name.startswith("layer_")}
    for number, layer in enumerate(layers):
        weights |= {
            name.replace(f"layer_{layer}/", f"layer_{number}/", 1): weight
            for name, weight in with_prefix(stored.weights, f"layer_{layer}/").items()
        }
    return dataclasses.replace(
        stored,
        weights=weights,
        config=dataclasses.replace(model, num_hidden_layers=len(layers)),
        notes=[*stored.notes, f"of its layers {', '.join(map(str, layers))}"],
    )


def _check_size(model: keras.Model, stored: StoredModel, weights: Mapping, wrong: Sequence[formats.Misfit]) -> None:
    """Raises ValueError if the checkpoint holds a model of another size, or no BERT model."""
    where = f"--init_checkpoint={stored.origin}"
    encoder = encoder_within(model)
    inside = [
        name for name in weights_by_name(encoder) if not name.startswith(("pooler/", "bilstm_")) and ADAPTER not in name
    ]
    if not weights:
        raise ValueError(f"{where}: holds no variable of this model; it has {sorted(stored.weights)[:5]}")
    if wrong and stored.config is None:
        raise ValueError(
            f"{where}: no configuration beside it says its size, and it is not that of the model, which comes from "
            f"--bert_config_file, --config or is BERT-base: {'; '.join(misfit.describe() for misfit in wrong[:3])}"
        )
    missing = [stored.table.theirs(name) or name for name in inside if name not in weights]
    layers = [name for name in stored.weights if name.startswith("layer_") and name not in weights]
    heads, expected_heads = stored.config and stored.config.num_attention_heads, encoder.config.num_attention_heads
    differences = [
        "; ".join(misfit.describe() for misfit in wrong[:3]),
        f"{', '.join(missing[:3])} missing in it" if missing else "",
        f"the model has no {', '.join(layers[:3])}" if layers else "",
        f"num_attention_heads: expected {expected_heads}, got {heads}" if heads not in (None, expected_heads) else "",
    ]
    if difference := next(filter(None, differences), ""):
        raise ValueError(f"{where}: a model of another size: {difference}")


def _differences(model: keras.Model, stored: StoredModel) -> tuple[config.Difference, ...]:
    """The settings that make the encoder compute differently from the trained one."""
    own_config = encoder_within(model).config
    if stored.config is None:
        return ()
    return tuple(
        config.Difference(key, getattr(stored.config, key), getattr(own_config, key))
        for key in ("hidden_act", "layer_norm_epsilon", *OF_RELATIVES)
        if getattr(stored.config, key) != getattr(own_config, key)
    )
