"""ALBERT (Lan et al. 2020): narrow embedding tables, and groups of layers that share their weights."""

import functools
import re
from collections.abc import Callable

from official_bert.model_config import ModelConfig
from official_bert.models.interchange.members.member import (
    USUAL_KEYS,
    Fields,
    Form,
    Member,
    Tensors,
    Values,
    dense,
    layers,
    output,
    tables,
    usual_forms,
    words,
)
from official_bert.models.interchange.names import DENSE, NameTable, googles_encoder, googles_heads, rows

# of groups of one layer, as all published models have
LAYER = "albert.encoder.albert_layer_groups.{i}.albert_layers.0."
# of a group and of a layer in it, in Hugging Face's and in Google's names
NUMBERS = re.compile(r"(albert_layer_groups\.|/group_)(\d+)(\.albert_layers\.|/inner_group_)(\d+)")
POOLER, WORDS = (
    dense("pooler/", "albert.pooler."),
    words("predictions.dense.", "predictions.LayerNorm.", "predictions.bias"),
)


def all_layers(values: Values) -> Fields:
    """Returns our number of layers: one of ALBERT's is a group of `inner_group_num` of ours.

    Raises ValueError without groups or without a width of the tables.
    """
    for key in ("num_hidden_groups", "embedding_size"):
        if values[key] == 0:
            raise ValueError(f"{key}: expected at least 1, got {values[key]}")
    for key in ("num_hidden_layers", "inner_group_num"):
        if type(values[key]) is not int:  # a list times a number is a long list
            raise ValueError(f"{key}: expected a number, got {str(values[key])[:60]}")
    return {"num_hidden_layers": values["num_hidden_layers"] * values["inner_group_num"]}


def their_layers(config: ModelConfig) -> Fields:
    """Returns ALBERT's number of layers: the reverse of `all_layers`."""
    return {"num_hidden_layers": config.num_hidden_layers // config.layers_in_group}


def numbered(name: str, config: ModelConfig) -> str:
    """Returns the name of a weight of either format with the number of its layer counted through all groups."""
    return NUMBERS.sub(
        lambda match: f"{match[1]}{int(match[2]) * config.layers_in_group + int(match[4])}{match[3]}0", name
    )


def grouped(name: str, config: ModelConfig) -> str:
    """Returns the name of a weight with the numbers of its group and its layer: the reverse of `numbered`."""

    def numbers(match: re.Match) -> str:
        group, layer = divmod(int(match[2]), config.layers_in_group)
        return f"{match[1]}{group}{match[3]}{layer}"

    return NUMBERS.sub(numbers, name)


def renamed(rename: Callable[[str, ModelConfig], str], tensors: Tensors, config: ModelConfig) -> Tensors:
    """Returns the tensors with other names."""
    return {rename(name, config): tensor for name, tensor in tensors.items()}


ALBERT = Member(
    stems={"albert": "Albert"},
    prefix="albert.",
    encoder=(
        *tables("albert."),
        *dense("embeddings/projection/", "albert.encoder.embedding_hidden_mapping_in."),
        *layers(
            LAYER,
            {
                "attention/query": "attention.query",
                "attention/key": "attention.key",
                "attention/value": "attention.value",
                "attention/output": "attention.dense",
                "attention_LayerNorm": "attention.LayerNorm",
                "intermediate": "ffn",
                "output": "ffn_output",
                "output_LayerNorm": "full_layer_layer_norm",
            },
        ),
    ),
    forms={
        "Model": Form("", POOLER),
        "ForPreTraining": Form("pretraining", POOLER, WORDS, output("next_sentence/", "sop_classifier.classifier.")),
        "ForMaskedLM": Form("pretraining", WORDS),
        **usual_forms(POOLER),
    },
    tied={
        "predictions.decoder.weight": "albert.embeddings.word_embeddings.weight",
        "predictions.decoder.bias": "predictions.bias",
    },
    keys={ours: theirs for ours, theirs in USUAL_KEYS.items() if ours != "num_hidden_layers"}
    | {"embedding_size": "embedding_size", "layer_groups": "num_hidden_groups", "layers_in_group": "inner_group_num"},
    fields=all_layers,
    values=their_layers,
    used=("num_hidden_layers",),
    unpack=functools.partial(renamed, numbered),
    pack=functools.partial(renamed, grouped),
    sentence_task="sop",
    defaults={
        "vocab_size": 30000,
        "embedding_size": 128,
        "hidden_size": 4096,
        "num_hidden_layers": 12,
        "num_hidden_groups": 1,
        "num_attention_heads": 64,
        "intermediate_size": 16384,
        "inner_group_num": 1,
        "hidden_act": "gelu_new",
        "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0,
    },
)
# Google's checkpoints (TF 1).
TF1_PARTS = {
    "attention/query": "attention_1/self/query",
    "attention/key": "attention_1/self/key",
    "attention/value": "attention_1/self/value",
    "attention/output": "attention_1/output/dense",
    "attention_LayerNorm": "LayerNorm",
    "intermediate": "ffn_1/intermediate/dense",
    "output": "ffn_1/intermediate/output/dense",
    "output_LayerNorm": "LayerNorm_1",
}
TF1_TABLE = NameTable(
    [
        *googles_encoder("bert/", "encoder/transformer/group_{i}/inner_group_0/", TF1_PARTS),
        *rows("embeddings/projection/", "bert/encoder/embedding_hidden_mapping_in/", DENSE),
        *googles_heads(),
    ]
)


def tf1_config(values: Values, path: str) -> Fields:
    """Returns the fields of ModelConfig for an `albert_config.json`, whose gelu is the tanh form."""
    act = values.get("hidden_act")
    return ALBERT.read_config({**values, "hidden_act": "gelu_new" if act == "gelu" else act}, path)


def tf1_values(config: ModelConfig) -> Fields:
    """Returns the values of an `albert_config.json`: the reverse of `tf1_config`."""
    values = ALBERT.write_config(config)
    return {key: value for key, value in values.items() if key != "layer_norm_eps"} | {"hidden_act": config.hidden_act}
