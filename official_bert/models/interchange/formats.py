"""Finds the format of a checkpoint, and reads and writes all formats."""

import dataclasses
import os
import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

import keras
import numpy as np
import tensorflow as tf

from official_bert.dotted_names import by_name
from official_bert.long_work.preflight import check_disk
from official_bert.models import adaptation
from official_bert.models.classifier import ChoiceClassifier, Classifier, SpanPredictor, Tagger
from official_bert.models.encoder import (
    ENCODER_PREFIXES,
    GENERATOR,
    INPUTS,
    BertEncoder,
    encoder_settings,
    encoder_within,
    weights_by_name,
)
from official_bert.models.interchange import prefixes, stored_models
from official_bert.models.interchange.names import Tensors, Weights, matrix_shape, shown, with_prefix
from official_bert.models.interchange.projects import ours
from official_bert.models.interchange.stored_models import Head, StoredModel
from official_bert.models.pretrainer import Pretrainer
from official_bert.models.vector_layers import LAYER_PREFIX
from official_bert.run_folder import RunFolder
from official_bert.runtimes.finite import require_finite
from official_bert.storage.files import read_mapping, require_regular_files, written_folder
from official_bert.storage.temporaries import new_folder, stand_for
from official_bert.text import loading
from official_bert.text.subwords import tokenizer_files

if TYPE_CHECKING:
    from official_bert.models.bi_encoder import BiEncoder
    from official_bert.models.replaced_tokens import ReplacedTokenDetector

WEIGHTS = ("model.safetensors", "pytorch_model.bin", "tf_model.h5")  # beginnings of names in a Hugging Face folder
ADAPTER_FILE = "adapter_config.json"  # of PEFT
# The formats that `find_format` names.
MODULES: Mapping[str, str] = {
    "ours": "official_bert.models.interchange.projects.ours",
    "keras": "official_bert.models.interchange.projects.keras_files",
    "tf1": "official_bert.models.interchange.projects.tf1",
    "tf_models": "official_bert.models.interchange.projects.tf_models",
    "hugging_face": "official_bert.models.interchange.projects.hugging_face",
    "peft": "official_bert.models.interchange.adapted_models.peft",
    "keras_hub": "official_bert.models.interchange.projects.keras_hub",
}


@dataclasses.dataclass(frozen=True)
class Misfit:
    """A weight with another shape than the variable of the same name."""

    name: str  # ours
    theirs: str  # in the file
    expected_shape: tuple[int, ...]
    shape: tuple[int, ...]

    def describe(self) -> str:
        """Returns the weight's name and both shapes as text."""
        return f"{self.theirs}: expected {self.expected_shape}, got {self.shape}"


class Format(Protocol):
    """The interface of the modules in `MODULES`; some lack some of the functions."""

    read: Callable[..., StoredModel]  # of a path
    write: Callable[[StoredModel, str], list[str]]  # gives the names of the weights that have no place there
    is_checkpoint_of: Callable[[Any], bool]
    outputs: Callable[[str, Weights], Tensors]
    tokenizers: Any  # the module `hugging_face_tokenizers`
    encoder_decoder: Any  # the module of this name


def module_of(name: str) -> Format:
    """Returns the module of a format of `MODULES`."""
    return by_name(MODULES[name])


def find_prefix(path: str) -> str | None:
    """Returns the prefix of the TensorFlow checkpoint at a path (a prefix, one of its files, or a folder); None if
    there is none.

    `ckpt-18` also finds 2018's `model.ckpt-18`. A folder gives its newest complete checkpoint; a run that answers with
    its best checkpoint gives the best one.
    """
    return _prefix_here(prefixes.local_checkpoint(RunFolder(path).answering_folder()))


def _prefix_here(path: str) -> str | None:
    """Returns the prefix for a path on this machine; for a folder, that of its newest complete checkpoint."""
    if os.path.isdir(path):
        return prefixes.newest_whole(path)
    prefix = prefixes.PART.sub("", path)
    ours = os.path.join(os.path.dirname(prefix), os.path.basename(prefix).removeprefix("model."))
    for name in (prefix, ours):
        if os.path.exists(f"{name}.index"):
            require_regular_files(f"{name}.")
            return name
    return None


def find_format(path: str) -> tuple[str, str]:
    """Returns the name of the format of a path, and the path that the format's module reads.

    Raises ValueError that lists the folder's files if the path holds none of the formats.
    """
    path = prefixes.local_checkpoint(path)
    if path.endswith(".keras") and os.path.isfile(path):
        return "keras", path
    folder = path if os.path.isdir(path) else os.path.dirname(path)
    means_folder = os.path.isdir(path) or os.path.basename(path).startswith((*WEIGHTS, "config.json", "adapter_"))
    if means_folder:
        require_regular_files(os.path.join(folder, ""))
    if means_folder and (name := _folder_format(folder)):
        return name, folder
    if prefix := _prefix_here(RunFolder(path).answering_folder()):
        return _format_of_checkpoint(prefix), prefix
    if os.path.exists(os.path.join(folder, stored_models.BERT_CONFIG_FILE)) and _has_weights(folder):
        # as the Chinese models of 2019 are published; beside a TF 1 checkpoint, that one is read
        return "hugging_face", folder
    if not os.path.exists(path):
        raise ValueError(f"{path}: no checkpoint found there: no such file or folder, {prefixes.OTHER_READING}")
    contents = ", ".join(sorted(os.listdir(path))[:8]) or "an empty folder" if os.path.isdir(path) else "another file"
    raise ValueError(
        f"{path}: no checkpoint found there: expected a TensorFlow checkpoint, config.json with "
        f"model.safetensors, a keras-hub preset or a .keras file, got {contents}"
    )


def holds_model(path: str) -> bool:
    """Returns whether a path holds a model of any format, even a damaged one."""
    try:
        find_format(path)
    except ValueError:
        return os.path.exists(os.path.join(path, "config.json"))
    return True


def _folder_format(folder: str) -> str:
    """Returns the format of a folder by its config.json, without slow imports; "" if that names none."""
    if os.path.exists(os.path.join(folder, ADAPTER_FILE)) and not _has_weights(folder):
        return "peft"
    keys = set(read_mapping(os.path.join(folder, "config.json"), missing={}))
    # Until 2020 there was neither of the two keys.
    if keys & {"model_type", "architectures"} or ("hidden_size" in keys and _has_weights(folder)):
        return "hugging_face"
    return "keras_hub" if "class_name" in keys else ""


def _has_weights(folder: str) -> bool:
    """Returns whether a folder has a Hugging Face model's weights, in one file or several."""
    return any(name.startswith(WEIGHTS) for name in os.listdir(folder))


def _format_of_checkpoint(prefix: str) -> str:
    try:
        names = tf.train.load_checkpoint(prefix).get_variable_to_shape_map()
    except prefixes.UNREADABLE as error:
        raise ValueError(f"{prefix}: damaged checkpoint: {str(error).splitlines()[0]}") from None
    if ours.is_checkpoint_of(names):
        return "ours"
    if any("/.ATTRIBUTES/" in name for name in names):
        if module_of("tf_models").is_checkpoint_of(names):
            return "tf_models"
        raise ValueError(
            f"{prefix}: expected a BERT checkpoint, got an object checkpoint with {', '.join(sorted(names)[1:4])}"
        )
    return "tf1"


def read(path: str, head: Head = "", base: str = "") -> StoredModel:
    """Returns the model at a path, of any format.

    `head` chooses among several models of a checkpoint (ELECTRA's in TF 1); `base` is the base of a PEFT folder. Raises
    ValueError if there is no model, and for other architectures, damaged files, and weights that are NaN or infinite.
    """
    name, where = find_format(path)
    if name == "peft":
        return adaptation.adapters().read_peft(path, where, base)
    if base:
        raise ValueError(f"--base={base}: expected a PEFT folder, which has adapter_config.json, beside it, got {path}")
    try:
        model = module_of(name).read(where, *((head,) if name == "tf1" else ()))
    except (tf.errors.OpError, IndexError) as error:
        raise ValueError(f"{where}: damaged checkpoint: {str(error).splitlines()[0]}") from None
    if not model.weights:
        raise ValueError(
            f"{model.origin}: holds no weight of a BERT model; it has {', '.join(model.unknown[:5]) or 'none'}"
        )
    require_finite(model.weights, model.origin, lambda ours: model.table.theirs(ours) or ours)
    if name == "ours" and (run := RunFolder.around(where)).base:
        model = adaptation.adapters().over_base(model, run)
    folder = where if os.path.isdir(where) else os.path.dirname(where)
    generator = os.path.join(folder, GENERATOR)
    if model.head == "replaced" and model.generator is None and os.path.isdir(generator):
        model = dataclasses.replace(model, generator=read(generator))
    return dataclasses.replace(model, folder=folder)


def vocab_file_of(model: StoredModel) -> str:
    """Returns the vocabulary file of a model that was read from files, or "" if there is none.

    It is beside the checkpoint or, for `best/`, in the run's folder. A vocabulary inside another file
    (`tokenizer.json`, a preset) is written to a temporary file, deleted at exit.
    """
    for place in (RunFolder(model.folder), RunFolder.around(model.folder)):
        if (file := place.vocab_file) and bool(model.tokenizer) == file.endswith(tokenizer_files.BUNDLE):
            return file
    if model.vocab is None and not model.tokenizer:
        return ""
    stored_models.write_vocab(model, temporary := new_folder())
    stand_for(file := loading.stored_in(temporary), model.folder or model.origin)
    return file


def write(model: StoredModel, name: str, folder: str) -> list[str]:
    """Writes a model in a format to a folder, which appears when it is complete; returns the names of weights left out.

    A discriminator's generator is written to the subfolder `generator`. Raises ValueError if the folder exists already,
    or if the format cannot hold the model.
    """
    of_albert = (
        name == "tf1" and "spiece.model" in model.tokenizer and model.config is not None and model.config.layer_groups
    )
    if model.tokenizer and name not in ("ours", "hugging_face", "peft") and not of_albert:
        raise ValueError(
            f"--to={name}: can only hold a WordPiece vocabulary, and {model.origin} has another tokenizer; "
            "expected ours or hugging_face"
        )
    with written_folder(folder) as temporary:
        # HDF5 ends the whole process if the disk is full.
        check_disk(
            {os.path.dirname(temporary): sum(weight.nbytes for weight in model.weights.values())}, "the checkpoint"
        )
        left_out = module_of(name).write(model, temporary)
        if model.generator is not None:
            os.mkdir(folder := os.path.join(temporary, GENERATOR))
            module_of(name).write(model.generator, folder)
        return left_out


def as_head(model: StoredModel, head: Head) -> StoredModel:
    """Returns the model with its linear head as another kind of head, for formats that do not distinguish them."""
    renamed = {
        re.sub(r"^(classifier|tagger)/", "tagger/" if head == "tagger" else "classifier/", name): weight
        for name, weight in model.weights.items()
    }
    return dataclasses.replace(model, head=head, weights=renamed)


def encoder_of(model: StoredModel) -> StoredModel:
    """Returns a stored model reduced to the encoder and the layers that make its text vectors."""
    kept = (*ENCODER_PREFIXES, *([LAYER_PREFIX] if model.pooling else []))
    weights = with_prefix(model.weights, *kept)
    return dataclasses.replace(model, weights=weights, head="", unknown=(), labels=(), generator=None)


def make_model(model: StoredModel, **options: Any) -> keras.Model:
    """Returns the Keras model of a stored model, with its weights; `options` are passed to the encoder
    (`return_layers=True`).

    Raises ValueError with the names of weights that are missing, left over or of another shape.
    """
    encoder = BertEncoder(**encoder_settings(stored_models.require_config(model)), **{"name": "bert", **options})
    if model.head in ("classifier", "tagger") and (bias := f"{model.head}/output_bias") not in model.weights:
        raise ValueError(f"{model.origin}: missing: {model.table.theirs(bias) or bias}")
    made = _without_weights(model, encoder)
    made.build()
    variables = weights_by_name(made)
    _check_whole(model, variables)
    for name, weight in model.weights.items():
        variables[name].assign(weight.reshape(variables[name].shape))
    return made


def _without_weights(model: StoredModel, encoder: BertEncoder) -> keras.Model:
    if model.head == "pretraining":
        spans: type[Pretrainer] = Pretrainer
        if "boundary/output_bias" in model.weights:
            spans = by_name("official_bert.models.span_boundary:SpanPretrainer")
        return spans(encoder, "next_sentence/output_bias" in model.weights)
    if model.head == "replaced":
        detector: type[ReplacedTokenDetector] = by_name("official_bert.models.replaced_tokens:ReplacedTokenDetector")
        return detector(encoder, "replaced_LayerNorm/gamma" in model.weights)
    if model.vector_layers and not model.head:
        bi_encoder: type[BiEncoder] = by_name("official_bert.models.bi_encoder:BiEncoder")
        return bi_encoder(encoder, model.pooling or "mean", layers=model.vector_layers, dimensions=model.dimensions)
    return {
        "": lambda: encoder,
        "choice": lambda: ChoiceClassifier(encoder),
        "classifier": lambda: Classifier(encoder, len(model.weights["classifier/output_bias"])),
        "tagger": lambda: Tagger(encoder, len(model.weights["tagger/output_bias"])),
        "span": lambda: SpanPredictor(encoder),
        "decoder": lambda: module_of("hugging_face").encoder_decoder.make(encoder, model),
    }[model.head]()


def _check_whole(model: StoredModel, variables: Mapping[str, keras.Variable]) -> None:
    """Raises ValueError unless every weight has a variable and every variable that outputs depend on has a weight."""
    optional = [] if stored_models.needs_pooler(model) and model.head else ["pooler/"]
    if model.head == "pretraining" and "masked_lm/output_bias" not in model.weights:
        optional.append("masked_lm/")

    def theirs(names: Any) -> Any:
        return shown([model.table.theirs(name) or name for name in names])

    absent = [name for name in variables if name not in model.weights and not name.startswith(tuple(optional))]
    extra = [name for name in model.weights if name not in variables]
    if absent:
        raise ValueError(f"{model.origin}: missing: {theirs(absent)}")
    if model.unknown or extra:
        raise ValueError(
            f"{model.origin}: left over, with no place in a BERT model: {theirs([*extra, *model.unknown])}; "
            "tools/convert_checkpoint.py --drop=NAMES (a regular expression) leaves them out"
        )
    if wrong := misfits(model, variables):
        raise ValueError(f"{model.origin}: {shown([misfit.describe() for misfit in wrong], '; ')}")


def misfits(model: StoredModel, variables: Mapping[str, keras.Variable]) -> list[Misfit]:
    """Returns the weights that have neither the shape of their variable nor that shape as a matrix."""
    shapes = {name: tuple(variables[name].shape) for name in model.weights if name in variables}
    return [
        Misfit(name, model.table.theirs(name) or name, matrix_shape(name, shape), model.weights[name].shape)
        for name, shape in shapes.items()
        if model.weights[name].shape not in (shape, matrix_shape(name, shape))
    ]


def outputs(model: keras.Model, inputs: Weights) -> Tensors:
    """Returns all outputs of a model, including those of its encoder."""
    rows = {name: inputs[name] for name in INPUTS}
    encoder = encoder_within(model)
    encoded = encoder(rows)
    values = {name: encoded[name] for name in ("sequence_output", "pooled_output")}
    if isinstance(model, ChoiceClassifier):
        values |= model({name: value[:, None] for name, value in rows.items()})
    elif model is not encoder:
        values |= model(dict(inputs))
    return {name: np.asarray(value) for name, value in values.items()}
