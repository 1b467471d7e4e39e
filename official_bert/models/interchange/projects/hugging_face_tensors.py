"""The tensors of a Hugging Face folder: reads them under a member's usual names, and translates them to our weights and
back.

Matrices are [out, in] there and [in, out] here.
"""

import os
from collections.abc import Callable, Mapping

import numpy as np

from official_bert.config import ModelConfig
from official_bert.models.interchange import stored_models
from official_bert.models.interchange.members.member import Member
from official_bert.models.interchange.names import NameTable, Tensors, Weights, as_matrix
from official_bert.models.interchange.weight_files import tf_h5, torch_pickle
from official_bert.storage.files import path_inside, read_mapping

Readers = Mapping[str, Callable[[str], Tensors]]
WEIGHTS_FILE = "model.safetensors"
# By the names of files: what reads one.
READERS: Readers = {
    WEIGHTS_FILE: lambda path: stored_models.read_safetensors(path)[0],
    "pytorch_model.bin": torch_pickle.load_tensors,
    "tf_model.h5": tf_h5.load_tensors,
}
PIECE_READERS: Readers = {**READERS, "tf_model.h5": tf_h5.load_piece}  # what reads one of several
WEIGHT_TYPES = ("float32", "float16", "bfloat16", "float64")
# positions 0, 1, 2, ... and segment 0, in some versions
USUAL_BUFFERS = ("embeddings.position_ids", "embeddings.token_type_ids")


def read_tensors(folder: str) -> Tensors:
    """Returns all tensors of a folder, from one file or several. Prefers safetensors."""
    for name, load in READERS.items():
        path, index = os.path.join(folder, name), os.path.join(folder, f"{name}.index.json")
        if os.path.exists(path):
            return load(path)
        if os.path.exists(index):
            load = PIECE_READERS[name]
            return {key: tensor for shard in _shards(index, folder) for key, tensor in load(shard).items()}
    raise ValueError(f"{folder}: expected {' or '.join(READERS)}, got {', '.join(sorted(os.listdir(folder))[:8])}")


def _shards(index: str, folder: str) -> list[str]:
    """Returns the paths of the files that an index names.

    Raises ValueError for paths outside the folder and missing files.
    """
    names = read_mapping(index).get("weight_map")
    if not isinstance(names, dict) or not names:
        raise ValueError(f"{index}: weight_map: expected a file for each tensor, got {str(names)[:80]}")
    shards = {name: path_inside(folder, name, f"{index}: weight_map: {tensor[:80]}") for tensor, name in names.items()}
    if missing := sorted(name for name, path in shards.items() if not os.path.isfile(path)):
        raise ValueError(f"{index}: names {missing[0]!r:.80}, which does not exist")
    return [path for _, path in sorted(shards.items())]


def with_usual_prefix(tensors: Weights, member: Member, folder: str) -> Weights:
    """Returns the tensors with the encoder's usual prefix, whatever prefix a user's class or Lightning gave it, such as
    `model.encoder.` or `module.bert.`.

    Raises ValueError if there are several encoders.
    """
    words = "embeddings.word_embeddings.weight"
    encoders = [name.removesuffix(words) for name in tensors if name.endswith(words)]
    if len(encoders) > 1:
        raise ValueError(f"{folder}: expected one encoder, got {len(encoders)}, {' and '.join(map(repr, encoders))}")
    if not encoders or encoders[0] in ("", member.prefix):
        return tensors
    outer = encoders[0].removesuffix(member.prefix)  # of the heads beside the encoder, if it has one
    return {
        f"{member.prefix}{name.removeprefix(encoders[0])}"
        if name.startswith(encoders[0])
        else name.removeprefix(outer): tensor
        for name, tensor in tensors.items()
    }


def usual_tensors(tensors: Weights, member: Member, config: ModelConfig, folder: str) -> Tensors:
    """Returns a member's tensors under its usual names, without second names.

    Raises ValueError for two tensors of one name.
    """
    renamed = {member.usual_name(name): tensor for name, tensor in tensors.items()}
    if len(renamed) < len(tensors):
        raise ValueError(f"{folder}: several tensors have the same name, with and without the prefix {member.prefix}")
    renamed = member.unpack(renamed, config)
    _drop_copies(renamed, member, folder)
    return renamed


def _drop_copies(tensors: Tensors, member: Member, folder: str) -> None:
    """Removes buffers and second names of weights. A tensor that has only its second name gets the first.

    Raises ValueError if the tensor under the second name differs.
    """
    for name in USUAL_BUFFERS:
        tensors.pop(member.prefix + name, None)
    for copy, original in member.tied.items():
        if copy in tensors and original not in tensors:
            tensors[original] = tensors.pop(copy)
        if copy in tensors and not np.array_equal(tensors.pop(copy), tensors.get(original, ())):
            raise ValueError(
                f"{folder}: {copy} is not {original}: a model with untied output embeddings is not supported"
            )


def as_weights(tensors: Weights, names: Mapping[str, str], folder: str) -> Tensors:
    """Returns float32 weights, kernels as [in, out], from `names`: {our name: tensor's}.

    Raises ValueError for integer or 8-bit weights, which have no meaning without their scales.
    """
    for name in names.values():
        if (kind := tensors[name].dtype.name) not in WEIGHT_TYPES:
            raise ValueError(
                f"{folder}: {name}: {kind}: quantised weights are not supported; expected one of "
                f"{', '.join(WEIGHT_TYPES)}"
            )
    return {
        ours: (tensors[theirs].T if ours.endswith("/kernel") else tensors[theirs]).astype(np.float32, copy=False)
        for ours, theirs in names.items()
    }


def as_tensors(weights: Weights, table: NameTable) -> Tensors:
    """Returns our weights under the folder's names, kernels as [out, in].

    Raises ValueError if a weight has no name there.
    """
    tensors = {}
    for ours, theirs in table.all_theirs(weights, "a Hugging Face model").items():
        matrix = as_matrix(ours, weights[ours])
        tensors[theirs] = np.ascontiguousarray(matrix.T if ours.endswith("/kernel") else matrix)
    return tensors
