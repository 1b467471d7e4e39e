"""Folders of Hugging Face's BERT (PyTorch classes), read and written without PyTorch.

Matrices are [out, in] there and [in, out] here. `hidden_act: gelu` is the erf form there (our `gelu_erf`) and the tanh form in
Google's configurations (our `gelu`, their `gelu_new`).
"""

import os
from collections.abc import Mapping
from typing import Any

import numpy as np
import safetensors
from safetensors.numpy import save_file

from official_bert.config import ModelConfig, build
from official_bert.models.interchange import stored_models
from official_bert.models.interchange.names import DENSE, NORM, OUTPUT, NameTable, as_matrix, rows
from official_bert.models.interchange.projects import hugging_face_tokenizers as tokenizers
from official_bert.models.interchange.projects import sentence_transformers, torch_pickle
from official_bert.models.interchange.stored_models import Head, Kind, StoredModel

NAME = "Hugging Face folder"
CONFIG_FILE = "config.json"
WEIGHTS_FILE, TORCH_FILE = "model.safetensors", "pytorch_model.bin"
LAYER = "bert.encoder.layer.{i}."
LINEAR = ("weight", "bias")
TABLE = NameTable([
    *((f"embeddings/{name}", f"bert.embeddings.{name}.weight")
      for name in ("word_embeddings", "token_type_embeddings", "position_embeddings")),
    *rows("embeddings/LayerNorm/", "bert.embeddings.LayerNorm.", NORM, LINEAR),
    *rows("layer_{i}/attention/query/", LAYER + "attention.self.query.", DENSE, LINEAR),
    *rows("layer_{i}/attention/key/", LAYER + "attention.self.key.", DENSE, LINEAR),
    *rows("layer_{i}/attention/value/", LAYER + "attention.self.value.", DENSE, LINEAR),
    *rows("layer_{i}/attention/output/", LAYER + "attention.output.dense.", DENSE, LINEAR),
    *rows("layer_{i}/attention_LayerNorm/", LAYER + "attention.output.LayerNorm.", NORM, LINEAR),
    *rows("layer_{i}/intermediate/", LAYER + "intermediate.dense.", DENSE, LINEAR),
    *rows("layer_{i}/output/", LAYER + "output.dense.", DENSE, LINEAR),
    *rows("layer_{i}/output_LayerNorm/", LAYER + "output.LayerNorm.", NORM, LINEAR),
    *rows("pooler/", "bert.pooler.dense.", DENSE, LINEAR),
    *rows("masked_lm/transform/", "cls.predictions.transform.dense.", DENSE, LINEAR),
    *rows("masked_lm/LayerNorm/", "cls.predictions.transform.LayerNorm.", NORM, LINEAR),
    *rows("masked_lm/output_bias", "cls.predictions.bias"),
    *rows("next_sentence/", "cls.seq_relationship.", OUTPUT, LINEAR),
    *rows("classifier/", "classifier.", OUTPUT, LINEAR),
    *rows("tagger/", "classifier.", OUTPUT, LINEAR),
    *rows("span/", "qa_outputs.", OUTPUT, LINEAR),
])
ARCHITECTURES: Mapping[str, Head] = {
    "BertModel": "", "BertForPreTraining": "pretraining", "BertForMaskedLM": "pretraining",
    "BertForNextSentencePrediction": "pretraining", "BertForSequenceClassification": "classifier",
    "BertForMultipleChoice": "choice", "BertForTokenClassification": "tagger", "BertForQuestionAnswering": "span"}
OTHER_ARCHITECTURES = ("BertLMHeadModel", "BertGenerationEncoder", "BertGenerationDecoder")  # not computed here
KINDS: Mapping[str, Kind] = {"single_label_classification": "classifier", "multi_label_classification": "multi_label",
                             "regression": "regression"}
HIDDEN_ACTS = {"gelu": "gelu_erf", "gelu_python": "gelu_erf", "gelu_new": "gelu", "gelu_pytorch_tanh": "gelu",
               "gelu_fast": "gelu", "relu": "relu", "tanh": "tanh", "linear": "linear"}
OUR_HIDDEN_ACTS = {"gelu_erf": "gelu", "gelu": "gelu_new", "relu": "relu", "tanh": "tanh", "linear": "linear"}
# Tensors that are not weights: positions 0, 1, 2, ... and segment 0, which some versions keep as buffers.
BUFFERS = ("bert.embeddings.position_ids", "bert.embeddings.token_type_ids")
# Second names of weights; files of some versions have both.
TIED = {"cls.predictions.decoder.weight": "bert.embeddings.word_embeddings.weight",
        "cls.predictions.decoder.bias": "cls.predictions.bias"}
COPIED = ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "hidden_dropout_prob",
          "attention_probs_dropout_prob", "max_position_embeddings", "type_vocab_size", "initializer_range")
# Switches that change the computation, with their values for BERT.
SWITCHES = {"position_embedding_type": ("absolute", None), "is_decoder": (False, None), "add_cross_attention": (False, None),
            "pruned_heads": ({}, None), "quantization_config": (None,)}


def read(folder: str) -> StoredModel:
    """Reads the model of a folder. Raises ValueError for another architecture, damaged files, untied output embeddings."""
    path = next((path for name in (CONFIG_FILE, stored_models.BERT_CONFIG_FILE) if os.path.exists(path := os.path.join(folder, name))),
                os.path.join(folder, CONFIG_FILE))
    values = stored_models.read_mapping(path)
    architecture = _check_architecture(values, path)
    tensors = read_tensors(folder)
    own_class = architecture not in (None, *ARCHITECTURES)
    if own_class:
        tensors = _with_usual_prefix(tensors, folder)
    named = {_usual_name(name): tensor for name, tensor in tensors.items()}
    if len(named) < len(tensors):
        raise ValueError(f"{folder}: several tensors claim one name, once with and once without the prefix bert.")
    _drop_copies(named, folder)
    known, unknown = TABLE.all_ours(named)
    weights = {ours: (named[theirs].T if ours.endswith("/kernel") else named[theirs]).astype(np.float32, copy=False)
               for ours, theirs in known.items()}
    narrow = {str(named[theirs].dtype) for theirs in known.values()} - {"float32"}
    notes = [f"{' and '.join(sorted(narrow))} weights were made float32"] if narrow else []
    config = build(ModelConfig, model_values(values, path), path)
    if own_class and (unusable := _unusable_heads(weights, config.hidden_size)):
        unknown += [known[name] for name in unusable]
        weights = {name: weight for name, weight in weights.items() if name not in unusable}
    head = ARCHITECTURES[architecture] if architecture and not own_class else stored_models.head_of(weights, folder)
    if head == "tagger":
        weights = {name.replace("classifier/", "tagger/"): weight for name, weight in weights.items()}
    if config.hidden_act == "gelu_erf":
        notes.append("hidden_act gelu is Hugging Face's, the erf form: gelu_erf here")
    vocab, pooling = tokenizers.read_vocab(folder), "" if head else sentence_transformers.read_pooling(folder)
    warnings = [*sentence_transformers.remarks(pooling), *tokenizers.remarks(folder, vocab)]
    if own_class:
        warnings.append(f"{architecture} is a class of its own, read by the names of its weights "
                        f"({f'head: {head}' if head else 'the encoder'}); what it computes otherwise is not done here")
    return StoredModel(origin=f"{NAME} {folder} ({architecture or 'BERT'})", weights=weights, table=TABLE, config=config,
                       head=head, unknown=unknown, notes=notes, vocab=vocab, pooling=pooling, warnings=warnings,
                       do_lower_case=tokenizers.read_do_lower_case(folder),
                       labels=_read_labels(values, path) if head in ("classifier", "tagger") else [],
                       kind=_read_kind(values, path, len(weights.get("classifier/output_bias", ()))) if head == "classifier" else "")


def _read_labels(values: Mapping[str, Any], path: str) -> list[str]:
    """Reads the names of the classes in the order of the logits; [] if there are none. Raises ValueError if they are not numbered."""
    labels = values.get("id2label") or {name: label for label, name in (values.get("label2id") or {}).items()}
    if not isinstance(labels, Mapping) or set(map(str, labels)) != set(map(str, range(len(labels)))):
        raise ValueError(f"{path}: id2label: expected the names of the classes 0, 1, 2, ..., got {str(labels)[:80]}")
    return [str(label) for _, label in sorted(labels.items(), key=lambda item: int(item[0]))]


def _read_kind(values: Mapping[str, Any], path: str, outputs: int) -> Kind:
    """Reads the kind of a classifier's answers: `problem_type`; without it, one output is a score."""
    problem = values.get("problem_type")
    if problem is None:
        return "regression" if outputs == 1 else ""
    if problem not in KINDS or (problem == "regression" and outputs != 1):
        wanted = "one score" if problem == "regression" else f"one of {', '.join(KINDS)}"
        raise ValueError(f"{path}: problem_type: expected {wanted}, got {problem!r} with {outputs} outputs")
    return KINDS[problem]


def _check_architecture(values: Mapping[str, Any], path: str) -> str | None:
    """Returns the class of the model, which may be one of a user's own. Raises ValueError if it is not a BERT that can be computed here."""
    named = values.get("architectures") or []
    kind = values.get("model_type", "bert")
    if kind != "bert":
        raise ValueError(f"{path}: expected a BERT model, got model_type {kind!r} ({', '.join(named) or 'no architectures'})")
    if len(named) > 1 or (named and named[0] in OTHER_ARCHITECTURES):
        raise ValueError(f"{path}: expected one of {', '.join(ARCHITECTURES)}, or a class of your own, got {', '.join(named)}")
    for key, usual in SWITCHES.items():
        if values.get(key) not in usual:
            raise ValueError(f"{path}: {key}: {values[key]!r} is not computed here; expected {usual[0]!r}")
    return named[0] if named else None


def model_values(values: Mapping[str, Any], path: str) -> dict[str, Any]:
    """Translates a `config.json` to the keys of ModelConfig."""
    act = values.get("hidden_act", "gelu")
    if act not in HIDDEN_ACTS:
        raise ValueError(f"{path}: hidden_act: expected one of {sorted(HIDDEN_ACTS)}, got {act!r}")
    return {key: values[key] for key in COPIED if key in values} | {
        "hidden_act": HIDDEN_ACTS[act], "layer_norm_epsilon": values.get("layer_norm_eps", 1e-12)}


def read_tensors(folder: str) -> dict[str, np.ndarray]:
    """Reads all tensors of a folder, from one file or several; prefers safetensors."""
    for name, load in ((WEIGHTS_FILE, _load_safetensors), (TORCH_FILE, torch_pickle.load_tensors)):
        path, index = os.path.join(folder, name), os.path.join(folder, f"{name}.index.json")
        if os.path.exists(path):
            return load(path)
        if os.path.exists(index):
            parts = sorted(set(stored_models.read_mapping(index).get("weight_map", {}).values()))
            if missing := [part for part in parts if not os.path.exists(os.path.join(folder, part))]:
                raise ValueError(f"{index}: names {missing[0]}, which is not there")
            return {key: tensor for part in parts for key, tensor in load(os.path.join(folder, part)).items()}
    raise ValueError(f"{folder}: expected {WEIGHTS_FILE} or {TORCH_FILE}, got {', '.join(sorted(os.listdir(folder))[:8])}")


def _load_safetensors(path: str) -> dict[str, np.ndarray]:
    try:
        with safetensors.safe_open(path, framework="numpy") as file:
            return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (safetensors.SafetensorError, TypeError, KeyError) as error:
        raise ValueError(f"{path}: damaged safetensors file: {error}") from None


def _usual_name(name: str) -> str:
    """A tensor's name with the prefix `bert.` of models with heads, and with the layer norms' names since 2019."""
    if name.startswith(("embeddings.", "encoder.", "pooler.")):
        name = f"bert.{name}"
    return name.replace("LayerNorm.gamma", "LayerNorm.weight").replace("LayerNorm.beta", "LayerNorm.bias")


def _with_usual_prefix(tensors: Mapping[str, np.ndarray], folder: str) -> dict[str, np.ndarray]:
    """Names the encoder's tensors `bert.`, whatever a class of one's own calls it, such as `model.encoder.` or `module.bert.`.

    Raises ValueError for several encoders.
    """
    words = "embeddings.word_embeddings.weight"
    encoders = [name.removesuffix(words) for name in tensors if name.endswith(words)]
    if len(encoders) > 1:
        raise ValueError(f"{folder}: expected one encoder, got {len(encoders)}, {' and '.join(map(repr, encoders))}")
    if not encoders or encoders[0] in ("", "bert."):
        return dict(tensors)
    outer = encoders[0].removesuffix("bert.")  # of the heads beside the encoder, if it has one
    return {f"bert.{name.removeprefix(encoders[0])}" if name.startswith(encoders[0]) else name.removeprefix(outer): tensor
            for name, tensor in tensors.items()}


def _unusable_heads(weights: Mapping[str, np.ndarray], hidden_size: int) -> list[str]:
    """Returns our names of the head's weights, in a class of one's own, that are not all of one head for BERT's vectors."""
    heads: dict[str, list[str]] = {}
    for name in weights:
        if prefix := next((prefix for prefix in stored_models.HEAD_PREFIXES if name.startswith(prefix)), None):
            heads.setdefault(prefix, []).append(name)
    whole = [prefix for prefix, names in heads.items() if {*names} == {ours for ours, _ in TABLE.rows if ours.startswith(prefix)}
             and all(weights[name].shape[-1] == hidden_size for name in names if name.endswith("/output_weights"))]
    kinds = {stored_models.HEAD_PREFIXES[prefix] for prefix in whole}
    return [name for prefix, names in heads.items() if prefix not in whole or len(kinds) > 1 for name in names]


def _drop_copies(named: dict[str, np.ndarray], folder: str) -> None:
    """Drops buffers and second names of weights. Raises ValueError if a second name has another tensor."""
    for name in BUFFERS:
        named.pop(name, None)
    for copy, original in TIED.items():
        if copy in named and not np.array_equal(named.pop(copy), named.get(original, ())):
            raise ValueError(f"{folder}: {copy} is not {original}: a model with output words of its own is not computed here")


def write(stored: StoredModel, folder: str) -> list[str]:
    """Writes the files of `save_pretrained`; returns our names of the weights that their class does not have."""
    config, architecture = stored_models.require_config(stored), architecture_of(stored)
    stored_models.refuse_architecture(config, "Hugging Face's BERT")
    left_out = [] if stored_models.needs_pooler(stored) else [name for name in stored.weights if name.startswith("pooler/")]
    tensors = {}
    for ours, theirs in TABLE.all_theirs(stored.weights, "a Hugging Face model").items():
        if ours not in left_out:
            matrix = as_matrix(ours, stored.weights[ours])
            name = theirs.removeprefix("bert.") if architecture == "BertModel" else theirs
            tensors[name] = np.ascontiguousarray(matrix.T if ours.endswith("/kernel") else matrix)
    save_file(tensors, os.path.join(folder, WEIGHTS_FILE), metadata={"format": "pt"})
    values = {"architectures": [architecture], "model_type": "bert"} | {key: getattr(config, key) for key in COPIED} | {
        "hidden_act": OUR_HIDDEN_ACTS[config.hidden_act], "layer_norm_eps": config.layer_norm_epsilon,
        "position_embedding_type": "absolute", "tie_word_embeddings": True, "torch_dtype": "float32"}
    padding = {"pad_token_id": list(stored.vocab).index("[PAD]") if stored.vocab and "[PAD]" in stored.vocab else 0}
    stored_models.write_mapping(values | _label_values(stored) | padding, os.path.join(folder, CONFIG_FILE))
    stored_models.write_vocab(stored, folder)
    if stored.vocab is not None:
        tokenizers.write(stored, config.max_position_embeddings, folder)
    if stored.pooling in ("cls", "mean") and not stored.head:
        sentence_transformers.write_pooling(stored.pooling, config.hidden_size, folder)
    return left_out


def architecture_of(stored: StoredModel) -> str:
    """Their class that computes the same as the model."""
    if stored.head == "pretraining":
        words, sentences = "masked_lm/output_bias" in stored.weights, "next_sentence/output_bias" in stored.weights
        return {(True, True): "BertForPreTraining", (True, False): "BertForMaskedLM"}.get(
            (words, sentences), "BertForNextSentencePrediction")
    return next(name for name, head in ARCHITECTURES.items() if head == stored.head)


def _label_values(stored: StoredModel) -> dict[str, Any]:
    if stored.head not in ("classifier", "tagger"):
        return {}
    labels = stored_models.class_names(stored)
    problems = {kind: problem for problem, kind in KINDS.items()}
    return ({"problem_type": problems[stored.kind]} if stored.head == "classifier" and stored.kind else {}) | {
        "id2label": {str(index): label for index, label in enumerate(labels)},
        "label2id": {label: index for index, label in enumerate(labels)}}
