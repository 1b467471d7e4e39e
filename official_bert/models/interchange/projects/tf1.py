"""Checkpoints of the 2018 code (TF 1), read and written.

Attention kernels are matrices there and [D,N,H] here: the same numbers in the same order.
"""

import os
import re
from collections.abc import Mapping

import numpy as np
import tensorflow as tf

from official_bert.model_config import OF_2018
from official_bert.models.interchange import casing, stored_models
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
    reader = tf.train.load_checkpoint(prefix)
    weights, unknown = {}, []
    for theirs in sorted(reader.get_variable_to_shape_map()):
        if NO_WEIGHTS.fullmatch(theirs):
            continue
        ours = TABLE.ours(usual_name(theirs))
        if ours is None:
            unknown.append(theirs)
        elif ours in weights:
            raise ValueError(f"{prefix}: two variables claim to be {usual_name(theirs)}, one of them {theirs}")
        else:
            weights[ours] = reader.get_tensor(theirs)
    folder = os.path.dirname(prefix)
    vocab = stored_models.read_vocab(folder)
    return StoredModel(origin=f"{NAME} {prefix}", weights=weights, table=TABLE, config=stored_models.read_config(folder), unknown=unknown,
                       head=stored_models.head_of(weights, prefix), vocab=vocab, do_lower_case=casing.of_folder(prefix, vocab))


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
