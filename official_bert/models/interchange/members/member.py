"""`Member`, the table of a family member, and the translation of weights' names and `config.json` from and to Hugging
Face's.
"""

import dataclasses
import itertools
import re
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Any

from official_bert.model_config import ModelConfig, check_sizes
from official_bert.models.interchange.names import (
    DENSE,
    GOOGLES_LAYER,
    NORM,
    OUTPUT,
    NameTable,
    Rows,
    Tensors,
    layer_rows,
    rows,
    with_prefix,
)
from official_bert.models.interchange.stored_models import HEAD_PREFIXES, Fields, Head, Values

LINEAR = ("weight", "bias")
OLD_NORMS = {r"LayerNorm\.gamma": "LayerNorm.weight", r"LayerNorm\.beta": "LayerNorm.bias"}
ACTS = {
    "gelu": "gelu_erf",
    "gelu_python": "gelu_erf",
    "gelu_new": "gelu",
    "gelu_pytorch_tanh": "gelu",
    "gelu_fast": "gelu",
    **{name: name for name in ("relu", "silu", "tanh", "linear")},
    "swish": "silu",
}
OUR_ACTS = {"gelu_erf": "gelu", "gelu": "gelu_new", **{name: name for name in ("relu", "silu", "tanh", "linear")}}
ACT_FIELDS = ("hidden_act", "pooler_act", "masked_lm_act", "convolution_act")
# The keys of `config.json` that most members share, by our fields.
SIZES = {
    name: name
    for name in (
        "vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size",
        "max_position_embeddings", "type_vocab_size", "initializer_range",
    )
}  # fmt: skip
USUAL_KEYS = (
    SIZES
    | {name: name for name in ("hidden_act", "hidden_dropout_prob", "attention_probs_dropout_prob")}
    | {"layer_norm_epsilon": "layer_norm_eps"}
)


PARTS = {ours: theirs.replace("/", ".") for ours, theirs in GOOGLES_LAYER.items()}  # of a layer, under BERT's names


def layers(theirs: str, names: Mapping[str, str] = MappingProxyType({})) -> Rows:
    """Returns the rows of a layer. `names` are the parts with other names than BERT's, and those that BERT lacks."""
    return layer_rows(theirs, {**PARTS, **names}, ".", LINEAR)


def usual_forms(pooler: Rows, own_pooler: bool = False) -> dict[str, "Form"]:
    """Returns the classes for texts, choices, tokens and answers under BERT's names.

    With `own_pooler`, the class for texts has its own pooler (RoBERTa).
    """
    classifier = output("classifier/", "classifier.")
    own = Form("classifier", dense("pooler/", "classifier.dense."), output("classifier/", "classifier.out_proj."))
    return {
        "ForSequenceClassification": own if own_pooler else Form("classifier", pooler, classifier),
        "ForMultipleChoice": Form("choice", pooler, classifier),
        "ForTokenClassification": Form("tagger", output("tagger/", "classifier.")),
        "ForQuestionAnswering": Form("span", output("span/", "qa_outputs.")),
    }


def tables(
    prefix: str, names: Iterable[str] = ("word_embeddings", "token_type_embeddings", "position_embeddings")
) -> Rows:
    """Returns the rows of embedding tables and their layer norm under BERT's names."""
    return [
        *((f"embeddings/{name}", f"{prefix}embeddings.{name}.weight") for name in names),
        *norm("embeddings/LayerNorm/", f"{prefix}embeddings.LayerNorm."),
    ]


def dense(ours: str, theirs: str) -> Rows:
    """Returns the rows of a product with a bias."""
    return rows(ours, theirs, DENSE, LINEAR)


def norm(ours: str, theirs: str) -> Rows:
    """Returns the rows of a layer norm."""
    return rows(ours, theirs, NORM, LINEAR)


def words(transform: str, layer_norm: str, bias: str) -> Rows:
    """Returns the rows of the masked-LM head."""
    return [
        *dense("masked_lm/transform/", transform),
        *norm("masked_lm/LayerNorm/", layer_norm),
        ("masked_lm/output_bias", bias),
    ]


WORDS = words("cls.predictions.transform.dense.", "cls.predictions.transform.LayerNorm.", "cls.predictions.bias")


def bert_tied(prefix: str) -> dict[str, str]:
    """Returns the second names of the word table and of the masked-LM head's bias."""
    return {
        "cls.predictions.decoder.weight": f"{prefix}embeddings.word_embeddings.weight",
        "cls.predictions.decoder.bias": "cls.predictions.bias",
    }


def roberta_tied(prefix: str) -> dict[str, str]:
    """Returns the second names of the word table and of the masked-LM head's bias."""
    return {
        "lm_head.decoder.weight": f"{prefix}embeddings.word_embeddings.weight",
        "lm_head.decoder.bias": "lm_head.bias",
    }


def output(ours: str, theirs: str) -> Rows:
    """Returns the rows of an output layer."""
    return rows(ours, theirs, OUTPUT, LINEAR)


class Form:
    """A class of a member: its head, and the names of its weights beside the encoder's."""

    def __init__(self, head: Head, *rows: Rows):
        self.head, self.rows = head, tuple(row for part in rows for row in part)

    def of_head(self) -> dict[str, str]:
        """Returns the rows of the head's weights."""
        return with_prefix(dict(self.rows), *HEAD_PREFIXES)


def _nothing(_: Any) -> Fields:
    return {}


def _same(tensors: Tensors, _: ModelConfig) -> Tensors:
    return tensors


# Keys of `config.json` that members share: those that change what is computed, and those that change nothing, with the
# reason. A key that a member's table does not read is refused for a value that changes the computation, or is named
# here. Switches that change the computation of every member, with the values that are computed.
SWITCHES: Mapping[str, tuple] = {
    "position_embedding_type": ("absolute", None),
    "is_decoder": (False, None),
    "add_cross_attention": (False, None),
    "pruned_heads": ({}, None),
    "quantization_config": (None,),
    "compression_config": (None,),
}
# Keys that change the computation of some members. To a member that has no use for one, only these values say the same
# as its absence.
OF_OTHERS = (
    "num_hidden_groups",
    "inner_group_num",
    "use_task_id",
    "relative_attention",
    "relative_attention_num_buckets",
    "position_buckets",
    "pos_att_type",
    "share_att_key",
    "norm_rel_ebd",
    "conv_kernel_size",
    "rope_parameters",
    "rope_scaling",
    "rope_theta",
    "partial_rotary_factor",
    "global_rope_theta",
    "local_rope_theta",
    "layer_types",
    "local_attention",
    "global_attn_every_n_layers",
    "sliding_window",
    "attention_window",
    "attention_type",
    "rescale_embeddings",
    "trigram_input",
    "intra_bottleneck_size",
    "use_bottleneck",
    "num_feedforward_networks",
    "normalization_type",
    "is_encoder_decoder",
    "embedding_size",
    "norm_bias",
    "mlp_bias",
    "attention_bias",
    "head_dim",
    "attention_head_size",
    "alibi_starting_size",
    "feed_forward_type",
    "rotary_emb_fraction",
    "prenorm",
    "use_qk_norm",
    "per_layer_config",
    "summary_proj_to_labels",
)
NEUTRAL: tuple[Any, ...] = (None, False, 0, -1, "", "none", "original", [], {})
# Rates of dropout that change training alone; here embeddings drop as layers do, and heads what a task says (0.1, as in
# 2018).
RATES = (
    "classifier_dropout",
    "classifier_dropout_prob",
    "seq_classif_dropout",
    "qa_dropout",
    "pooler_dropout",
    "cls_dropout",
    "summary_last_dropout",
    "summary_first_dropout",
    "embedding_dropout",
)
# Keys that change no output of the models that are computed here, by the reason.
HARMLESS: Mapping[str, tuple[str, ...]] = {
    "names and versions, which the files' other parts say, too": (
        "architectures",
        "model_type",
        "transformers_version",
        "_name_or_path",
        "name_or_path",
        "_commit_hash",
        "auto_map",
        "tokenizer_class",
        "finetuning_task",
        "task_specific_params",
        "language",
        "prefix",
    ),
    "the type of the weights is that of the tensors; they are computed as the run says": (
        "torch_dtype",
        "dtype",
        "use_bfloat16",
    ),
    "read with the head": ("id2label", "label2id", "num_labels", "_num_labels", "problem_type"),
    "how the same numbers are computed and handed out": (
        "return_dict",
        "output_hidden_states",
        "output_attentions",
        "use_cache",
        "torchscript",
        "gradient_checkpointing",
        "chunk_size_feed_forward",
        "attn_implementation",
        "_attn_implementation",
        "_attn_implementation_autoset",
        "use_return_dict",
        "deterministic_flash_attn",
        "reference_compile",
        "repad_logits_with_grad",
        "output_past",
        "xla_device",
    ),
    "ids that the tokenizer's files say": (
        "pad_token_id",
        "bos_token_id",
        "eos_token_id",
        "cls_token_id",
        "sep_token_id",
        "unk_token_id",
        "mask_token_id",
        "decoder_start_token_id",
    ),
    "first weights, of which the file has others": (
        "initializer_factor",
        "initializer_cutoff_factor",
        "sinusoidal_pos_embds",
    ),
    "words of their own are found by comparing both tensors": ("tie_word_embeddings", "tie_encoder_decoder"),
    "both names of the head for words are read": ("legacy",),
    "which losses are computed": ("sparse_prediction", "sparse_pred_ignore_index"),
    "written by the authors, and read by no code": (
        "directionality",
        "pooler_fc_size",
        "pooler_num_attention_heads",
        "pooler_num_fc_layers",
        "pooler_size_per_head",
        "pooler_type",
        "down_scale_factor",
        "gap_size",
        "net_structure_type",
        "num_memory_blocks",
    ),
    "how decoders choose words": (
        "max_length",
        "min_length",
        "do_sample",
        "early_stopping",
        "num_beams",
        "num_beam_groups",
        "diversity_penalty",
        "temperature",
        "top_k",
        "top_p",
        "typical_p",
        "repetition_penalty",
        "length_penalty",
        "no_repeat_ngram_size",
        "encoder_no_repeat_ngram_size",
        "bad_words_ids",
        "num_return_sequences",
        "output_scores",
        "return_dict_in_generate",
        "forced_bos_token_id",
        "forced_eos_token_id",
        "remove_invalid_values",
        "exponential_decay_length_penalty",
        "suppress_tokens",
        "begin_suppress_tokens",
        "cross_attention_hidden_size",
    ),
}
PASSED_OVER = frozenset((*RATES, *itertools.chain(*HARMLESS.values())))


def check_keys(values: Values, switches: Mapping[str, tuple], read: frozenset[str]) -> None:
    """Raises ValueError for a key with an unsupported value; `switches` are a member's own, `read` the keys that it
    reads.
    """
    for key, usual in {**{key: usual for key, usual in SWITCHES.items() if key not in read}, **switches}.items():
        if values.get(key) not in usual:
            expected = repr(usual[0])
            if key.endswith("_config"):
                expected = "none: no quantised weights, but float32, float16 or bfloat16"
            raise ValueError(f"{key}: {values[key]!r:.80} is not supported; expected {expected}")
    usual_values = {"embedding_size": values.get("hidden_size")} | dict.fromkeys(
        ("head_dim", "attention_head_size"), _head_size(values)
    )
    for key in OF_OTHERS:
        if key not in read and values.get(key) not in NEUTRAL and values[key] != usual_values.get(key):
            raise ValueError(f"{key}: {values[key]!r:.80} is not supported in a model of this type; expected none")


def _head_size(values: Values) -> int | None:
    size, heads = values.get("hidden_size"), values.get("num_attention_heads")
    return size // heads if isinstance(size, int) and isinstance(heads, int) and heads else None


def key_remarks(values: Values, read: frozenset[str]) -> list[str]:
    """Returns remarks on ignored keys: dropout rates that differ from a task's, and unknown keys."""
    drops = {key: value for key in RATES if key not in read and (value := values.get(key)) is not None}
    rates = [f"{key} {value}" for key, value in drops.items() if value != 0.1]
    unknown = sorted(set(values) - read - PASSED_OVER - {*SWITCHES, *OF_OTHERS})
    remarks = list[str]()
    if rates:
        remarks.append(
            f"{', '.join(rates)}: ignored, because options.dropout sets the dropout of a task's head in training"
        )
    if unknown:
        remarks.append(
            "keys of its config.json that neither this package nor Hugging Face's classes know are ignored: "
            f"{', '.join(unknown)}"
        )
    return remarks


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Member:
    """A member of the family: its classes, names and keys. A class's name is a stem followed by a key of `forms`."""

    stems: Mapping[str, str]  # by model_type; the first is written unless the model says another
    prefix: str  # of the encoder's tensors in classes with heads
    encoder: Rows
    forms: Mapping[str, Form]
    # by our fields: keys with the same meaning
    keys: Mapping[str, str] = dataclasses.field(default_factory=lambda: USUAL_KEYS)
    fixed: Values = dataclasses.field(default_factory=dict)  # our fields that have this value in every model
    defaults: Values = dataclasses.field(default_factory=dict)  # of their keys, if a file leaves them out
    second_keys: Mapping[str, str] = dataclasses.field(default_factory=dict)  # keys that some files have for others
    # whether a `config.json` of one of its model types is this member's, if several members have the type
    claims: Callable[[Values], bool] = lambda _: True
    written_type: str = ""  # the model_type that is written, whatever files say; "": theirs
    # regular expressions of second names of tensors, and what replaces them
    second_names: Mapping[str, str] = dataclasses.field(default_factory=dict)
    left_out: Mapping[str, str] = dataclasses.field(default_factory=dict)  # parts of names of tensors: the warning
    heads_by_class: bool = True  # False: files of a class with a head may hold the encoder alone
    # more keys, with the values that are computed
    switches: Mapping[str, tuple] = dataclasses.field(default_factory=dict)
    used: tuple[str, ...] = ()  # more keys that `fields` reads or that are known to change nothing
    fields: Callable[[Values], Fields] = _nothing  # of their values: our fields that are no copies
    values: Callable[[ModelConfig], Fields] = _nothing  # the reverse of `fields`
    # second names of weights; files of some versions have both
    tied: Mapping[str, str] = dataclasses.field(default_factory=dict)
    # of a file's tensors, to the names and shapes of the table
    unpack: Callable[[Tensors, ModelConfig], Tensors] = _same
    pack: Callable[[Tensors, ModelConfig], Tensors] = _same  # the reverse
    sentence_task: str = ""  # that the head for sentences learned, if the files of all models say so by their kind

    @property
    def title(self) -> str:
        """The stem of the classes that are written by default."""
        return next(iter(self.stems.values()))

    def classes(self, model_type: str) -> dict[str, Form]:
        """Returns the forms by the names of their classes."""
        return {self.stems[model_type] + suffix: form for suffix, form in self.forms.items()}

    def usual_name(self, name: str) -> str:
        """Returns a tensor's name with the prefix of classes with heads, and in the spelling used since 2019."""
        for second, usual in (*OLD_NORMS.items(), *self.second_names.items()):
            name = re.sub(second, usual, name)
        table, prefixed = self.table(), self.prefix + name
        # embeddings, encoder
        modules = {theirs.removeprefix(self.prefix).partition(".")[0] for _, theirs in self.encoder}
        known = table.ours(prefixed) or name.partition(".")[0] in modules
        return prefixed if known and not table.ours(name) else name

    def table(self, form: Form | None = None) -> NameTable:
        """Returns the names of a class, and of other classes' weights, because files hold more than their class."""
        names: dict[str, str] = {}
        their_names: set[str] = set()
        for ours, theirs in [
            *self.encoder,
            *(form.rows if form else ()),
            *(row for other in self.forms.values() for row in other.rows),
        ]:
            if ours not in names and theirs not in their_names:
                names[ours] = theirs
                their_names.add(theirs)
        return NameTable(names.items())

    def form_of(self, head: Head, names: Iterable[str]) -> tuple[str, Form]:
        """Returns the suffix and the form of the class with this head and its weights.

        Raises ValueError if there is none.
        """
        of_heads = with_prefix(dict.fromkeys(names), *HEAD_PREFIXES).keys()
        forms = {suffix: form for suffix, form in self.forms.items() if form.head == head}
        for suffix, form in forms.items():
            if of_heads == form.of_head().keys():
                return suffix, form
        having = {ours for form in forms.values() for ours, _ in form.rows}
        lacking = ", ".join(sorted(of_heads - having or of_heads)[:3])
        raise ValueError(f"no class of Hugging Face's {self.title} has a head with these weights: {lacking}")

    def read_config(self, values: Values, path: str) -> Fields:
        """Returns the fields of ModelConfig for a `config.json`. Raises ValueError for unsupported values."""
        seconds = {self.second_keys[key]: value for key, value in values.items() if key in self.second_keys}
        values = {**self.defaults, **seconds, **values}
        try:
            check_keys(values, self.switches, self._read)
            fields = {ours: values[theirs] for ours, theirs in self.keys.items() if theirs in values}
            check_sizes(fields)
            for ours in [field for field in self.keys if field in ACT_FIELDS]:
                if not (isinstance(act := fields.get(ours, "gelu"), str) and act in ACTS):
                    raise ValueError(f"{self.keys[ours]}: expected one of {sorted(ACTS)}, got {act!r:.80}")
                fields[ours] = ACTS[act]
            return {**fields, **self.fixed, **self.fields(values)}
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from None
        except (TypeError, LookupError, AttributeError, ArithmeticError) as error:  # a text for a number, and the like
            raise ValueError(f"{path}: expected a valid configuration of {self.title}: {error}") from None

    def remarks(self, values: Values) -> list[str]:
        """Returns remarks on the keys of a `config.json` that are ignored."""
        return key_remarks(values, self._read)

    @property
    def _read(self) -> frozenset[str]:
        """The keys of `config.json` that the member reads."""
        return frozenset((*self.keys.values(), *self.switches, *self.used, *self.second_keys))

    def write_config(self, config: ModelConfig) -> Fields:
        """Returns the keys of `config.json` for a configuration."""
        fields = {ours: getattr(config, ours) for ours in self.keys}
        copied = {self.keys[ours]: OUR_ACTS[value] if ours in ACT_FIELDS else value for ours, value in fields.items()}
        return copied | self.values(config)

    def differences(self, config: ModelConfig) -> list[str]:
        """Returns the fields of a configuration that this member lacks or has with another value."""
        try:
            again = ModelConfig(**self.read_config(self.write_config(config), ""))
        except (KeyError, TypeError, ValueError):
            return list(ModelConfig.__dataclass_fields__)
        again, config = (
            dataclasses.replace(one, masked_lm_act=one.masked_lm_act or one.hidden_act) for one in (again, config)
        )
        return [name for name in ModelConfig.__dataclass_fields__ if getattr(again, name) != getattr(config, name)]
