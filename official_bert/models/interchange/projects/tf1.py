"""Reads and writes checkpoints of the 2018 code (TF 1), and Google's of ALBERT and ELECTRA.

Attention kernels are matrices there and [D,N,H] here, with the same numbers in the same order.
"""

import dataclasses
import os
import re
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from official_bert.config import build
from official_bert.model_config import OF_2018, ModelConfig
from official_bert.models.interchange import casing, stored_models
from official_bert.models.interchange.members import albert, electra
from official_bert.models.interchange.names import (
    OUTPUT,
    NameTable,
    Weights,
    as_matrix,
    googles_encoder,
    googles_heads,
    rows,
)
from official_bert.models.interchange.stored_models import Fields, Head, StoredModel, Values
from official_bert.storage.files import read_mapping
from official_bert.text.subwords import tokenizer_files

NAME = "TF 1 checkpoint"
TABLE = NameTable(
    [
        *googles_encoder("bert/"),
        *googles_heads(),
        # As in the taggers that were made from run_classifier.py; read back as a classifier.
        *rows("tagger/", "", OUTPUT),
        *rows("span/", "cls/squad/", OUTPUT),
    ]
)
ACTS = ("gelu", "relu", "tanh", "linear")
# Variables of a training run: moments of Adam and LAMB under their 2018 and Keras names, counters.
NO_WEIGHTS = re.compile(r"(.*/)?((adam|lamb)_[mv]|Adam(_1)?|global_step|beta[12]_power)")


def usual_name(name: str) -> str:
    """Returns a variable's 2018 name, also from the names that exporters and Keras versions of the 2018 code give."""
    name = re.sub(r"^(module|bert/module|model)/", "", name)
    if re.match(r"(embeddings|encoder|pooler)/", name):
        name = f"bert/{name}"
    return re.sub(r"/layer_normalization(_\d+)?/", "/LayerNorm/", name)


def read(prefix: str, head: Head = "") -> StoredModel:
    """Returns the model of a checkpoint's prefix, with `bert_config.json` and `vocab.txt` beside it.

    Of ELECTRA's two models, it reads the one with `head`. Raises ValueError if two variables have the same name, if
    files beside the checkpoint are damaged, or if its folder's name and its vocabulary contradict each other about
    casing.
    """
    reader, folder = tf.train.load_checkpoint(prefix), os.path.dirname(prefix)
    names = [name for name in sorted(reader.get_variable_to_shape_map()) if not NO_WEIGHTS.fullmatch(name)]
    if any("/transformer/group_" in name for name in names):
        return _read_albert(prefix, reader, names)
    if any(name.startswith(("electra/", *electra.TF1_GENERATOR)) for name in names):
        return _read_electra(prefix, reader, names, head == "pretraining")
    return _stored(
        prefix,
        "",
        TABLE,
        *_weights_of(prefix, reader, names, TABLE),
        any_linear_head=True,
        config=stored_models.read_config(folder),
        **_vocabulary(prefix),
    )


def _vocabulary(prefix: str) -> Fields:
    """Returns the fields of `StoredModel` about the `vocab.txt` beside a checkpoint."""
    vocab = stored_models.read_vocab(os.path.dirname(prefix))
    return {"vocab": vocab, "do_lower_case": casing.of_folder(prefix, vocab)}


def _stored(
    prefix: str, member: str, table: NameTable, weights: Weights, unknown: Sequence[str], **fields: Any
) -> StoredModel:
    return StoredModel(
        origin=f"{NAME} {prefix}{member}",
        weights=weights,
        table=table,
        unknown=unknown,
        head=stored_models.head_of(weights, prefix),
        **fields,
    )


def _weights_of(
    prefix: str, reader: Any, names: Sequence[str], table: NameTable, rename: Callable[[str], str] = str
) -> tuple[dict, list[str]]:
    """Returns the weights of these variables by our names, and the variables without one. Raises ValueError if two
    variables have the same name.
    """
    weights, unknown = {}, []
    for theirs in names:
        ours = table.ours(rename(usual_name(theirs)))
        if ours is None:
            unknown.append(theirs)
        elif ours in weights:
            raise ValueError(f"{prefix}: two variables mean {usual_name(theirs)}, one of them {theirs}")
        else:
            weights[ours] = reader.get_tensor(theirs)
    return weights, unknown


def _read_albert(prefix: str, reader: Any, names: Sequence[str]) -> StoredModel:
    """Reads an ALBERT, with `albert_config.json` beside it."""
    folder = os.path.dirname(prefix)
    there = os.listdir(folder)
    name = next((name for name in ("albert_config.json", stored_models.BERT_CONFIG_FILE) if name in there), "")
    if not name:
        raise ValueError(
            f"{prefix}: expected an albert_config.json beside it, got none: attention heads and layers cannot be told "
            "from the weights"
        )
    path = os.path.join(folder, name)
    config = build(ModelConfig, albert.tf1_config(read_mapping(path), path), path)
    weights, unknown = _weights_of(prefix, reader, names, albert.TF1_TABLE, lambda name: albert.numbered(name, config))
    model = next((name for name in sorted(there) if name.endswith(".model")), "")
    tokenizer = (
        tokenizer_files.read(os.path.join(folder, model)) | {tokenizer_files.CLASS_FILE: b"AlbertTokenizer"}
        if model
        else {}
    )
    return _stored(
        prefix,
        " (ALBERT)",
        albert.TF1_TABLE,
        weights,
        unknown,
        config=config,
        tokenizer=tokenizer,
        do_lower_case=True if model else None,
        model_type="albert",
        sentence_task=albert.ALBERT.sentence_task if "next_sentence/output_bias" in weights else "",
    )


def _read_electra(prefix: str, reader: Any, names: Sequence[str], wants_generator: bool) -> StoredModel:
    """Reads the discriminator of an ELECTRA, or its generator if that is wanted or alone.

    Sizes are those of the weights. A `bert_config.json` of the same width gives heads and dropout.
    """
    generator, folder = electra.tf1_generator(names), os.path.dirname(prefix)
    both = any(name.startswith(electra.TF1_GENERATOR) for name in generator)
    is_generator = wants_generator or not any(name.startswith("electra/encoder/") for name in names)
    if is_generator and not both:
        raise ValueError(
            f"{prefix}: expected the variables of a generator ({', '.join(electra.TF1_GENERATOR)}), got none"
        )
    own = generator if is_generator else [name for name in names if not name.startswith(electra.TF1_GENERATOR)]
    weights, unknown = _weights_of(prefix, reader, own, electra.TF1_TABLE, electra.tf1_row)
    if "replaced/output_weights" in weights:
        weights["replaced/output_weights"] = weights["replaced/output_weights"].T  # a kernel there
    config = electra.tf1_sizes(weights, sizes := stored_models.read_config(folder), prefix)
    notes = []
    if sizes is None or sizes.hidden_size != config.hidden_size:
        notes.append("attention heads are assumed to have 64 numbers each")
    if both and not is_generator:
        notes.append("the generator beside it is not read; convert_checkpoint --head=pretraining reads it")
    return _stored(
        prefix,
        " (ELECTRA)",
        electra.TF1_TABLE,
        weights,
        unknown,
        config=config,
        model_type="electra",
        notes=notes,
        **_vocabulary(prefix),
    )


def write(stored: StoredModel, folder: str) -> list[str]:
    """Writes `bert_model.ckpt`, `bert_config.json` (`albert_config.json`) and `vocab.txt` (`spiece.model`), as the
    authors' scripts read them.

    Returns our names of the weights left out: a pooler, which ELECTRA lacks. Raises ValueError for a model that the
    authors' code cannot compute.
    """
    config = stored_models.require_config(stored)
    stored_models.refuse_architecture(config, "the 2018 code")
    if not albert.ALBERT.differences(config):
        return _write_albert(stored, config, folder)
    if not electra.ELECTRA.differences(config):
        return _write_electra(stored, config, folder)
    stored_models.refuse_numerics(config, "the 2018 code", ACTS)
    _write_files(stored, TABLE, {key: getattr(config, key) for key in OF_2018}, folder)
    return []


def _write_albert(stored: StoredModel, config: ModelConfig, folder: str) -> list[str]:
    stored_models.refuse_acts(config, "Google's ALBERT", ACTS)
    _write_files(
        stored,
        albert.TF1_TABLE,
        albert.tf1_values(config),
        folder,
        "albert_config.json",
        lambda name: albert.grouped(name, config),
    )
    return []


def _write_electra(stored: StoredModel, config: ModelConfig, folder: str) -> list[str]:
    stored_models.refuse_acts(config, "Google's ELECTRA", ("gelu_erf",))
    left_out = [
        name for name in stored.weights if name.startswith("pooler/") and stored.head in ("", "pretraining", "replaced")
    ]
    weights = {
        name: weight.T if name == "replaced/output_weights" else weight
        for name, weight in stored.weights.items()
        if name not in left_out
    }
    values = {key: getattr(config, key) for key in OF_2018} | {
        "hidden_act": "gelu",
        "embedding_size": config.table_width,
    }
    _write_files(
        dataclasses.replace(stored, weights=weights),
        electra.TF1_TABLE,
        values,
        folder,
        rename=lambda name: electra.tf1_name(name, stored.head == "pretraining"),
    )
    return left_out


def _write_files(
    stored: StoredModel,
    table: NameTable,
    values: Values,
    folder: str,
    config_file: str = stored_models.BERT_CONFIG_FILE,
    rename: Callable[[str], str] = str,
) -> None:
    """Writes the weights under the names of a table, the configuration and the tokenizer."""
    variables = {
        rename(theirs): as_matrix(ours, stored.weights[ours])
        for ours, theirs in table.all_theirs(stored.weights, "a TF 1 checkpoint").items()
    }
    write_checkpoint(variables, folder)
    stored_models.write_mapping(values, folder, config_file)
    if stored.tokenizer:
        with open(os.path.join(folder, "spiece.model"), "wb") as file:
            file.write(stored.tokenizer["spiece.model"])
    else:
        stored_models.write_vocab(stored, folder)


def write_checkpoint(variables: Weights, folder: str) -> None:
    """Writes variables by name to `bert_model.ckpt`, and the file `checkpoint` that names it."""
    prefix = os.path.join(folder, "bert_model.ckpt")
    tf.raw_ops.SaveV2(
        prefix=prefix,
        tensor_names=list(variables),
        shape_and_slices=[""] * len(variables),
        tensors=list(variables.values()),
    )
    # By hand: TensorFlow's own writer takes the name for one that is relative to the working folder.
    with open(os.path.join(folder, "checkpoint"), "w", encoding="utf-8") as file:
        file.write('model_checkpoint_path: "bert_model.ckpt"\nall_model_checkpoint_paths: "bert_model.ckpt"\n')
