"""Reads and writes folders of Hugging Face's BERT and its relatives (PyTorch classes), and of sentence-transformers,
without PyTorch.

`hidden_act: gelu` is the erf form there (our `gelu_erf`) and the tanh form in Google's configurations (our `gelu`,
their `gelu_new`).
"""

import os
from collections.abc import Iterable, Mapping

from safetensors.numpy import save_file

from official_bert.config import ModelConfig, build
from official_bert.models.interchange import stored_models
from official_bert.models.interchange.members.family import member_for, member_of
from official_bert.models.interchange.members.member import Fields, Form, Member, Values
from official_bert.models.interchange.names import NameTable, Tensors, Weights, with_prefix
from official_bert.models.interchange.projects import encoder_decoder, sentence_transformers
from official_bert.models.interchange.projects import hugging_face_tokenizers as tokenizers
from official_bert.models.interchange.projects.hugging_face_tensors import (
    WEIGHTS_FILE,
    as_tensors,
    as_weights,
    read_tensors,
    usual_tensors,
    with_usual_prefix,
)
from official_bert.models.interchange.stored_models import Kind, StoredModel
from official_bert.models.vector_layers import LAYER_PREFIX
from official_bert.storage.files import read_mapping
from official_bert.text.subwords import tokenizer_files

NAME = "Hugging Face folder"
CONFIG_FILE = "config.json"
# endings of names; not computed here
OTHER_CLASSES = ("LMHeadModel", "ForCausalLM", "GenerationEncoder", "GenerationDecoder")
KINDS: Mapping[str, Kind] = {
    "single_label_classification": "classifier",
    "multi_label_classification": "multi_label",
    "regression": "regression",
}


def read(folder: str) -> StoredModel:
    """Returns the model in a folder. Raises ValueError for other architectures, damaged files, and output embeddings
    that are not tied.
    """
    there = os.listdir(folder)
    names = (CONFIG_FILE, stored_models.BERT_CONFIG_FILE)
    path = os.path.join(folder, next((name for name in names if name in there), CONFIG_FILE))
    values = read_mapping(path)
    if values.get("model_type") == encoder_decoder.MODEL_TYPE:
        fields = encoder_decoder.read(folder, values, path)
        title = f"{NAME} {folder} ({encoder_decoder.ARCHITECTURE})"
        return StoredModel(origin=title, **fields, **tokenizers.read(folder))
    return _read_class(folder, values, path)


def _read_class(folder: str, values: Values, path: str) -> StoredModel:
    """Returns the model of one of Hugging Face's classes, or of a user's own, with this config.json at `path`."""
    member, model_type = member_of(values, path)
    architecture = _check_architecture(values, member, model_type, path)
    config = build(ModelConfig, member.read_config(values, path), path)
    form = member.classes(model_type).get(architecture or "")
    own_class = architecture is not None and form is None
    tensors, left_out = _usual_parts(with_usual_prefix(read_tensors(folder), member, folder), member)
    tensors = usual_tensors(tensors, member, config, folder)
    unusable = _unusable_heads(tensors, member, config.hidden_size) if own_class else []
    usable = [name for name in tensors if name not in unusable]
    if form is None or not (member.heads_by_class or any(name in tensors for name in form.of_head().values())):
        form = _form_of_tensors(usable, member, folder)
    table, head = member.table(form), form.head
    their_names, unknown = table.all_ours(usable)
    weights = as_weights(tensors, their_names, folder)
    notes = _notes({str(tensors[name].dtype) for name in their_names.values()}, config)
    of_tokenizer = tokenizers.read(folder)
    vectors, vector_weights = sentence_transformers.read(folder, head, config.hidden_size, read_tensors)
    why_no_vectors = [*filter(None, [vectors.get("why_no_vectors")])]
    warnings = [*why_no_vectors, *tokenizers.remarks(folder, of_tokenizer["vocab"]), *left_out]
    if own_class:
        warnings.append(
            f"{architecture} is not a class of Hugging Face; it is read by the names of its weights "
            f"({f'head: {head}' if head else 'the encoder'}), without its other computations"
        )
    return StoredModel(
        origin=f"{NAME} {folder} ({architecture or member.title})",
        weights=weights | vector_weights,
        table=table,
        config=config,
        model_type=model_type,
        head=head,
        unknown=[*unknown, *unusable],
        notes=[*notes, *member.remarks(values)],
        warnings=warnings,
        **of_tokenizer,
        **vectors,
        sentence_task=member.sentence_task if "next_sentence/output_bias" in weights else "",
        labels=_read_labels(values, path) if head in ("classifier", "tagger") else [],
        kind=_read_kind(values, path, len(weights.get("classifier/output_bias", ()))) if head == "classifier" else "",
    )


def _usual_parts(tensors: Weights, member: Member) -> tuple[Weights, list[str]]:
    """Returns the tensors without those that the member leaves out, and the warnings about these."""
    parts = [part for part in member.left_out if any(part in name for name in tensors)]
    kept = {name: tensor for name, tensor in tensors.items() if not any(part in name for part in parts)}
    return kept, [member.left_out[part] for part in parts]


def _form_of_tensors(names: Iterable[str], member: Member, folder: str) -> Form:
    """Returns the class with the head that tensors of these names belong to."""
    head = stored_models.head_of(member.table().all_ours(names)[0], folder)
    return next(form for form in member.forms.values() if form.head == head)


def _unusable_heads(tensors: Weights, member: Member, hidden_size: int) -> list[str]:
    """Returns the names of head tensors in a user's class that cannot be used: those of incomplete heads, of heads for
    other widths, or of several kinds of heads.
    """
    table = member.table()
    names, rows = table.all_ours(tensors)[0], dict(table.rows)
    heads = {prefix: head for prefix in stored_models.HEAD_PREFIXES if (head := with_prefix(names, prefix))}
    usable = {
        prefix
        for prefix, head in heads.items()
        if head.keys() == with_prefix(rows, prefix).keys()
        and all(
            tensors[theirs].shape[-1] == hidden_size for ours, theirs in head.items() if ours.endswith("output_weights")
        )
    }
    if len({stored_models.HEAD_PREFIXES[prefix] for prefix in usable}) > 1:
        usable = set()
    return [*with_prefix(names, *(heads.keys() - usable)).values()]


def _notes(types: set[str], config: ModelConfig) -> list[str]:
    """Returns notes on weights of narrower `types`, and on the activation."""
    notes = []
    if narrow := sorted(types - {"float32"}):
        notes.append(f"{' and '.join(narrow)} weights were converted to float32")
    if config.hidden_act == "gelu_erf":
        notes.append("hidden_act gelu means the erf form, which is gelu_erf here")
    return notes


def _read_labels(values: Values, path: str) -> list[str]:
    """Returns the names of the classes in the order of the logits; [] if there are none. Raises ValueError if they are
    not numbered from 0.
    """
    labels = values.get("id2label") or {name: label for label, name in (values.get("label2id") or {}).items()}
    if not isinstance(labels, Mapping) or set(map(str, labels)) != set(map(str, range(len(labels)))):
        raise ValueError(f"{path}: id2label: expected the names of the classes 0, 1, 2, ..., got {str(labels)[:80]}")
    return [str(label) for _, label in sorted(labels.items(), key=lambda item: int(item[0]))]


def _read_kind(values: Values, path: str, outputs: int) -> Kind:
    """Returns the kind of a classifier's answers from `problem_type`; without it, a single output is a score."""
    problem = values.get("problem_type")
    if problem is None:
        return "regression" if outputs == 1 else ""
    if not isinstance(problem, str) or problem not in KINDS or (problem == "regression" and outputs != 1):
        expected = "one score" if problem == "regression" else f"one of {', '.join(KINDS)}"
        raise ValueError(f"{path}: problem_type: expected {expected}, got {problem!r:.80} with {outputs} outputs")
    return KINDS[problem]


def _check_architecture(values: Values, member: Member, model_type: str, path: str) -> str | None:
    """Returns the name of the model's class, which may be a user's own. Raises ValueError if it is not supported."""
    names, stem = values.get("architectures") or [], member.stems[model_type]
    if len(names) > 1 or (names and names[0] in {stem + ending for ending in OTHER_CLASSES}):
        raise ValueError(
            f"{path}: expected one of {', '.join(member.classes(model_type))}, or a class of your own, got "
            f"{', '.join(names)}"
        )
    return names[0] if names else None


def write(stored: StoredModel, folder: str) -> list[str]:
    """Writes the files of `save_pretrained`; returns our names of the weights that the Hugging Face class lacks.

    Raises ValueError if no Hugging Face class can compute the model.
    """
    config, left_out = stored_models.require_config(stored), list[str]()
    stored_models.refuse_architecture(config, "Hugging Face's BERT")
    if stored.head == "decoder":
        tensors, values, search = encoder_decoder.write(stored, tokenizers.pad_id(stored))
        stored_models.write_mapping(search, folder, encoder_decoder.SEARCH_FILE)
    else:
        tensors, values, left_out = _as_class(stored, config)
    save_file(tensors, os.path.join(folder, WEIGHTS_FILE), metadata={"format": "pt"})
    stored_models.write_mapping(values, folder, CONFIG_FILE)
    if stored.tokenizer:
        tokenizer_files.write_files(stored.tokenizer, folder)
    elif stored.vocab is not None:
        stored_models.write_vocab(stored, folder)
        tokenizers.write(stored, config.longest_row, folder)
    if stored.pooling and not stored.head:
        sentence_transformers.write_modules(stored, config.hidden_size, folder)
    return left_out


def _as_class(stored: StoredModel, config: ModelConfig) -> tuple[Tensors, Fields, list[str]]:
    """Returns a model's tensors and `config.json` as one of Hugging Face's classes has them, and our names of the
    weights that the class lacks.
    """
    member, model_type = member_for(config, stored.model_type)
    suffix, form = member.form_of(stored.head, stored.weights)
    table = NameTable([*member.encoder, *form.rows])
    left_out = [name for name in with_prefix(stored.weights, "pooler/", "boundary/") if table.theirs(name) is None]
    own = {
        name: weight
        for name, weight in stored.weights.items()
        if name not in left_out and not name.startswith(LAYER_PREFIX)
    }
    prefix = "" if stored.head else member.prefix
    tensors = {name.removeprefix(prefix): tensor for name, tensor in as_tensors(own, table).items()}
    values = {
        "architectures": [member.stems[model_type] + suffix],
        "model_type": model_type,
        "pad_token_id": tokenizers.pad_id(stored),
        "position_embedding_type": "absolute",
        "tie_word_embeddings": True,
        "torch_dtype": "float32",
    }
    return member.pack(tensors, config), values | member.write_config(config) | _label_values(stored), left_out


def _label_values(stored: StoredModel) -> Fields:
    if stored.head not in ("classifier", "tagger"):
        return {}
    problem = next((problem for problem, kind in KINDS.items() if kind == stored.kind), None)
    labels = stored_models.class_names(stored)
    return ({"problem_type": problem} if stored.head == "classifier" and problem else {}) | {
        "id2label": {str(index): label for index, label in enumerate(labels)},
        "label2id": {label: index for index, label in enumerate(labels)},
    }
