"""jina-embeddings-v3 (Sturua et al. 2024) without its adapters: a RoBERTa with rotary positions."""

from official_bert.models.interchange.members import rotary
from official_bert.models.interchange.members.fused import SECOND_NAMES, Fused, encoder
from official_bert.models.interchange.members.member import (
    Form,
    Member,
    dense,
    roberta_tied,
    usual_forms,
    words,
)

PREFIX = "roberta."
POOLER = dense("pooler/", f"{PREFIX}pooler.dense.")
FUSED = Fused({"mixer.Wqkv": "qkv"}, {"mixer.q": "q", "mixer.k": "k", "mixer.v": "v"})

JINA_V3 = Member(
    stems={"jina_embeddings_v3": "JinaEmbeddingsV3", "xlm-roberta": "XLMRoberta"},
    written_type="jina_embeddings_v3",
    claims=lambda values: (
        values.get("model_type") != "xlm-roberta" or values.get("position_embedding_type") == "rotary"
    ),
    prefix=PREFIX,
    encoder=encoder(PREFIX, "mixer"),
    forms={
        "Model": Form("", POOLER),
        "ForMaskedLM": Form("pretraining", words("lm_head.dense.", "lm_head.layer_norm.", "lm_head.bias")),
        **{name: form for name, form in usual_forms(POOLER, own_pooler=True).items() if name != "ForMultipleChoice"},
    },
    tied=roberta_tied(PREFIX),
    second_names={
        **SECOND_NAMES,
        r"\.parametrizations\.weight\.original$": ".weight",
        r"\bself_attn\.o_proj\.": "mixer.out_proj.",
        r"\bself_attn\.([qkv])_proj\.": r"mixer.\1.",
    },
    left_out={".lora_": "its task adapters (lora_adaptations) are left out: vectors are those without a task"},
    unpack=FUSED.unpack,
    pack=FUSED.pack,
    fixed={"masked_lm_act": "gelu_erf"},
    fields=rotary.rotary,
    values=rotary.their_rotary,
    switches={"position_embedding_type": ("rotary", "absolute", None), "emb_pooler": ("mean", None)},
    used=(
        *rotary.KEYS,
        "load_trained_adapters",
        "lora_adaptations",
        "lora_alpha",
        "lora_dropout_p",
        "lora_main_params_trainable",
        "lora_rank",
        "matryoshka_dimensions",
        "task_instructions",
        "truncate_dim",
        "use_flash_attn",
        "use_reentrant",
    ),
    defaults={
        "vocab_size": 250002,
        "hidden_size": 1024,
        "num_hidden_layers": 24,
        "num_attention_heads": 16,
        "intermediate_size": 4096,
        "max_position_embeddings": 8194,
        "type_vocab_size": 1,
        "layer_norm_eps": 1e-5,
        "rotary_emb_base": 20000.0,
    },
)
