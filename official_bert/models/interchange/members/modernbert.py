"""ModernBERT (Warner et al. 2024): pre-norm, gated units, rotary positions, windows in most layers, no biases."""

from official_bert.model_config import ModelConfig
from official_bert.models.interchange.members.fused import Fused
from official_bert.models.interchange.members.member import SIZES, Fields, Form, Member, Values, output
from official_bert.models.interchange.names import rows

LAYER = "model.layers.{i}."
GLOBAL, LOCAL = "full_attention", "sliding_attention"
POOLINGS = {"cls": "first", "mean": "mean"}
FUSED = Fused({"attn.Wqkv": "qkv"}, {"attn.q": "q", "attn.k": "k", "attn.v": "v"})
HEAD = (*rows("pooler/kernel", "head.dense.weight"), *rows("pooler/LayerNorm/gamma", "head.norm.weight"))


def parts(values: Values) -> Fields:
    """Returns the fields of windows, rotary bases and pooling, from both forms of `config.json`: that until 2025, and
    that with `layer_types` and `rope_parameters`.
    """
    every = values["global_attn_every_n_layers"]
    if not isinstance(every, int) or every < 1:
        raise ValueError(f"global_attn_every_n_layers: expected at least 1, got {every!r:.80}")
    count, kinds = values["num_hidden_layers"], values.get("layer_types")
    if kinds is not None and kinds != layer_types(count, every):
        every = next((number for number in range(1, count + 1) if layer_types(count, number) == kinds), 0)
        if not every:
            raise ValueError(
                f"layer_types: expected {GLOBAL} in the first layer and every n-th from there, {LOCAL} in the others, "
                f"got {kinds!s:.80}"
            )
    if (pooling := values["classifier_pooling"]) not in POOLINGS:
        raise ValueError(f"classifier_pooling: expected {' or '.join(POOLINGS)}, got {pooling!r:.80}")
    near = values["local_attention"] // 2 if every > 1 else 0
    if every > 1 and near < 1:
        raise ValueError(f"local_attention: expected at least 2 tokens, got {values['local_attention']}")
    bases = [base_of(values, kind, key) for kind, key in ((GLOBAL, "global_rope_theta"), (LOCAL, "local_rope_theta"))]
    return {
        "pooling": POOLINGS[pooling],
        "window": near,
        "global_every": max(every, 2) if near else 3,
        "rotary": bases[0],
        "window_rotary": bases[1] if near else 0.0,
    }


def base_of(values: Values, kind: str, key: str) -> float:
    """Returns the base of rotary positions in layers of a kind.

    Raises ValueError for other kinds of rotary positions.
    """
    of_kinds = values.get("rope_parameters") or {}
    if not isinstance(of_kinds, dict) or set(of_kinds) - {GLOBAL, LOCAL}:
        raise ValueError(f"rope_parameters: expected {GLOBAL} and {LOCAL} with their values, got {of_kinds!r:.80}")
    rope = dict(of_kinds.get(kind) or {})
    if rope.pop("rope_type", "default") != "default" or set(rope) - {"rope_theta"}:
        raise ValueError(
            f"rope_parameters.{kind}: expected rope_type default and rope_theta, got {values['rope_parameters'][kind]}"
        )
    base = rope.get("rope_theta", values[key] if values[key] is not None else values["global_rope_theta"])
    if not isinstance(base, int | float) or base <= 1:
        raise ValueError(f"{key}: expected a number above 1, got {base!r:.80}")
    return float(base)


def layer_types(count: int, every: int) -> list[str]:
    """Returns the kinds of layers if every n-th layer has global attention."""
    return [LOCAL if index % every else GLOBAL for index in range(count)]


def their_parts(config: ModelConfig) -> Fields:
    """Returns ModernBERT's keys in both forms: the reverse of `parts`."""
    every, local = config.global_every if config.window else 1, config.window_rotary or config.rotary
    dropout = config.hidden_dropout_prob
    return {
        "global_attn_every_n_layers": every,
        "layer_types": layer_types(config.num_hidden_layers, every),
        "local_attention": 2 * config.window or 128,
        "global_rope_theta": config.rotary,
        "local_rope_theta": local,
        "rope_parameters": {
            kind: {"rope_type": "default", "rope_theta": base}
            for kind, base in ((GLOBAL, config.rotary), (LOCAL, local))
        },
        "classifier_pooling": next(theirs for theirs, ours in POOLINGS.items() if ours == config.pooling),
        "embedding_dropout": dropout,
        "norm_bias": False,
        "attention_bias": False,
        "mlp_bias": False,
        "classifier_bias": False,
        "decoder_bias": True,
    }


MODERNBERT = Member(
    stems={"modernbert": "ModernBert"},
    prefix="model.",
    encoder=(
        ("embeddings/word_embeddings", "model.embeddings.tok_embeddings.weight"),
        ("embeddings/LayerNorm/gamma", "model.embeddings.norm.weight"),
        *(
            (f"layer_{{i}}/attention/{ours}/kernel", f"{LAYER}attn.{theirs}.weight")
            for ours, theirs in (("query", "q"), ("key", "k"), ("value", "v"), ("output", "Wo"))
        ),
        ("layer_{i}/attention_LayerNorm/gamma", LAYER + "attn_norm.weight"),
        ("layer_{i}/intermediate/kernel", LAYER + "mlp.Wi.weight"),
        ("layer_{i}/output/kernel", LAYER + "mlp.Wo.weight"),
        ("layer_{i}/output_LayerNorm/gamma", LAYER + "mlp_norm.weight"),
        ("final_LayerNorm/gamma", "model.final_norm.weight"),
    ),
    forms={
        "Model": Form(""),
        "ForMaskedLM": Form("pretraining", HEAD, rows("masked_lm/output_bias", "decoder.bias")),
        "ForSequenceClassification": Form("classifier", HEAD, output("classifier/", "classifier.")),
        "ForMultipleChoice": Form("choice", HEAD, output("classifier/", "classifier.")),
        "ForTokenClassification": Form("tagger", HEAD, output("tagger/", "classifier.")),
        "ForQuestionAnswering": Form("span", HEAD, output("span/", "classifier.")),
    },
    tied={"decoder.weight": "model.embeddings.tok_embeddings.weight"},
    keys={ours: theirs for ours, theirs in SIZES.items() if ours != "type_vocab_size"}
    | {
        "hidden_act": "hidden_activation",
        "hidden_dropout_prob": "mlp_dropout",
        "attention_probs_dropout_prob": "attention_dropout",
        "layer_norm_epsilon": "norm_eps",
        "pooler_act": "classifier_activation",
    },
    fixed={"type_vocab_size": 0, "norm": "pre", "feed_forward": "gated", "biases": False, "pooler_norm": True},
    fields=parts,
    values=their_parts,
    unpack=FUSED.unpack,
    pack=FUSED.pack,
    switches={
        "norm_bias": (False, None),
        "attention_bias": (False, None),
        "mlp_bias": (False, None),
        "classifier_bias": (False, None),
        "decoder_bias": (True, None),
        "tie_word_embeddings": (True, None),
    },
    used=(
        "classifier_pooling",
        "layer_types",
        "rope_parameters",
        "global_rope_theta",
        "local_rope_theta",
        "local_attention",
        "global_attn_every_n_layers",
        "position_embedding_type",
    ),
    defaults={
        "vocab_size": 50368,
        "hidden_size": 768,
        "num_hidden_layers": 22,
        "num_attention_heads": 12,
        "intermediate_size": 1152,
        "max_position_embeddings": 8192,
        "norm_eps": 1e-5,
        "mlp_dropout": 0.0,
        "attention_dropout": 0.0,
        "classifier_pooling": "cls",
        "hidden_activation": "gelu",
        "classifier_activation": "gelu",
        "local_attention": 128,
        "global_attn_every_n_layers": 3,
        "global_rope_theta": 160000.0,
        "local_rope_theta": 10000.0,
    },
)
