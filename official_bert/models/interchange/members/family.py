"""The supported members of BERT's family: names of weights and keys of `config.json`, used both ways."""

from official_bert.model_config import ModelConfig
from official_bert.models.interchange.members.albert import ALBERT
from official_bert.models.interchange.members.electra import ELECTRA
from official_bert.models.interchange.members.gte import GTE
from official_bert.models.interchange.members.jina_bert import JINA_BERT, JINA_BERT_CODE
from official_bert.models.interchange.members.jina_v3 import JINA_V3
from official_bert.models.interchange.members.member import (
    USUAL_KEYS,
    WORDS,
    Fields,
    Form,
    Member,
    Tensors,
    Values,
    bert_tied,
    dense,
    layers,
    norm,
    output,
    roberta_tied,
    tables,
    usual_forms,
    words,
)
from official_bert.models.interchange.members.modernbert import MODERNBERT
from official_bert.models.interchange.members.nomic_bert import NOMIC_BERT


# BERT; SpanBERT is one without the head for sentences; ERNIE has a table of tasks.
def bert_forms(prefix: str) -> dict[str, Form]:
    """Returns BERT's classes over an encoder with this prefix."""
    pooler, sentences = dense("pooler/", f"{prefix}pooler.dense."), output("next_sentence/", "cls.seq_relationship.")
    return {
        "Model": Form("", pooler),
        "ForPreTraining": Form("pretraining", pooler, WORDS, sentences),
        "ForMaskedLM": Form("pretraining", WORDS),
        "ForNextSentencePrediction": Form("pretraining", pooler, sentences),
        **usual_forms(pooler),
    }


def task_table(values: Values) -> Fields:
    """Returns the number of rows in the table of task types, 0 if that is not used."""
    return {"task_type_vocab_size": values["task_type_vocab_size"] if values["use_task_id"] else 0}


def their_task_table(config: ModelConfig) -> Fields:
    """Returns ERNIE's keys for the table of task types: the reverse of `task_table`."""
    rows_there = config.task_type_vocab_size
    return {"use_task_id": bool(rows_there)} | ({"task_type_vocab_size": rows_there} if rows_there else {})


BERT = Member(
    stems={"bert": "Bert"},
    prefix="bert.",
    forms=bert_forms("bert."),
    tied=bert_tied("bert."),
    encoder=(*tables("bert."), *layers("bert.encoder.layer.{i}.")),
)
ERNIE = Member(
    stems={"ernie": "Ernie"},
    prefix="ernie.",
    forms=bert_forms("ernie."),
    tied=bert_tied("ernie."),
    fields=task_table,
    values=their_task_table,
    encoder=(
        *tables("ernie."),
        ("embeddings/task_type_embeddings", "ernie.embeddings.task_type_embeddings.weight"),
        *layers("ernie.encoder.layer.{i}."),
    ),
    used=("use_task_id", "task_type_vocab_size"),
    defaults={"use_task_id": False, "task_type_vocab_size": 3},
)

# BigBird (Zaheer et al. 2020), for rows of which its authors' and Hugging Face's code computes full attention: a BERT
# then.
BIG_BIRD_BLOCK, RANDOM_BLOCKS = 64, 3  # of all published models
BIG_BIRD_POOLER = dense("pooler/", "bert.pooler.")


def row_limit(values: Values) -> Fields:
    """Returns the longest row that is computed (0: no limit): above (5 + 2 * random blocks) blocks of tokens, BigBird's
    attention is sparse.

    Raises ValueError for other block sizes than those of the published models.
    """
    kind, blocks = values["attention_type"], (values["block_size"], values["num_random_blocks"])
    most = (5 + 2 * RANDOM_BLOCKS) * BIG_BIRD_BLOCK
    if kind not in ("original_full", "block_sparse"):
        raise ValueError(f"attention_type: expected original_full or block_sparse, got {kind!r:.80}")
    if kind == "block_sparse" and blocks != (BIG_BIRD_BLOCK, RANDOM_BLOCKS):
        raise ValueError(
            f"attention_type: block_sparse is not supported with block_size and num_random_blocks {blocks}; "
            f"expected {BIG_BIRD_BLOCK} and {RANDOM_BLOCKS}, for rows of at most {most} tokens, or original_full"
        )
    return {"row_limit": most if kind == "block_sparse" and most < values["max_position_embeddings"] else 0}


def their_attention(config: ModelConfig) -> Fields:
    """Returns BigBird's keys for attention: the reverse of `row_limit`."""
    return {
        "attention_type": "block_sparse" if config.row_limit else "original_full",
        "block_size": BIG_BIRD_BLOCK,
        "num_random_blocks": RANDOM_BLOCKS,
        "use_bias": True,
        "rescale_embeddings": False,
    }


BIG_BIRD = Member(
    stems={"big_bird": "BigBird"},
    prefix="bert.",
    tied=bert_tied("bert."),
    encoder=(*tables("bert."), *layers("bert.encoder.layer.{i}.")),
    # Its heads for classes and answers are others than BERT's; a run holds them in ours.
    forms={
        "Model": Form("", BIG_BIRD_POOLER),
        "ForMaskedLM": Form("pretraining", BIG_BIRD_POOLER, WORDS),
        "ForPreTraining": Form(
            "pretraining", BIG_BIRD_POOLER, WORDS, output("next_sentence/", "cls.seq_relationship.")
        ),
        "ForMultipleChoice": Form("choice", BIG_BIRD_POOLER, output("classifier/", "classifier.")),
        "ForTokenClassification": Form("tagger", BIG_BIRD_POOLER, output("tagger/", "classifier.")),
    },
    fields=row_limit,
    values=their_attention,
    used=("attention_type", "block_size", "num_random_blocks"),
    switches={"use_bias": (True, None), "rescale_embeddings": (False, None)},
    defaults={
        "vocab_size": 50358,
        "hidden_act": "gelu_new",
        "max_position_embeddings": 4096,
        "attention_type": "block_sparse",
        "block_size": BIG_BIRD_BLOCK,
        "num_random_blocks": RANDOM_BLOCKS,
    },
)

# DeBERTa v3 and v2 (He et al. 2021): distances in the attention instead of positions; v2 may have a convolution.
# Names of `legacy: false`, by those of `legacy: true`, which are written.
NEWER_NAMES = {
    "lm_predictions.lm_head.dense.": "cls.predictions.transform.dense.",
    "lm_predictions.lm_head.LayerNorm.": "cls.predictions.transform.LayerNorm.",
    "lm_predictions.lm_head.bias": "cls.predictions.bias",
}
REPLACED = "mask_predictions."  # spelt classifer in the authors' code


def distances(values: Values) -> Fields:
    """Returns the fields of relative positions: the buckets, the span beyond which all distances share a bucket, and
    the convolution.

    Raises ValueError for values that are not supported.
    """
    types = values["pos_att_type"]
    if sorted(types.split("|") if isinstance(types, str) else types or ()) != ["c2p", "p2c"]:
        raise ValueError(f"pos_att_type: expected p2c and c2p, got {types!r:.80}")
    if values["position_buckets"] < 1:
        raise ValueError(f"position_buckets: expected a number of buckets, got {values['position_buckets']}")
    if values.get("pooler_hidden_size", values["hidden_size"]) != values["hidden_size"]:
        raise ValueError(
            f"pooler_hidden_size: expected hidden_size {values['hidden_size']}, got {values['pooler_hidden_size']}"
        )
    size = values["conv_kernel_size"] or 0
    if (size and size % 2 == 0) or values["conv_groups"] != 1:
        raise ValueError(
            "conv_kernel_size: expected 0 or an odd number, with conv_groups 1, got "
            f"{values['conv_kernel_size']} and {values['conv_groups']}"
        )
    span = values["max_relative_positions"]
    return {
        "convolution": size,
        "distance_projections": not values["share_att_key"],
        "position_span": span if span > 0 else values["max_position_embeddings"],
    }


def their_distances(config: ModelConfig) -> Fields:
    """Returns DeBERTa's keys: the reverse of `distances`."""
    span = config.position_span
    return {
        "max_relative_positions": -1 if span == config.max_position_embeddings else span,
        "pos_att_type": ["p2c", "c2p"],
        "relative_attention": True,
        "position_biased_input": False,
        "norm_rel_ebd": "layer_norm",
        "share_att_key": not config.distance_projections,
        "conv_kernel_size": config.convolution,
        "conv_groups": 1,
        "pooler_hidden_size": config.hidden_size,
        "legacy": True,
    }


def older_names(tensors: Tensors, _: ModelConfig) -> Tensors:
    """Returns tensors with the older names of the masked-LM head in place of the newer ones.

    Published files of v3 hold the discriminator's head, and also the masked-LM head that only their generator used. The
    latter is left out.
    """
    if any(name.startswith(REPLACED) for name in tensors):
        tensors = {
            name.replace(f"{REPLACED}classifer.", f"{REPLACED}classifier."): tensor
            for name, tensor in tensors.items()
            if not name.startswith(("cls.predictions.", "lm_predictions."))
        }

    def renamed(name: str) -> str:
        newer = next((newer for newer in NEWER_NAMES if name.startswith(newer)), "")
        return NEWER_NAMES[newer] + name.removeprefix(newer) if newer else name

    return {renamed(name): tensor for name, tensor in tensors.items()}


DEBERTA = Member(
    stems={"deberta-v2": "DebertaV2"},
    prefix="deberta.",
    encoder=(
        *tables("deberta.", ("word_embeddings", "token_type_embeddings")),
        ("relative_positions/table", "deberta.encoder.rel_embeddings.weight"),
        *norm("relative_positions/LayerNorm/", "deberta.encoder.LayerNorm."),
        *layers(
            "deberta.encoder.layer.{i}.",
            {
                "attention/query": "attention.self.query_proj",
                "attention/key": "attention.self.key_proj",
                "attention/value": "attention.self.value_proj",
                "attention/distance_query": "attention.self.pos_query_proj",
                "attention/distance_key": "attention.self.pos_key_proj",
            },
        ),
        *dense("convolution/", "deberta.encoder.conv.conv."),
        *norm("convolution/LayerNorm/", "deberta.encoder.conv.LayerNorm."),
    ),
    forms={
        "Model": Form(""),
        "ForMaskedLM": Form("pretraining", WORDS),
        "ForPreTraining": Form(
            "replaced",
            norm("replaced_LayerNorm/", f"{REPLACED}LayerNorm."),
            dense("replaced_transform/", f"{REPLACED}dense."),
            output("replaced/", f"{REPLACED}classifier."),
        ),
        **usual_forms(dense("pooler/", "pooler.dense.")),
    },
    tied=bert_tied("deberta."),
    keys=USUAL_KEYS
    | {"position_buckets": "position_buckets", "pooler_act": "pooler_hidden_act", "convolution_act": "conv_act"},
    fields=distances,
    values=their_distances,
    switches={"relative_attention": (True,), "position_biased_input": (False,), "norm_rel_ebd": ("layer_norm",)},
    used=(
        "pos_att_type",
        "share_att_key",
        "conv_kernel_size",
        "conv_groups",
        "max_relative_positions",
        "pooler_hidden_size",
    ),
    unpack=older_names,
    defaults={
        "vocab_size": 128100,
        "hidden_size": 1536,
        "num_hidden_layers": 24,
        "num_attention_heads": 24,
        "intermediate_size": 6144,
        "max_position_embeddings": 512,
        "type_vocab_size": 0,
        "layer_norm_eps": 1e-7,
        "relative_attention": False,
        "max_relative_positions": -1,
        "position_biased_input": True,
        "pos_att_type": None,
        "position_buckets": -1,
        "pooler_hidden_act": "gelu",
        "norm_rel_ebd": "none",
        "share_att_key": False,
        "conv_kernel_size": 0,
        "conv_groups": 1,
        "conv_act": "tanh",
    },
)


# RoBERTa, and XLM-R and CamemBERT, which have its weights over other vocabularies (Liu et al. 2019; docs/family.md).
def roberta_forms(prefix: str) -> dict[str, Form]:
    """Returns RoBERTa's classes over an encoder with this prefix; the head for classes has its own pooler."""
    pooler = dense("pooler/", f"{prefix}pooler.dense.")
    return {
        "Model": Form("", pooler),
        "ForMaskedLM": Form("pretraining", words("lm_head.dense.", "lm_head.layer_norm.", "lm_head.bias")),
        **usual_forms(pooler, own_pooler=True),
    }


def first_position(values: Values) -> Fields:
    """Returns the first position: in fairseq's code, positions begin after the padding's id."""
    if not isinstance(row := values["pad_token_id"], int) or row < 0:
        raise ValueError(f"pad_token_id: expected the padding's id, after which positions begin, got {row!r:.80}")
    return {"first_position": row + 1}


def padding(config: ModelConfig) -> Fields:
    """Returns the padding's id: the reverse of `first_position`."""
    return {"pad_token_id": config.first_position - 1}


ROBERTA = Member(
    stems={"roberta": "Roberta", "xlm-roberta": "XLMRoberta", "camembert": "Camembert"},
    prefix="roberta.",
    encoder=(*tables("roberta."), *layers("roberta.encoder.layer.{i}.")),
    forms=roberta_forms("roberta."),
    tied=roberta_tied("roberta."),
    fixed={"masked_lm_act": "gelu_erf"},
    fields=first_position,
    values=padding,
    used=("pad_token_id",),
    defaults={"pad_token_id": 1, "layer_norm_eps": 1e-12},
)

# MPNet (Song et al. 2020): RoBERTa's heads and positions, no segments, and a table of distances that all layers share.
MPNET_BUCKETS, MPNET_TABLE = 32, "mpnet.encoder.relative_attention_bias.weight"


def buckets(values: Values) -> Fields:
    """Returns the fields of MPNet's relative positions. MPNet's code counts in 32 buckets, whatever `config.json` says.

    Raises ValueError for a table of fewer rows, with which that code fails.
    """
    if (rows_there := values["relative_attention_num_buckets"]) < MPNET_BUCKETS:
        raise ValueError(
            f"relative_attention_num_buckets: expected at least {MPNET_BUCKETS}, which MPNet's code uses, got "
            f"{rows_there}"
        )
    return {"relative_buckets": MPNET_BUCKETS, "first_position": 2, "type_vocab_size": 0}


def their_buckets(config: ModelConfig) -> Fields:
    """Returns MPNet's keys: the reverse of `buckets`."""
    return {"relative_attention_num_buckets": config.relative_buckets, "pad_token_id": config.first_position - 1}


def used_buckets(tensors: Tensors, _: ModelConfig) -> Tensors:
    """Returns the tensors without the rows of the distance table beyond the buckets, which no distance uses."""
    return {name: tensor[:MPNET_BUCKETS] if name == MPNET_TABLE else tensor for name, tensor in tensors.items()}


MPNET = Member(
    stems={"mpnet": "MPNet"},
    prefix="mpnet.",
    encoder=(
        *tables("mpnet.", ("word_embeddings", "position_embeddings")),
        ("relative_positions/table", MPNET_TABLE),
        *layers(
            "mpnet.encoder.layer.{i}.",
            {
                "attention/query": "attention.attn.q",
                "attention/key": "attention.attn.k",
                "attention/value": "attention.attn.v",
                "attention/output": "attention.attn.o",
                "attention_LayerNorm": "attention.LayerNorm",
            },
        ),
    ),
    forms=roberta_forms("mpnet."),
    tied=roberta_tied("mpnet."),
    keys={ours: theirs for ours, theirs in USUAL_KEYS.items() if ours != "type_vocab_size"},
    fixed={"masked_lm_act": "gelu_erf"},
    fields=buckets,
    values=their_buckets,
    used=("relative_attention_num_buckets",),
    defaults={"relative_attention_num_buckets": MPNET_BUCKETS, "vocab_size": 30527, "layer_norm_eps": 1e-12},
    unpack=used_buckets,
)

# DistilBERT (Sanh et al. 2019): half the layers, no segments, no pooler of the encoder's own.
DISTILBERT = Member(
    stems={"distilbert": "DistilBert"},
    prefix="distilbert.",
    encoder=(
        *tables("distilbert.", ("word_embeddings", "position_embeddings")),
        *layers(
            "distilbert.transformer.layer.{i}.",
            {
                "attention/query": "attention.q_lin",
                "attention/key": "attention.k_lin",
                "attention/value": "attention.v_lin",
                "attention/output": "attention.out_lin",
                "attention_LayerNorm": "sa_layer_norm",
                "intermediate": "ffn.lin1",
                "output": "ffn.lin2",
                "output_LayerNorm": "output_layer_norm",
            },
        ),
    ),
    forms={
        "Model": Form(""),
        "ForMaskedLM": Form("pretraining", words("vocab_transform.", "vocab_layer_norm.", "vocab_projector.bias")),
        **usual_forms(dense("pooler/", "pre_classifier.")),
    },
    tied={"vocab_projector.weight": "distilbert.embeddings.word_embeddings.weight"},
    keys={
        "vocab_size": "vocab_size",
        "hidden_size": "dim",
        "num_hidden_layers": "n_layers",
        "num_attention_heads": "n_heads",
        "intermediate_size": "hidden_dim",
        "hidden_act": "activation",
        "hidden_dropout_prob": "dropout",
        "attention_probs_dropout_prob": "attention_dropout",
        "max_position_embeddings": "max_position_embeddings",
        "initializer_range": "initializer_range",
    },
    fixed={"type_vocab_size": 0, "layer_norm_epsilon": 1e-12, "pooler_act": "relu"},
    defaults={"n_layers": 6},
)

# Members that claim some files of a model type stand before the member of the others.
FAMILY = (
    *(JINA_BERT_CODE, JINA_BERT, BERT, JINA_V3, ROBERTA),
    *(DISTILBERT, MPNET, ERNIE, ELECTRA, ALBERT, DEBERTA, MODERNBERT, BIG_BIRD, NOMIC_BERT, GTE),
)


def member_of(values: Values, path: str) -> tuple[Member, str]:
    """Returns the member of a `config.json`, and its `model_type`.

    Raises ValueError that lists the known types for others.
    """
    architectures = values.get("architectures") or []
    if not (isinstance(architectures, list) and all(isinstance(name, str) for name in architectures)):
        raise ValueError(f"{path}: architectures: expected a list of names, got {str(architectures)[:80]}")
    kind = values.get("model_type", "bert")
    if not isinstance(kind, str):
        raise ValueError(f"{path}: model_type: expected a name, got {str(kind)[:80]}")
    for member in FAMILY:
        if kind in member.stems and member.claims(values):
            return member, kind
    computed = ", ".join(dict.fromkeys(name for member in FAMILY for name in member.stems))
    raise ValueError(
        f"{path}: expected a BERT model or one of its family (model_type {computed}), got model_type {kind!r:.80} "
        f"({', '.join(architectures) or 'no architectures'})"
    )


def member_for(config: ModelConfig, model_type: str = "") -> tuple[Member, str]:
    """Returns a member that can compute a configuration, and its `model_type`; the given type if it fits.

    Raises ValueError that names the fields if no member fits.
    """
    named_members = [member for member in FAMILY if model_type in member.stems]
    differing = [(member, member.differences(config)) for member in (*named_members, *FAMILY)]
    for member, fields in differing:
        if not fields:
            usual = member.written_type or model_type
            return member, usual if usual in member.stems else next(iter(member.stems))
    nearest, fields = min(differing, key=lambda pair: len(pair[1]))
    values = ", ".join(f"model.{name} {getattr(config, name)!r}" for name in fields)
    raise ValueError(f"no Hugging Face model has {values}; the nearest is {nearest.title}; only --to=ours can hold it")
