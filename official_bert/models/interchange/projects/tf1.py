"""Checkpoints of the 2018 code (TF 1), read and written, and those of ALBERT and ELECTRA, read.

Attention kernels are matrices there and [D,N,H] here: the same numbers in the same order.
"""

import dataclasses
import os
import re
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import tensorflow as tf

from official_bert.config import build
from official_bert.model_config import OF_2018, ModelConfig
from official_bert.models.interchange import casing, stored_models
from official_bert.models.interchange.members import albert, electra
from official_bert.models.interchange.names import DENSE, NORM, OUTPUT, NameTable, as_matrix, rows
from official_bert.models.interchange.stored_models import StoredModel

NAME = "TF 1 checkpoint"
LAYER = "bert/encoder/layer_{i}/"
TABLE = NameTable([
    *rows("embeddings/", "bert/embeddings/", ("word_embeddings", "token_type_embeddings", "position_embeddings")),
    *rows("embeddings/LayerNorm/", "bert/embeddings/LayerNorm/", NORM),
    *rows("layer_{i}/attention/query/", LAYER + "attention/self/query/", DENSE),
    *rows("layer_{i}/attention/key/", LAYER + "attention/self/key/", DENSE),
    *rows("layer_{i}/attention/value/", LAYER + "attention/self/value/", DENSE),
    *rows("layer_{i}/attention/output/", LAYER + "attention/output/dense/", DENSE),
    *rows("layer_{i}/attention_LayerNorm/", LAYER + "attention/output/LayerNorm/", NORM),
    *rows("layer_{i}/intermediate/", LAYER + "intermediate/dense/", DENSE),
    *rows("layer_{i}/output/", LAYER + "output/dense/", DENSE),
    *rows("layer_{i}/output_LayerNorm/", LAYER + "output/LayerNorm/", NORM),
    *rows("pooler/", "bert/pooler/dense/", DENSE),
    *rows("masked_lm/transform/", "cls/predictions/transform/dense/", DENSE),
    *rows("masked_lm/LayerNorm/", "cls/predictions/transform/LayerNorm/", NORM),
    *rows("masked_lm/output_bias", "cls/predictions/output_bias"),
    *rows("next_sentence/", "cls/seq_relationship/", OUTPUT),
    *rows("classifier/", "", OUTPUT),
    *rows("tagger/", "", OUTPUT),  # as in the taggers that were made from run_classifier.py; read back as a classifier
    *rows("span/", "cls/squad/", OUTPUT),
])
# Variables of a training run: moments of Adam and LAMB under their 2018 and Keras names, counters.
NO_WEIGHTS = re.compile(r"(.*/)?((adam|lamb)_[mv]|Adam(_1)?|global_step|beta[12]_power)")


def usual_name(name: str) -> str:
    """A variable's 2018 name, from names by exporters and by Keras versions of the 2018 code."""
    name = re.sub(r"^(module|bert/module|model)/", "", name)
    if re.match(r"(embeddings|encoder|pooler)/", name):
        name = f"bert/{name}"
    return re.sub(r"/layer_normalization(_\d+)?/", "/LayerNorm/", name)


def read(prefix: str) -> StoredModel:
    """Reads the model of a checkpoint's prefix, with `bert_config.json` and `vocab.txt` beside it.

    Raises ValueError if two variables claim one name, the files beside it are damaged, or name and vocabulary of the folder say another
    casing.
    """
    reader, folder = tf.train.load_checkpoint(prefix), os.path.dirname(prefix)
    names = [name for name in sorted(reader.get_variable_to_shape_map()) if not NO_WEIGHTS.fullmatch(name)]
    if any("/transformer/group_" in name for name in names):
        return _read_albert(prefix, reader, names)
    if any(name.startswith("electra/") for name in names):
        return _read_electra(prefix, reader, names)
    weights, unknown = _weights_of(prefix, reader, names, TABLE)
    vocab = stored_models.read_vocab(folder)
    return StoredModel(origin=f"{NAME} {prefix}", weights=weights, table=TABLE, config=stored_models.read_config(folder), unknown=unknown,
                       head=stored_models.head_of(weights, prefix), vocab=vocab, do_lower_case=casing.of_folder(prefix, vocab))


def _weights_of(prefix: str, reader, names: Sequence[str], table: NameTable, rename: Callable[[str], str] = str) -> tuple[dict, list[str]]:
    """Returns the weights of these names by ours, and names without a place. Raises ValueError if two variables claim one name."""
    weights, unknown = {}, []
    for theirs in names:
        ours = table.ours(rename(usual_name(theirs)))
        if ours is None:
            unknown.append(theirs)
        elif ours in weights:
            raise ValueError(f"{prefix}: two variables claim to be {usual_name(theirs)}, one of them {theirs}")
        else:
            weights[ours] = reader.get_tensor(theirs)
    return weights, unknown


def _read_albert(prefix: str, reader, names: Sequence[str]) -> StoredModel:
    """Reads an ALBERT, with `albert_config.json` beside it."""
    folder = os.path.dirname(prefix)
    path = next((path for name in ("albert_config.json", stored_models.BERT_CONFIG_FILE)
                 if os.path.exists(path := os.path.join(folder, name))), "")
    if not path:
        raise ValueError(f"{prefix}: expected an albert_config.json beside it, got none: attention heads and layers cannot be told from "
                         "the weights")
    config = build(ModelConfig, albert.tf1_config(stored_models.read_mapping(path), path), path)
    weights, unknown = _weights_of(prefix, reader, names, albert.TF1_TABLE, lambda name: albert.tf1_layer(name, config))
    return StoredModel(origin=f"{NAME} {prefix} (ALBERT)", weights=weights, table=albert.TF1_TABLE, config=config, unknown=unknown,
                       model_type="albert", head=stored_models.head_of(weights, prefix),
                       sentence_task=albert.ALBERT.sentence_task if "next_sentence/output_bias" in weights else "")


def _read_electra(prefix: str, reader, names: Sequence[str]) -> StoredModel:
    """Reads the discriminator of an ELECTRA. Sizes are those of the weights, heads those of a `bert_config.json`, if there is one."""
    generator = [name for name in names if name.startswith(electra.TF1_GENERATOR)]
    weights, unknown = _weights_of(prefix, reader, [name for name in names if name not in generator], electra.TF1_TABLE,
                                   lambda name: name.replace("/dense_1/", "/dense_one/"))
    if "replaced/output_weights" in weights:
        weights["replaced/output_weights"] = weights["replaced/output_weights"].T  # a kernel there
    config, folder = electra.tf1_sizes(weights, prefix), os.path.dirname(prefix)
    if (given := stored_models.read_config(folder)) is not None:
        config = dataclasses.replace(config, num_attention_heads=given.num_attention_heads)
    vocab = stored_models.read_vocab(folder)
    notes = ["attention heads are taken to have 64 numbers each"] if given is None else []
    return StoredModel(origin=f"{NAME} {prefix} (ELECTRA)", weights=weights, table=electra.TF1_TABLE, config=config, unknown=unknown,
                       model_type="electra", head=stored_models.head_of(weights, prefix), vocab=vocab,
                       do_lower_case=casing.of_folder(prefix, vocab),
                       notes=[*notes, *(["the generator beside it is not read"] if generator else [])])


def write(stored: StoredModel, folder: str) -> list[str]:
    """Writes `bert_model.ckpt`, `bert_config.json`, `vocab.txt` as the 2018 scripts read them; leaves nothing out.

    Raises ValueError for a model that the 2018 code cannot compute.
    """
    config = stored_models.require_config(stored)
    stored_models.refuse_architecture(config, "the 2018 code")
    stored_models.refuse_numerics(config, "the 2018 code", ("gelu", "relu", "tanh", "linear"))
    named = {theirs: as_matrix(ours, stored.weights[ours])
             for ours, theirs in TABLE.all_theirs(stored.weights, "a TF 1 checkpoint").items()}
    write_checkpoint(named, folder)
    stored_models.write_mapping({key: getattr(config, key) for key in OF_2018}, os.path.join(folder, stored_models.BERT_CONFIG_FILE))
    stored_models.write_vocab(stored, folder)
    return []


def write_checkpoint(named: Mapping[str, np.ndarray], folder: str) -> None:
    """Writes variables by name to `bert_model.ckpt`, and its name to `checkpoint`."""
    prefix = os.path.join(folder, "bert_model.ckpt")
    tf.raw_ops.SaveV2(prefix=prefix, tensor_names=list(named), shape_and_slices=[""] * len(named), tensors=list(named.values()))
    # By hand: TensorFlow's own writer takes the name for one that is relative to the working folder.
    with open(os.path.join(folder, "checkpoint"), "w", encoding="utf-8") as file:
        file.write('model_checkpoint_path: "bert_model.ckpt"\nall_model_checkpoint_paths: "bert_model.ckpt"\n')
