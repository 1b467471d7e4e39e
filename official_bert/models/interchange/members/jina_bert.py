"""JinaBERT v2 (Günther et al. 2023): ALiBi slopes instead of positions, gated units; and its variant for code.

Its `config.json` has `model_type: bert`; the authors' classes in `auto_map` distinguish the two.
"""

import functools
from typing import Any

from official_bert.model_config import ModelConfig
from official_bert.models.interchange.members.fused import Fused
from official_bert.models.interchange.members.member import (
    ACTS,
    OUR_ACTS,
    WORDS,
    Fields,
    Form,
    Member,
    Values,
    bert_tied,
    dense,
    layers,
    tables,
    usual_forms,
)

PREFIX = "bert."
POOLER = dense("pooler/", f"{PREFIX}pooler.dense.")
UNITS = {"geglu": "gelu_erf", "reglu": "relu"}  # the activation of the gate, whatever hidden_act says
HALVES = Fused({"mlp.up_gated_layer": "ug"}, {"mlp.gated_up_layer": "gu"})


def is_jina(values: Values) -> bool:
    """Returns whether a `config.json` of type `bert` is a JinaBERT's."""
    return values.get("position_embedding_type") == "alibi" or "jina-bert-" in _named(values)


def _named(values: Values) -> str:
    return f"{values.get('_name_or_path')} {values.get('auto_map')}"


def activations(values: Values) -> Fields:
    """Returns the activations of the gate and of the masked-LM head, which may differ."""
    return {"hidden_act": UNITS[values["feed_forward_type"]], "masked_lm_act": ACTS[values.get("hidden_act", "gelu")]}


def their_values(config: ModelConfig, repository: str) -> Fields:
    """Returns JinaBERT's keys: the reverse of `activations`, and the keys by which a JinaBERT is recognised."""
    heads = ("ForMaskedLM", "ForSequenceClassification", "ForTokenClassification")
    return {
        "hidden_act": OUR_ACTS[config.masked_lm_act or config.hidden_act],
        "feed_forward_type": "reglu" if config.hidden_act == "relu" else "geglu",
        "position_embedding_type": "alibi",
        "emb_pooler": "mean",
        "_name_or_path": repository,
        "auto_map": {
            "AutoConfig": f"{repository}--configuration_bert.JinaBertConfig",
            "AutoModel": f"{repository}--modeling_bert.JinaBertModel",
        }
        | {f"AutoModel{head}": f"{repository}--modeling_bert.JinaBert{head}" for head in heads},
    }


def member(parts: dict[str, str], repository: str, fixed: Fields, **fields: Any) -> Member:
    """Returns one of the two members, with further names of its layers' parts and further fixed fields."""
    return Member(
        stems={"bert": "JinaBert"},
        prefix=PREFIX,
        encoder=(
            *tables(PREFIX, ("word_embeddings", "token_type_embeddings")),
            *layers(PREFIX + "encoder.layer.{i}.", parts),
        ),
        forms={
            "Model": Form("", POOLER),
            "ForMaskedLM": Form("pretraining", WORDS),
            **usual_forms(POOLER),
        },
        heads_by_class=False,
        fixed={"alibi": True, "feed_forward": "gated", "unbiased": "gate"} | fixed,
        tied=bert_tied(PREFIX),
        fields=activations,
        values=functools.partial(their_values, repository=repository),
        switches={
            "position_embedding_type": ("alibi",),
            "feed_forward_type": tuple(UNITS),
            "emb_pooler": ("mean", None),
        },
        used=("attn_implementation", "model_max_length"),
        # the authors' class has no gate by default
        defaults={"feed_forward_type": "original", "position_embedding_type": "absolute"},
        **fields,
    )


JINA_BERT = member(
    {"intermediate": "mlp.gated_layers", "output": "mlp.wo", "output_LayerNorm": "mlp.layernorm"},
    "jinaai/jina-bert-implementation",
    {},
    claims=is_jina,
)
JINA_BERT_CODE = member(
    {
        "intermediate": "mlp.gated_up_layer",
        "output": "mlp.down_layer",
        "output_LayerNorm": "layer_norm_2",
        "residual_LayerNorm": "layer_norm_1",
        "attention/query/LayerNorm": "attention.self.layer_norm_q",
        "attention/key/LayerNorm": "attention.self.layer_norm_k",
    },
    "jinaai/jina-bert-v2-qk-post-norm",
    {"query_key_norm": True, "norm": "twice"},
    claims=lambda values: "qk-post-norm" in _named(values),
    unpack=HALVES.unpack,
    pack=HALVES.pack,
)
