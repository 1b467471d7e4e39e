"""GTE (Zhang et al. 2024; Snowflake's arctic-embed-m-v2): BERT's layers with rotary positions and gated units."""

from official_bert.models.interchange.members import rotary
from official_bert.models.interchange.members.fused import Fused
from official_bert.models.interchange.members.member import (
    ACTS,
    Fields,
    Form,
    Member,
    Values,
    dense,
    layers,
    tables,
    usual_forms,
    words,
)

PREFIX = "gte."
POOLER = dense("pooler/", f"{PREFIX}pooler.dense.")
FUSED = Fused(
    {"attention.qkv_proj": "qkv", "mlp.up_gate_proj": "ug", "mlp.up_proj": "u", "mlp.gate_proj": "g"},
    {"attention.q_proj": "q", "attention.k_proj": "k", "attention.v_proj": "v", "mlp.gate_up_proj": "gu"},
)
WRITTEN = Fused({"attention.qkv_proj": "qkv", "mlp.up_gate_proj": "ug"}, FUSED.table)


def parts(values: Values) -> Fields:
    """Returns the fields of positions, and the activation of the masked-LM head, which transformers' class fixes."""
    act = values.get("hidden_act", "gelu") if values.get("model_type") == "new" else "gelu"
    return rotary.rotary(values, ("ntk",)) | {"masked_lm_act": ACTS[act]}


GTE = Member(
    stems={"gte": "Gte", "new": "New"},
    written_type="gte",  # `new` is that of the authors' own classes
    prefix=PREFIX,
    encoder=(
        *tables(PREFIX, ("word_embeddings", "token_type_embeddings")),
        *layers(
            PREFIX + "encoder.layer.{i}.",
            {
                "attention/query": "attention.q_proj",
                "attention/key": "attention.k_proj",
                "attention/value": "attention.v_proj",
                "attention/output": "attention.o_proj",
                "attention_LayerNorm": "attn_ln",
                "intermediate": "mlp.gate_up_proj",
                "output": "mlp.down_proj",
                "output_LayerNorm": "mlp_ln",
            },
        ),
    ),
    forms={
        "Model": Form("", POOLER),
        "ForMaskedLM": Form("pretraining", words("lm_head.dense.", "lm_head.norm.", "lm_head.decoder.bias")),
        **{name: usual_forms(POOLER)[name] for name in ("ForSequenceClassification", "ForTokenClassification")},
    },
    tied={"lm_head.decoder.weight": f"{PREFIX}embeddings.word_embeddings.weight"},
    # the authors' prefix, and transformers' own names
    second_names={
        r"^new\.": PREFIX,
        r"(?<!encoder\.)\blayers\.": "encoder.layer.",
        r"\bself_attn\.": "attention.",
        r"\bpost_attention_layernorm\.": "attn_ln.",
        r"\bpost_mlp_layernorm\.": "mlp_ln.",
        r"\blm_head\.layer_norm\.": "lm_head.norm.",
    },
    unpack=FUSED.unpack,
    pack=WRITTEN.pack,
    fixed={"feed_forward": "gated", "unbiased": "gate"},
    fields=parts,
    values=lambda config: rotary.their_rotary(config) | {"position_embedding_type": "rope"},
    switches={
        "position_embedding_type": ("rope", None),
        "layer_norm_type": ("layer_norm", None),
        "logn_attention_scale": (False, None),
        "logn_attention_clip1": (False, None),
        "pack_qkv": (True, None),
    },
    used=(*rotary.KEYS, "unpad_inputs", "use_memory_efficient_attention"),
    defaults={
        "vocab_size": 250048,
        "max_position_embeddings": 8192,
        "type_vocab_size": 1,
        "attention_probs_dropout_prob": 0.0,
        "rope_theta": 160000.0,
    },
)
