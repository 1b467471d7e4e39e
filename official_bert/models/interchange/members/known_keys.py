"""Keys of `config.json` that members share: those that change what is computed, and those that change nothing, with the reason.

A key that a table of a member does not read is refused for a value that changes the computation, or is named here.
"""

import itertools
from collections.abc import Mapping
from typing import Any

# Switches that change the computation of every member, with the values that are computed.
SWITCHES: Mapping[str, tuple] = {
    "position_embedding_type": ("absolute", None), "is_decoder": (False, None), "add_cross_attention": (False, None),
    "pruned_heads": ({}, None), "quantization_config": (None,), "compression_config": (None,)}
# Keys that change the computation of some members. To a member that has no use for one, only these values say the same as its absence.
OF_OTHERS = (
    "num_hidden_groups", "inner_group_num", "use_task_id", "relative_attention", "relative_attention_num_buckets", "position_buckets",
    "pos_att_type", "share_att_key", "norm_rel_ebd", "conv_kernel_size", "rope_parameters", "rope_scaling", "rope_theta",
    "global_rope_theta", "local_rope_theta", "layer_types", "local_attention", "global_attn_every_n_layers", "sliding_window",
    "attention_window", "attention_type", "rescale_embeddings", "trigram_input", "intra_bottleneck_size", "use_bottleneck",
    "num_feedforward_networks", "normalization_type", "is_encoder_decoder", "embedding_size", "norm_bias", "mlp_bias", "attention_bias",
    "head_dim", "attention_head_size", "alibi_starting_size", "feed_forward_type", "rotary_emb_fraction", "prenorm", "use_qk_norm",
    "per_layer_config", "summary_proj_to_labels")
NEUTRAL: tuple[Any, ...] = (None, False, 0, -1, "", "none", "original", [], {})
# Rates of dropout that change training alone; here embeddings drop as layers do, and heads what a task says (0.1, as in 2018).
RATES = ("classifier_dropout", "classifier_dropout_prob", "seq_classif_dropout", "qa_dropout", "pooler_dropout", "cls_dropout",
         "summary_last_dropout", "summary_first_dropout", "embedding_dropout")
# Keys that change no output of the models that are computed here, by the reason.
HARMLESS: Mapping[str, tuple[str, ...]] = {
    "names and versions, which the files' other parts say, too": (
        "architectures", "model_type", "transformers_version", "_name_or_path", "name_or_path", "_commit_hash", "auto_map",
        "tokenizer_class", "finetuning_task", "task_specific_params", "language", "prefix"),
    "the type of the weights is that of the tensors; they are computed as the run says": ("torch_dtype", "dtype", "use_bfloat16"),
    "read with the head": ("id2label", "label2id", "num_labels", "_num_labels", "problem_type"),
    "how the same numbers are computed and handed out": (
        "return_dict", "output_hidden_states", "output_attentions", "use_cache", "torchscript", "gradient_checkpointing",
        "chunk_size_feed_forward", "attn_implementation", "_attn_implementation", "_attn_implementation_autoset", "use_return_dict",
        "deterministic_flash_attn", "reference_compile", "repad_logits_with_grad", "output_past", "xla_device"),
    "ids that the tokenizer's files say": (
        "pad_token_id", "bos_token_id", "eos_token_id", "cls_token_id", "sep_token_id", "unk_token_id", "mask_token_id",
        "decoder_start_token_id"),
    "first weights, of which the file has others": ("initializer_factor", "initializer_cutoff_factor", "sinusoidal_pos_embds"),
    "words of their own are found by comparing both tensors": ("tie_word_embeddings", "tie_encoder_decoder"),
    "both names of the head for words are read": ("legacy",),
    "which losses are computed": ("sparse_prediction", "sparse_pred_ignore_index"),
    "written by the authors, and read by no code": (
        "directionality", "pooler_fc_size", "pooler_num_attention_heads", "pooler_num_fc_layers", "pooler_size_per_head", "pooler_type",
        "down_scale_factor", "gap_size", "net_structure_type", "num_memory_blocks"),
    "how decoders choose words": (
        "max_length", "min_length", "do_sample", "early_stopping", "num_beams", "num_beam_groups", "diversity_penalty", "temperature",
        "top_k", "top_p", "typical_p", "repetition_penalty", "length_penalty", "no_repeat_ngram_size", "encoder_no_repeat_ngram_size",
        "bad_words_ids", "num_return_sequences", "output_scores", "return_dict_in_generate", "forced_bos_token_id",
        "forced_eos_token_id", "remove_invalid_values", "exponential_decay_length_penalty", "suppress_tokens", "begin_suppress_tokens",
        "cross_attention_hidden_size")}
PASSED_OVER = frozenset((*RATES, *itertools.chain(*HARMLESS.values())))


def check(values: Mapping[str, Any], switches: Mapping[str, tuple], read: frozenset[str]) -> None:
    """Raises ValueError for a key with a value that is not computed; `switches` are a member's own, `read` the keys that it reads."""
    for key, usual in {**SWITCHES, **switches}.items():
        if values.get(key) not in usual:
            expected = repr(usual[0])
            if key.endswith("_config"):
                expected = "none: no quantised weights, but float32, float16 or bfloat16"
            raise ValueError(f"{key}: {values[key]!r} is not computed here; expected {expected}")
    usual_values = {"embedding_size": values.get("hidden_size")} | dict.fromkeys(("head_dim", "attention_head_size"), _head_size(values))
    for key in OF_OTHERS:
        if key not in read and values.get(key) not in NEUTRAL and values[key] != usual_values.get(key):
            raise ValueError(f"{key}: {values[key]!r} is not computed here in a model of this type; expected none")


def _head_size(values: Mapping[str, Any]) -> int | None:
    size, heads = values.get("hidden_size"), values.get("num_attention_heads")
    return size // heads if isinstance(size, int) and isinstance(heads, int) and heads else None


def remarks(values: Mapping[str, Any], read: frozenset[str]) -> list[str]:
    """Returns remarks on keys that are passed over: rates of dropout other than a task's, and keys that are not known."""
    drops = {key: value for key in RATES if key not in read and (value := values.get(key)) is not None}
    rates = [f"{key} {value}" for key, value in drops.items() if value != 0.1]
    unknown = sorted(set(values) - read - PASSED_OVER - {*SWITCHES, *OF_OTHERS})
    return [*([f"{', '.join(rates)}: of training alone, and not kept: a task says what its head drops (options.dropout)"] if rates else []),
            *([f"keys of its config.json that are not known here, nor to Hugging Face's classes, are passed over: {', '.join(unknown)}"]
              if unknown else [])]
