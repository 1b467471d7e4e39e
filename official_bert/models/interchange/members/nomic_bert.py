"""NomicBERT (Nussbaum et al. 2024): BERT's layers with rotary positions, gated units, and products without biases."""

from official_bert.models.interchange.members import rotary
from official_bert.models.interchange.members.fused import SECOND_NAMES, Fused, encoder
from official_bert.models.interchange.members.member import (
    Form,
    Member,
    bert_tied,
    dense,
    usual_forms,
    words,
)

PREFIX = "nomic_bert."
POOLER = dense("pooler/", f"{PREFIX}pooler.dense.")
FUSED = Fused(
    {"attn.Wqkv": "qkv", "mlp.fc12": "g", "mlp.fc11": "u"},
    {"attn.q": "q", "attn.k": "k", "attn.v": "v", "mlp.fc1": "gu"},
)
NAMES = {
    **SECOND_NAMES,
    r"\bself_attn\.o_proj\.": "attn.out_proj.",
    r"\bself_attn\.([qkv])_proj\.": r"attn.\1.",
    r"\bmlp\.gate_proj\.": "mlp.fc12.",
    r"\bmlp\.up_proj\.": "mlp.fc11.",
    r"\bmlp\.down_proj\.": "mlp.fc2.",
}

NOMIC_BERT = Member(
    stems={"nomic_bert": "NomicBert"},
    prefix=PREFIX,
    encoder=encoder(PREFIX, "attn"),
    forms={
        "Model": Form("", POOLER),
        "ForMaskedLM": Form(
            "pretraining",
            words("cls.predictions.transform.dense.", "cls.predictions.transform.layer_norm.", "cls.predictions.bias"),
        ),
        **{name: usual_forms(POOLER)[name] for name in ("ForSequenceClassification", "ForTokenClassification")},
    },
    tied=bert_tied(PREFIX),
    second_names=NAMES,
    unpack=FUSED.unpack,
    pack=FUSED.pack,
    fixed={"feed_forward": "gated", "unbiased": "products"},
    fields=rotary.rotary,
    values=rotary.their_rotary,
    second_keys={
        "n_embd": "hidden_size",
        "n_head": "num_attention_heads",
        "n_layer": "num_hidden_layers",
        "n_inner": "intermediate_size",
        "n_positions": "max_position_embeddings",
        "layer_norm_epsilon": "layer_norm_eps",
        "resid_pdrop": "hidden_dropout_prob",
        "attn_pdrop": "attention_probs_dropout_prob",
    },
    switches={
        "activation_function": ("swiglu", None),
        "rotary_emb_fraction": (1.0, None),
        "scale_attn_weights": (True, None),
        **dict.fromkeys(("rotary_scaling_factor", "rotary_emb_scale_base", "moe_every_n_layers"), (None, 0)),
        **dict.fromkeys(
            (
                "rotary_emb_interleaved",
                "prenorm",
                "causal",
                "use_rms_norm",
                "parallel_block",
                "scale_attn_by_inverse_layer_idx",
                "qkv_proj_bias",
                "mlp_fc1_bias",
                "mlp_fc2_bias",
            ),
            (False, None),
        ),
    },
    # what the authors' classes inherit of GPT-2's, and how they compute the same numbers
    used=(
        *rotary.KEYS,
        "dense_seq_output",
        "embd_pdrop",
        "fused_bias_fc",
        "fused_dropout_add_ln",
        "max_trained_positions",
        "pad_vocab_size_multiple",
        "parallel_block_tied_norm",
        "reorder_and_upcast_attn",
        "summary_activation",
        "summary_proj_to_labels",
        "summary_type",
        "summary_use_proj",
        "use_flash_attn",
        "use_xentropy",
    ),
    defaults={
        "vocab_size": 30528,
        "max_position_embeddings": 2048,
        "hidden_act": "silu",
        "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0,
        "rotary_emb_base": 1000.0,
    },
)
