"""RoBERTa, and XLM-R and CamemBERT, which have its weights over other vocabularies (Liu et al. 2019; docs/family.md)."""

from collections.abc import Mapping
from typing import Any

from official_bert.model_config import ModelConfig
from official_bert.models.interchange.members.member import Form, Member, dense, layers, tables, usual_forms, words


def forms(prefix: str) -> dict[str, Form]:
    """RoBERTa's classes over an encoder with this prefix; the head for classes has a pooler of its own."""
    pooler = dense("pooler/", f"{prefix}pooler.dense.")
    return {"Model": Form("", pooler), "ForMaskedLM": Form("pretraining", words("lm_head.dense.", "lm_head.layer_norm.", "lm_head.bias")),
            **usual_forms(pooler, own_pooler=True)}


def tied(prefix: str) -> dict[str, str]:
    """The second names of the word table and of the words' bias."""
    return {"lm_head.decoder.weight": f"{prefix}embeddings.word_embeddings.weight", "lm_head.decoder.bias": "lm_head.bias"}


def first_position(values: Mapping[str, Any]) -> dict[str, Any]:
    """Positions begin after the padding's, whose row is its id (fairseq)."""
    if not isinstance(row := values["pad_token_id"], int) or row < 0:
        raise ValueError(f"pad_token_id: expected the padding's id, which says where positions begin, got {row!r}")
    return {"first_position": row + 1}


def padding(config: ModelConfig) -> dict[str, Any]:
    """The reverse of `first_position`."""
    return {"pad_token_id": config.first_position - 1}


ROBERTA = Member(
    stems={"roberta": "Roberta", "xlm-roberta": "XLMRoberta", "camembert": "Camembert"}, prefix="roberta.",
    encoder=(*tables("roberta."), *layers("roberta.encoder.layer.{i}.")), forms=forms("roberta."),
    tied=tied("roberta."), fixed={"masked_lm_act": "gelu_erf"}, fields=first_position, values=padding, used=("pad_token_id",),
    defaults={"pad_token_id": 1, "layer_norm_eps": 1e-12})
