"""MPNet (Song et al. 2020): RoBERTa's heads and positions, no segments, and a table of distances that all layers share."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from official_bert.model_config import ModelConfig
from official_bert.models.interchange.members import roberta
from official_bert.models.interchange.members.member import USUAL_KEYS, Member, layers, tables

BUCKETS, TABLE = 32, "mpnet.encoder.relative_attention_bias.weight"


def buckets(values: Mapping[str, Any]) -> dict[str, Any]:
    """Their code counts in 32 buckets, whatever the number of rows in `config.json`; fewer rows make it fail."""
    if (rows_there := values["relative_attention_num_buckets"]) < BUCKETS:
        raise ValueError(f"relative_attention_num_buckets: expected at least {BUCKETS}, which the code counts in, got {rows_there}")
    return {"relative_buckets": BUCKETS, "first_position": 2, "type_vocab_size": 0}


def their_values(config: ModelConfig) -> dict[str, Any]:
    """The reverse of `buckets`."""
    return {"relative_attention_num_buckets": config.relative_buckets, "pad_token_id": config.first_position - 1}


def used_buckets(tensors: dict[str, np.ndarray], _: ModelConfig) -> dict[str, np.ndarray]:
    """Leaves out rows beyond the buckets: no distance has them."""
    return {name: tensor[:BUCKETS] if name == TABLE else tensor for name, tensor in tensors.items()}


MPNET = Member(
    stems={"mpnet": "MPNet"}, prefix="mpnet.",
    encoder=(*tables("mpnet.", ("word_embeddings", "position_embeddings")), ("relative_positions/table", TABLE),
             *layers("mpnet.encoder.layer.{i}.", {
                 "attention/query": "attention.attn.q", "attention/key": "attention.attn.k", "attention/value": "attention.attn.v",
                 "attention/output": "attention.attn.o", "attention_LayerNorm": "attention.LayerNorm"})),
    forms=roberta.forms("mpnet."), tied=roberta.tied("mpnet."),
    keys={ours: theirs for ours, theirs in USUAL_KEYS.items() if ours != "type_vocab_size"},
    fixed={"masked_lm_act": "gelu_erf"}, fields=buckets, values=their_values, used=("relative_attention_num_buckets",),
    defaults={"relative_attention_num_buckets": BUCKETS, "vocab_size": 30527, "layer_norm_eps": 1e-12}, unpack=used_buckets)
