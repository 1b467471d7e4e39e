"""Reads and writes keras-hub's `BertBackbone` and `BertTokenizer`, as objects or as a preset folder.

keras-hub uses the tanh form of GELU and epsilon 1e-12, and has one dropout rate. Our heads are beside the preset's
files, in `official_bert_heads.safetensors`, because keras-hub's own masked-LM head differs (erf GELU, epsilon 1e-5).
"""

import dataclasses
import json
import os
from collections.abc import Mapping, Sequence
from typing import Any, cast

import keras_hub
import numpy as np
from safetensors.numpy import save_file

from official_bert import json_values
from official_bert.config import ModelConfig, build
from official_bert.models.interchange import stored_models
from official_bert.models.interchange.names import DENSE, NORM, NameTable, layer_rows, rows
from official_bert.models.interchange.stored_models import Kind, StoredModel
from official_bert.storage.files import read_mapping
from official_bert.text.vocab import read_entries

NAME = "keras-hub preset"
CONFIG_FILE, HEADS_FILE, TASK_WEIGHTS_FILE = "config.json", "official_bert_heads.safetensors", "task.weights.h5"
TOKENIZER_FILE = "tokenizer.json"
# Arguments of BertBackbone, and fields of ModelConfig.
SIZES = {
    "vocabulary_size": "vocab_size",
    "num_layers": "num_hidden_layers",
    "num_heads": "num_attention_heads",
    "hidden_dim": "hidden_size",
    "intermediate_dim": "intermediate_size",
    "max_sequence_length": "max_position_embeddings",
    "num_segments": "type_vocab_size",
}
RATES = ("hidden_dropout_prob", "attention_probs_dropout_prob")
TABLE = NameTable(
    [
        *rows("embeddings/word_embeddings", "token_embedding/embeddings"),
        *rows("embeddings/token_type_embeddings", "segment_embedding/embeddings"),
        *rows("embeddings/position_embeddings", "position_embedding/embeddings"),
        *rows("embeddings/LayerNorm/", "embeddings_layer_norm/", NORM),
        *layer_rows(
            "transformer_layer_{i}/",
            {
                "attention/query": "self_attention_layer/query",
                "attention/key": "self_attention_layer/key",
                "attention/value": "self_attention_layer/value",
                "attention/output": "self_attention_layer/attention_output",
                "attention_LayerNorm": "self_attention_layer_norm",
                "intermediate": "feedforward_intermediate_dense",
                "output": "feedforward_output_dense",
                "output_LayerNorm": "feedforward_layer_norm",
            },
        ),
        *rows("pooler/", "pooled_dense/", DENSE),
    ]
)


def read(folder: str) -> StoredModel:
    """Returns the model of a preset folder. Raises ValueError for another architecture or a damaged preset."""
    where = os.path.join(folder, CONFIG_FILE)
    told = read_mapping(where)
    if told.get("class_name") != "BertBackbone":
        raise ValueError(f"{folder}: expected a keras-hub preset of BertBackbone, got {told.get('class_name')!s:.80}")
    config = _config(told.get("config"), where)
    tokenizer = None
    try:
        weights_file = _weights_file(folder, config)
        backbone = _backbone(config)
        backbone.load_weights(weights_file)
        if os.path.exists(os.path.join(folder, TOKENIZER_FILE)):
            tokenizer = _tokenizer(folder)
    except (OSError, KeyError, TypeError, ValueError) as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise ValueError(f"{folder}: keras-hub cannot read this preset: {reason}") from None
    heads, labels, kind = _read_heads(os.path.join(folder, HEADS_FILE))
    own_head = [TASK_WEIGHTS_FILE] if os.path.exists(os.path.join(folder, TASK_WEIGHTS_FILE)) else []
    notes = []
    if tokenizer is not None and tokenizer.lowercase and not tokenizer.strip_accents:
        notes.append("its tokenizer keeps accents (strip_accents); here lower-casing removes them, as in 2018")
    return dataclasses.replace(
        from_backbone(backbone, tokenizer, heads, labels, f"{NAME} {folder}", own_head), kind=kind, notes=notes
    )


def _config(told: Any, where: str) -> ModelConfig:
    """Returns the configuration of the backbone that a preset describes. keras-hub itself would make any number of
    layers.
    """
    if not isinstance(told, Mapping):
        raise ValueError(f"{where}: config: expected a mapping, got {told!s:.60}")
    try:
        sizes = {ours: told[theirs] for theirs, ours in SIZES.items() if theirs in told}
        return build(ModelConfig, sizes | dict.fromkeys(RATES, told.get("dropout", 0.1)))
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from None


def _weights_file(folder: str, config: ModelConfig) -> str:
    """Returns the file that keras-hub loads. Raises ValueError if the files are too small for a model of these sizes,
    whose memory is taken before they are read.
    """
    names = [name for name in os.listdir(folder) if name.endswith(".h5")]
    size = sum(os.path.getsize(os.path.join(folder, name)) for name in names)
    if config.estimated_weights > size:
        raise ValueError(f"expected {config.estimated_weights:,} weights, got {size:,} bytes of .h5 files")
    whole, index = (os.path.join(folder, name) for name in ("model.weights.h5", "model.weights.json"))
    return whole if os.path.exists(whole) else index


def _tokenizer(folder: str) -> keras_hub.tokenizers.BertTokenizer:
    told = read_mapping(os.path.join(folder, TOKENIZER_FILE)).get("config")
    if not isinstance(told, Mapping):
        raise ValueError(f"{TOKENIZER_FILE}: config: expected a mapping, got {told!s:.60}")
    return keras_hub.tokenizers.BertTokenizer(
        read_entries(os.path.join(folder, "assets/tokenizer/vocabulary.txt")),
        **{name: told.get(name) is True for name in ("lowercase", "strip_accents")},
    )


def from_backbone(
    backbone: keras_hub.models.BertBackbone,
    tokenizer: keras_hub.tokenizers.BertTokenizer | None = None,
    heads: Mapping[str, np.ndarray] | None = None,
    labels: Sequence[str] = (),
    origin: str = "keras-hub BertBackbone",
    unknown: Sequence[str] = (),
) -> StoredModel:
    """Returns a stored model from a backbone object, the vocabulary of a tokenizer object, and our `heads`."""
    variables = {variable.path.removeprefix(f"{backbone.name}/"): variable for variable in backbone.weights}
    known, left_over = TABLE.all_ours(variables)
    weights = dict(heads or {}) | {
        ours: np.asarray(variables[theirs].numpy(), np.float32) for ours, theirs in known.items()
    }
    config = _config(backbone.get_config(), origin)
    head = stored_models.head_of(weights, origin)
    if head == "classifier" and weights["classifier/output_bias"].shape == (1,) and labels == ["choice"]:
        head = "choice"
    return StoredModel(
        origin=origin,
        weights=weights,
        table=TABLE,
        config=config,
        unknown=[*unknown, *left_over],
        labels=labels,
        head=head,
        vocab=None if tokenizer is None else tokenizer.get_vocabulary(),
        do_lower_case=None if tokenizer is None else tokenizer.lowercase,
    )


def to_backbone(stored: StoredModel) -> keras_hub.models.BertBackbone:
    """Returns a backbone object with the model's weights.

    Raises ValueError for a model without a pooler, and for numerics that keras-hub lacks.
    """
    config = stored_models.require_config(stored)
    stored_models.refuse_architecture(config, "keras-hub's BertBackbone")
    stored_models.refuse_numerics(config, "keras-hub's BertBackbone", ("gelu",))
    if config.hidden_dropout_prob != config.attention_probs_dropout_prob:
        raise ValueError(
            f"keras-hub's BertBackbone has one dropout rate, the model {config.hidden_dropout_prob} and "
            f"{config.attention_probs_dropout_prob} (attention_probs_dropout_prob)"
        )
    backbone = _backbone(config)
    for variable in backbone.weights:
        ours = TABLE.ours(variable.path.removeprefix(f"{backbone.name}/"))
        if ours is None or ours not in stored.weights:
            raise ValueError(f"{stored.origin}: has no {ours}, which keras-hub's BertBackbone needs")
        variable.assign(stored.weights[ours].reshape(variable.shape))
    return backbone


def _backbone(config: ModelConfig) -> keras_hub.models.BertBackbone:
    sizes = {theirs: getattr(config, ours) for theirs, ours in SIZES.items()}
    return keras_hub.models.BertBackbone(**sizes, dropout=config.hidden_dropout_prob)


def to_tokenizer(stored: StoredModel) -> keras_hub.tokenizers.BertTokenizer:
    """Returns a tokenizer object; lower-casing strips accents, as in 2018."""
    lower = stored.do_lower_case is not False
    return keras_hub.tokenizers.BertTokenizer(list(stored.vocab or ()), lowercase=lower, strip_accents=lower)


def write(stored: StoredModel, folder: str) -> list[str]:
    """Writes a preset folder: backbone, tokenizer if there is a vocabulary, and heads.

    Returns [], because no weight is left out.
    """
    to_backbone(stored).save_to_preset(folder)
    if stored.vocab is not None:
        to_tokenizer(stored).save_to_preset(folder)
    heads = {
        name: np.ascontiguousarray(weight) for name, weight in stored.weights.items() if TABLE.theirs(name) is None
    }
    if heads:
        labels = ["choice"] if stored.head == "choice" else list(stored.labels)
        save_file(heads, os.path.join(folder, HEADS_FILE), metadata={"labels": json.dumps(labels), "kind": stored.kind})
    return []


def outputs(folder: str, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Returns the sequence and pooled outputs that keras-hub itself computes for our inputs."""
    backbone = keras_hub.models.BertBackbone.from_preset(folder)
    values = backbone(
        {"token_ids": inputs["input_ids"], "segment_ids": inputs["segment_ids"], "padding_mask": inputs["input_mask"]},
        training=False,
    )
    return {name: np.asarray(value) for name, value in values.items()}


def _read_heads(path: str) -> tuple[dict[str, np.ndarray], list[str], Kind]:
    if not os.path.exists(path):
        return {}, [], ""
    heads, facts = stored_models.read_safetensors(path)
    try:
        labels = json_values.parse(facts.get("labels", "[]"))
        if not isinstance(labels, list) or not all(isinstance(label, str) for label in labels):
            raise ValueError(f"expected a list of texts, got {str(labels)[:60]}")
    except ValueError as error:
        raise ValueError(f"{path}: labels: {error}") from None
    return heads, labels, cast(Kind, facts.get("kind", ""))
