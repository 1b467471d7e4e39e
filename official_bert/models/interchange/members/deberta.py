"""DeBERTa v3 and v2 (He et al. 2021): distances in the attention instead of positions; v2 may have a convolution."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from official_bert.model_config import ModelConfig
from official_bert.models.interchange.members.bert import WORDS, tied
from official_bert.models.interchange.members.member import USUAL_KEYS, Form, Member, dense, layers, norm, output, tables, usual_forms

# Names of `legacy: false`, by those of `legacy: true`, which are written.
NEWER = {"lm_predictions.lm_head.dense.": "cls.predictions.transform.dense.",
         "lm_predictions.lm_head.LayerNorm.": "cls.predictions.transform.LayerNorm.", "lm_predictions.lm_head.bias": "cls.predictions.bias"}
REPLACED = "mask_predictions."  # spelt classifer in the authors' code


def distances(values: Mapping[str, Any]) -> dict[str, Any]:
    """Buckets of distances, and the span beyond which all have the last."""
    types = values["pos_att_type"]
    if sorted(types.split("|") if isinstance(types, str) else types or ()) != ["c2p", "p2c"]:
        raise ValueError(f"pos_att_type: expected p2c and c2p, got {types!r}")
    if values["position_buckets"] < 1:
        raise ValueError(f"position_buckets: expected a number of buckets, got {values['position_buckets']}")
    if values.get("pooler_hidden_size", values["hidden_size"]) != values["hidden_size"]:
        raise ValueError(f"pooler_hidden_size: expected hidden_size {values['hidden_size']}, got {values['pooler_hidden_size']}")
    size = values["conv_kernel_size"] or 0
    if (size and size % 2 == 0) or values["conv_groups"] != 1:
        raise ValueError("conv_kernel_size: expected 0 or an odd number, with conv_groups 1, got "
                         f"{values['conv_kernel_size']} and {values['conv_groups']}")
    span = values["max_relative_positions"]
    return {"convolution": size, "distance_projections": not values["share_att_key"],
            "position_span": span if span > 0 else values["max_position_embeddings"]}


def their_distances(config: ModelConfig) -> dict[str, Any]:
    """The reverse of `distances`."""
    span = config.position_span
    return {"max_relative_positions": -1 if span == config.max_position_embeddings else span, "pos_att_type": ["p2c", "c2p"],
            "relative_attention": True, "position_biased_input": False, "norm_rel_ebd": "layer_norm",
            "share_att_key": not config.distance_projections, "conv_kernel_size": config.convolution, "conv_groups": 1,
            "pooler_hidden_size": config.hidden_size, "legacy": True}


def usual_names(tensors: dict[str, np.ndarray], _: ModelConfig) -> dict[str, np.ndarray]:
    """Gives a head for words of the newer form the names of the older.

    Published files of v3 hold the discriminator's head, and with it one for words, which only their generator used: it is left out.
    """
    if any(name.startswith(REPLACED) for name in tensors):
        tensors = {name.replace(f"{REPLACED}classifer.", f"{REPLACED}classifier."): tensor for name, tensor in tensors.items()
                   if not name.startswith(("cls.predictions.", "lm_predictions."))}

    def renamed(name: str) -> str:
        newer = next((newer for newer in NEWER if name.startswith(newer)), "")
        return NEWER[newer] + name.removeprefix(newer) if newer else name
    return {renamed(name): tensor for name, tensor in tensors.items()}


DEBERTA = Member(
    stems={"deberta-v2": "DebertaV2"}, prefix="deberta.",
    encoder=(*tables("deberta.", ("word_embeddings", "token_type_embeddings")),
             ("relative_positions/table", "deberta.encoder.rel_embeddings.weight"),
             *norm("relative_positions/LayerNorm/", "deberta.encoder.LayerNorm."),
             *layers("deberta.encoder.layer.{i}.", {
                 "attention/query": "attention.self.query_proj", "attention/key": "attention.self.key_proj",
                 "attention/value": "attention.self.value_proj", "attention/distance_query": "attention.self.pos_query_proj",
                 "attention/distance_key": "attention.self.pos_key_proj"}),
             *dense("convolution/", "deberta.encoder.conv.conv."),
             *norm("convolution/LayerNorm/", "deberta.encoder.conv.LayerNorm.")),
    forms={"Model": Form(""), "ForMaskedLM": Form("pretraining", WORDS),
           "ForPreTraining": Form("replaced", norm("replaced_LayerNorm/", f"{REPLACED}LayerNorm."),
                                  dense("replaced_transform/", f"{REPLACED}dense."), output("replaced/", f"{REPLACED}classifier.")),
           **usual_forms(dense("pooler/", "pooler.dense."))},
    tied=tied("deberta."),
    keys=USUAL_KEYS | {"position_buckets": "position_buckets", "pooler_act": "pooler_hidden_act", "convolution_act": "conv_act"},
    fields=distances, values=their_distances,
    switches={"relative_attention": (True,), "position_biased_input": (False,), "norm_rel_ebd": ("layer_norm",)},
    used=("pos_att_type", "share_att_key", "conv_kernel_size", "conv_groups", "max_relative_positions", "pooler_hidden_size"),
    unpack=usual_names,
    defaults={"vocab_size": 128100, "hidden_size": 1536, "num_hidden_layers": 24, "num_attention_heads": 24, "intermediate_size": 6144,
              "max_position_embeddings": 512, "type_vocab_size": 0, "layer_norm_eps": 1e-7, "relative_attention": False,
              "max_relative_positions": -1, "position_biased_input": True, "pos_att_type": None, "position_buckets": -1,
              "pooler_hidden_act": "gelu", "norm_rel_ebd": "none", "share_att_key": False, "conv_kernel_size": 0, "conv_groups": 1,
              "conv_act": "tanh"})
