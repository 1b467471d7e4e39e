"""Reads and writes folders of Hugging Face's BERT and its relatives (PyTorch classes), and of sentence-transformers,
without PyTorch.

Matrices are [out, in] there and [in, out] here. `hidden_act: gelu` is the erf form there (our `gelu_erf`) and the tanh
form in Google's configurations (our `gelu`, their `gelu_new`).
"""

import os
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from official_bert.config import ModelConfig, build
from official_bert.models.interchange import stored_models
from official_bert.models.interchange.members.family import member_for, member_of
from official_bert.models.interchange.members.member import Member
from official_bert.models.interchange.names import NameTable, as_matrix
from official_bert.models.interchange.projects import encoder_decoder, sentence_transformers
from official_bert.models.interchange.projects import hugging_face_tokenizers as tokenizers
from official_bert.models.interchange.stored_models import Kind, StoredModel
from official_bert.models.interchange.weight_files import tf_h5, torch_pickle
from official_bert.models.vector_layers import LAYER_PREFIX
from official_bert.storage.files import path_inside, read_mapping
from official_bert.text.subwords import tokenizer_files

NAME = "Hugging Face folder"
CONFIG_FILE = "config.json"
WEIGHTS_FILE = "model.safetensors"
# by the names of files: what reads one, and what reads one of several
READERS: Mapping[str, tuple[Callable, Callable]] = {
    WEIGHTS_FILE: (lambda path: stored_models.read_safetensors(path)[0],) * 2,
    "pytorch_model.bin": (torch_pickle.load_tensors,) * 2,
    "tf_model.h5": (tf_h5.load_tensors, tf_h5.load_piece),
}
# endings of names; not computed here
OTHER_CLASSES = ("LMHeadModel", "ForCausalLM", "GenerationEncoder", "GenerationDecoder")
KINDS: Mapping[str, Kind] = {
    "single_label_classification": "classifier",
    "multi_label_classification": "multi_label",
    "regression": "regression",
}
WEIGHT_TYPES = ("float32", "float16", "bfloat16", "float64")
# positions 0, 1, 2, ... and segment 0, in some versions
USUAL_BUFFERS = ("embeddings.position_ids", "embeddings.token_type_ids")


def read(folder: str) -> StoredModel:
    """Returns the model in a folder. Raises ValueError for other architectures, damaged files, and output embeddings
    that are not tied.
    """
    there = os.listdir(folder)
    names = (CONFIG_FILE, stored_models.BERT_CONFIG_FILE)
    path = os.path.join(folder, next((name for name in names if name in there), CONFIG_FILE))
    values = read_mapping(path)
    if values.get("model_type") == encoder_decoder.MODEL_TYPE:
        fields = encoder_decoder.read(folder, values, path, read_tensors(folder), _usual_tensors, _as_weights)
        title = f"{NAME} {folder} ({encoder_decoder.ARCHITECTURE})"
        return StoredModel(origin=title, **fields, **tokenizers.read(folder))
    member, model_type = member_of(values, path)
    architecture = _check_architecture(values, member, model_type, path)
    config = build(ModelConfig, member.read_config(values, path), path)
    form = member.classes(model_type).get(architecture or "")
    tensors = read_tensors(folder)
    own_class = architecture is not None and form is None
    tensors = _with_usual_prefix(tensors, member, folder)
    left_out = {name for part in member.left_out for name in tensors if part in name}
    tensors = {name: tensor for name, tensor in tensors.items() if name not in left_out}
    usual_tensors = _usual_tensors(tensors, member, config, folder)
    unusable = _unusable_heads(usual_tensors, member, config.hidden_size) if own_class else []
    if form and not member.heads_by_class and not any(theirs in usual_tensors for theirs in form.of_head()):
        form = None
    if form is None:
        head = stored_models.head_of(
            member.table().all_ours(name for name in usual_tensors if name not in unusable)[0], folder
        )
        form = next(form for form in member.forms.values() if form.head == head)
    table, head = member.table(form), form.head
    their_names, unknown = table.all_ours(name for name in usual_tensors if name not in unusable)
    weights = _as_weights(usual_tensors, their_names, folder)
    narrow = {str(usual_tensors[theirs].dtype) for theirs in their_names.values()} - {"float32"}
    notes = [f"{' and '.join(sorted(narrow))} weights were converted to float32"] if narrow else []
    if config.hidden_act == "gelu_erf":
        notes.append("hidden_act gelu means the erf form, which is gelu_erf here")
    notes += member.remarks(values)
    of_tokenizer = tokenizers.read(folder)
    vectors, vector_weights = sentence_transformers.read(folder, head, config.hidden_size, read_tensors)
    weights |= vector_weights
    warnings = [*filter(None, [vectors.get("why_no_vectors", "")]), *tokenizers.remarks(folder, of_tokenizer["vocab"])]
    warnings += [member.left_out[part] for part in member.left_out if any(part in name for name in left_out)]
    if own_class:
        warnings.append(
            f"{architecture} is not a class of Hugging Face; it is read by the names of its weights "
            f"({f'head: {head}' if head else 'the encoder'}), without its other computations"
        )
    return StoredModel(
        origin=f"{NAME} {folder} ({architecture or member.title})",
        weights=weights,
        table=table,
        config=config,
        model_type=model_type,
        head=head,
        unknown=[*unknown, *unusable],
        notes=notes,
        warnings=warnings,
        **of_tokenizer,
        **vectors,
        sentence_task=member.sentence_task if "next_sentence/output_bias" in weights else "",
        labels=_read_labels(values, path) if head in ("classifier", "tagger") else [],
        kind=_read_kind(values, path, len(weights.get("classifier/output_bias", ()))) if head == "classifier" else "",
    )


def _usual_tensors(
    tensors: Mapping[str, np.ndarray], member: Member, config: ModelConfig, folder: str
) -> dict[str, np.ndarray]:
    """Returns a member's tensors under its usual names, without second names.

    Raises ValueError for two tensors of one name.
    """
    usual_tensors = {member.usual_name(name): tensor for name, tensor in tensors.items()}
    if len(usual_tensors) < len(tensors):
        raise ValueError(f"{folder}: several tensors have the same name, with and without the prefix {member.prefix}")
    usual_tensors = member.unpack(usual_tensors, config)
    _drop_copies(usual_tensors, member, folder)
    return usual_tensors


def _as_weights(
    tensors: Mapping[str, np.ndarray], their_names: Mapping[str, str], folder: str
) -> dict[str, np.ndarray]:
    """Returns float32 weights by our names, kernels as [in, out]. Raises ValueError for quantised weights."""
    _refuse_quantised({theirs: tensors[theirs] for theirs in their_names.values()}, folder)
    return {
        ours: (tensors[theirs].T if ours.endswith("/kernel") else tensors[theirs]).astype(np.float32, copy=False)
        for ours, theirs in their_names.items()
    }


def _refuse_quantised(tensors: Mapping[str, np.ndarray], folder: str) -> None:
    """Raises ValueError for integer or 8-bit weights, which have no meaning without their scales."""
    for name, tensor in tensors.items():
        if tensor.dtype.name not in WEIGHT_TYPES:
            raise ValueError(
                f"{folder}: {name}: {tensor.dtype.name}: quantised weights are not supported; expected one of "
                f"{', '.join(WEIGHT_TYPES)}"
            )


def _read_labels(values: Mapping[str, Any], path: str) -> list[str]:
    """Returns the names of the classes in the order of the logits; [] if there are none. Raises ValueError if they are
    not numbered from 0.
    """
    labels = values.get("id2label") or {name: label for label, name in (values.get("label2id") or {}).items()}
    if not isinstance(labels, Mapping) or set(map(str, labels)) != set(map(str, range(len(labels)))):
        raise ValueError(f"{path}: id2label: expected the names of the classes 0, 1, 2, ..., got {str(labels)[:80]}")
    return [str(label) for _, label in sorted(labels.items(), key=lambda item: int(item[0]))]


def _read_kind(values: Mapping[str, Any], path: str, outputs: int) -> Kind:
    """Returns the kind of a classifier's answers from `problem_type`; without it, a single output is a score."""
    problem = values.get("problem_type")
    if problem is None:
        return "regression" if outputs == 1 else ""
    if not isinstance(problem, str) or problem not in KINDS or (problem == "regression" and outputs != 1):
        expected = "one score" if problem == "regression" else f"one of {', '.join(KINDS)}"
        raise ValueError(f"{path}: problem_type: expected {expected}, got {problem!r:.80} with {outputs} outputs")
    return KINDS[problem]


def _check_architecture(values: Mapping[str, Any], member: Member, model_type: str, path: str) -> str | None:
    """Returns the name of the model's class, which may be a user's own. Raises ValueError if it is not supported."""
    names, stem = values.get("architectures") or [], member.stems[model_type]
    if len(names) > 1 or (names and names[0] in {stem + ending for ending in OTHER_CLASSES}):
        raise ValueError(
            f"{path}: expected one of {', '.join(member.classes(model_type))}, or a class of your own, got "
            f"{', '.join(names)}"
        )
    return names[0] if names else None


def read_tensors(folder: str) -> dict[str, np.ndarray]:
    """Returns all tensors of a folder, from one file or several. Prefers safetensors."""
    for name, (load, load_piece) in READERS.items():
        path, index = os.path.join(folder, name), os.path.join(folder, f"{name}.index.json")
        if os.path.exists(path):
            return load(path)
        if os.path.exists(index):
            return {key: tensor for shard in _shards(index, folder) for key, tensor in load_piece(shard).items()}
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


def _with_usual_prefix(tensors: Mapping[str, np.ndarray], member: Member, folder: str) -> dict[str, np.ndarray]:
    """Returns the tensors with the encoder's usual prefix, whatever prefix a user's class or Lightning gave it, such as
    `model.encoder.` or `module.bert.`.

    Raises ValueError if there are several encoders.
    """
    words = "embeddings.word_embeddings.weight"
    encoders = [name.removesuffix(words) for name in tensors if name.endswith(words)]
    if len(encoders) > 1:
        raise ValueError(f"{folder}: expected one encoder, got {len(encoders)}, {' and '.join(map(repr, encoders))}")
    if not encoders or encoders[0] in ("", member.prefix):
        return dict(tensors)
    outer = encoders[0].removesuffix(member.prefix)  # of the heads beside the encoder, if it has one
    return {
        f"{member.prefix}{name.removeprefix(encoders[0])}"
        if name.startswith(encoders[0])
        else name.removeprefix(outer): tensor
        for name, tensor in tensors.items()
    }


def _unusable_heads(tensors: Mapping[str, np.ndarray], member: Member, hidden_size: int) -> list[str]:
    """Returns the names of head tensors in a user's class that cannot be used: those of incomplete heads, of heads for
    other widths, or of several kinds of heads.
    """
    heads: dict[str, dict[str, str]] = {}
    table = member.table()
    for ours, theirs in table.all_ours(tensors)[0].items():
        if prefix := next((prefix for prefix in stored_models.HEAD_PREFIXES if ours.startswith(prefix)), None):
            heads.setdefault(prefix, {})[ours] = theirs
    whole = [
        prefix
        for prefix, names in heads.items()
        if {*names} == {ours for ours, _ in table.rows if ours.startswith(prefix)}
        and all(
            tensors[theirs].shape[-1] == hidden_size
            for ours, theirs in names.items()
            if ours.endswith("/output_weights")
        )
    ]
    kinds = {stored_models.HEAD_PREFIXES[prefix] for prefix in whole}
    return [
        theirs for prefix, names in heads.items() if prefix not in whole or len(kinds) > 1 for theirs in names.values()
    ]


def _drop_copies(tensors: dict[str, np.ndarray], member: Member, folder: str) -> None:
    """Removes buffers and second names of weights. A tensor that has only its second name gets the first.

    Raises ValueError if the tensor under the second name differs.
    """
    for name in (member.prefix + name for name in USUAL_BUFFERS):
        tensors.pop(name, None)
    for copy, original in member.tied.items():
        if copy in tensors and original not in tensors:
            tensors[original] = tensors.pop(copy)
        if copy in tensors and not np.array_equal(tensors.pop(copy), tensors.get(original, ())):
            raise ValueError(
                f"{folder}: {copy} is not {original}: a model with untied output embeddings is not supported"
            )


def as_tensors(weights: Mapping[str, np.ndarray], table: NameTable) -> dict[str, np.ndarray]:
    """Returns our weights under the folder's names, kernels as [out, in].

    Raises ValueError if a weight has no name there.
    """
    matrices = {
        theirs: as_matrix(ours, weights[ours]).T if ours.endswith("/kernel") else as_matrix(ours, weights[ours])
        for ours, theirs in table.all_theirs(weights, "a Hugging Face model").items()
    }
    return {theirs: np.ascontiguousarray(matrix) for theirs, matrix in matrices.items()}


def write(stored: StoredModel, folder: str) -> list[str]:
    """Writes the files of `save_pretrained`; returns our names of the weights that the Hugging Face class lacks.

    Raises ValueError if no Hugging Face class can compute the model.
    """
    config = stored_models.require_config(stored)
    stored_models.refuse_architecture(config, "Hugging Face's BERT")
    if stored.head == "decoder":
        return _write_both(stored, folder)
    member, model_type = member_for(config, stored.model_type)
    suffix, form = member.form_of(stored.head, stored.weights)
    architecture, table = member.stems[model_type] + suffix, NameTable([*member.encoder, *form.rows])
    left_out = [
        name for name in stored.weights if name.startswith(("pooler/", "boundary/")) and table.theirs(name) is None
    ]
    own = {
        name: weight
        for name, weight in stored.weights.items()
        if name not in left_out and not name.startswith(LAYER_PREFIX)
    }
    prefix = "" if stored.head else member.prefix
    named = {name.removeprefix(prefix): tensor for name, tensor in as_tensors(own, table).items()}
    tensors = member.pack(named, config)
    save_file(tensors, os.path.join(folder, WEIGHTS_FILE), metadata={"format": "pt"})
    padding = {"pad_token_id": tokenizers.pad_id(stored)}
    values = (
        {"architectures": [architecture], "model_type": model_type}
        | padding
        | {"position_embedding_type": "absolute", "tie_word_embeddings": True, "torch_dtype": "float32"}
        | member.write_config(config)
    )
    stored_models.write_mapping(values | _label_values(stored), os.path.join(folder, CONFIG_FILE))
    _write_tokenizer(stored, config, folder)
    if stored.pooling and not stored.head:
        sentence_transformers.write_modules(stored, config.hidden_size, folder)
    return left_out


def _write_tokenizer(stored: StoredModel, config: ModelConfig, folder: str) -> None:
    if stored.tokenizer:
        tokenizer_files.write_files(stored.tokenizer, folder)
    elif stored.vocab is not None:
        stored_models.write_vocab(stored, folder)
        tokenizers.write(stored, config.longest_row, folder)


def _write_both(stored: StoredModel, folder: str) -> list[str]:
    """Writes an encoder and its decoder; no weight is left out."""
    tensors, values, search = encoder_decoder.write(stored, as_tensors, tokenizers.pad_id(stored))
    save_file(tensors, os.path.join(folder, WEIGHTS_FILE), metadata={"format": "pt"})
    for file, content in ((CONFIG_FILE, values), (encoder_decoder.SEARCH_FILE, search)):
        stored_models.write_mapping(content, os.path.join(folder, file))
    _write_tokenizer(stored, stored_models.require_config(stored), folder)
    return []


def _label_values(stored: StoredModel) -> dict[str, Any]:
    if stored.head not in ("classifier", "tagger"):
        return {}
    labels = stored_models.class_names(stored)
    problems = {kind: problem for problem, kind in KINDS.items()}
    return ({"problem_type": problems[stored.kind]} if stored.head == "classifier" and stored.kind else {}) | {
        "id2label": {str(index): label for index, label in enumerate(labels)},
        "label2id": {label: index for index, label in enumerate(labels)},
    }
