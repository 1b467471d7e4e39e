"""`StoredModel`, a model read from a file of any format, under our names, and functions that several formats use."""

import dataclasses
import json
import os
import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
import safetensors

from official_bert.config import ModelConfig, build, read_bert_config
from official_bert.limits import MOST_DIMENSIONS, MOST_LINKS, require_at_most
from official_bert.model_config import BERT_BASE, OF_RELATIVES
from official_bert.models.interchange.names import NameTable, Tensors, Weights, with_prefix
from official_bert.models.vector_layers import Poolings, VectorLayer
from official_bert.text.loading import VOCAB_FILE
from official_bert.text.subwords import tokenizer_files
from official_bert.text.vocab import read_entries

Values = Mapping[str, Any]  # of another project's JSON file
Fields = dict[str, Any]  # of a configuration or a `StoredModel`, by their names
Head = Literal["", "pretraining", "classifier", "choice", "tagger", "span", "replaced", "decoder"]
Kind = Literal["", "classifier", "multi_label", "regression"]
Objective = Literal["", "masked_lm", "next_token", "replaced_tokens"]
BERT_CONFIG_FILE = "bert_config.json"
# options of a run of replaced tokens that say what the model is
OBJECTIVE_OPTIONS = ("generator_width", "generator_layers", "embedding_sharing", "adds_first")
# Weights that tell the sizes.
SIZED = (
    "embeddings/word_embeddings",
    "embeddings/position_embeddings",
    "embeddings/token_type_embeddings",
    "layer_0/attention/query/kernel",
    "layer_0/intermediate/kernel",
)
# Types of safetensors: of weights, and of buffers beside them. Whole numbers as weights are refused by their reader.
WEIGHT_TYPES, OTHER_TYPES = (
    ("F32", "F16", "BF16", "F64"),
    ("I64", "I32", "I16", "I8", "U64", "U32", "U16", "U8", "BOOL"),
)
# Prefixes of the weights of each head.
HEAD_PREFIXES: Mapping[str, str] = {
    "masked_lm/": "pretraining",
    "next_sentence/": "pretraining",
    "classifier/": "classifier",
    "tagger/": "tagger",
    "span/": "span",
    "replaced": "replaced",
    "decoder/": "decoder",
}


@dataclasses.dataclass(frozen=True)
class LowRank:
    """A low-rank product: it maps rows x [...,K] to scale x A B [...,N]."""

    down: np.ndarray  # A [K,R]
    up: np.ndarray  # B [R,N]
    scale: float

    def delta(self) -> np.ndarray:
        """Returns the product that is added to a kernel, float64 [K,N]."""
        return self.scale * (self.down.astype(np.float64) @ self.up.astype(np.float64))


@dataclasses.dataclass(frozen=True)
class Adapters:
    """The changes to a base: products that are merged into kernels, and weights that replace the base's."""

    products: Mapping[str, LowRank]  # by our names: layer_0/attention/query
    replaced: Sequence[str]  # our names of weights: of the head, biases
    base: str  # its path


@dataclasses.dataclass(frozen=True, kw_only=True)
class StoredModel:
    """Weights by our names, kernels as matrices [in, out] or in our shapes, and the metadata of the model's files."""

    origin: str  # format and path
    weights: Weights
    table: NameTable  # of their names, for messages
    config: ModelConfig | None = None
    model_type: str = ""  # Hugging Face's name of the member of the family; "" if the files do not say
    head: Head = ""
    any_linear_head: bool = False  # a classifier's head may be one for tags: the files do not say which
    vocab: Sequence[str] | None = None  # WordPieces
    tokenizer: Mapping[str, bytes] = dataclasses.field(default_factory=dict)  # files of another tokenizer, by name
    do_lower_case: bool | None = None
    labels: Sequence[str] = ()
    kind: Kind = ""  # of a classifier's answers; "" if the files do not say
    # of several labels: the option of the run; None if the files do not say
    threshold: float | str | Sequence[float] | None = None
    objective: Objective = ""  # of a pre-trained model's head for words; "" if the files do not say
    objective_options: Mapping[str, Any] = dataclasses.field(default_factory=dict)  # of the run, beside the objective
    generator: "StoredModel | None" = None  # of a discriminator, which learned to tell its guesses
    # that a pre-trained model's head for sentences learned: nsp or sop; "" if the files do not say
    sentence_task: str = ""
    pooling: Poolings | Literal[""] = ""  # of an encoder's rows to a vector of the text; "": the files do not say
    include_prompt: bool = True  # whether the tokens of a prompt are pooled too
    vector_layers: Sequence[VectorLayer] = ()  # behind the pooling; their weights are `vector_NUMBER/...`
    dimensions: int = 0  # first numbers of a vector that are given alone; 0: all
    normalize: bool = False  # whether vectors of texts then have length 1
    default_prompt: str = ""  # in front of texts of which nobody says what they are
    # what the files say about vectors and is not computed here: nothing answers with this model
    why_no_vectors: str = ""
    # in front of texts: of a `query`, of a `passage`, of those with the files' own names
    prompts: Mapping[str, str] = dataclasses.field(default_factory=dict)
    longest_text: int = 0  # tokens of a text of which a vector is made; 0: the files do not say
    unknown: Sequence[str] = ()  # their weights that have no row in the table
    notes: Sequence[str] = ()  # assumptions made when reading the files
    folder: str = ""  # on this machine, in which its files lie; "" if it was not read from files
    adapters: Adapters | None = None  # merged into the weights already
    # what the files say and is not done here: answers differ from those of the model's own library
    warnings: Sequence[str] = ()


def head_of(weights: Mapping[str, Any], where: str) -> Head:
    """Returns the head that the weights belong to ("": none). Raises ValueError if they belong to several."""
    heads = sorted({head for prefix, head in HEAD_PREFIXES.items() if with_prefix(weights, prefix)})
    if len(heads) > 1:
        raise ValueError(f"{where}: expected one kind of head, got {' and '.join(heads)}")
    return heads[0] if heads else ""  # type: ignore[return-value]


def needs_pooler(stored: StoredModel) -> bool:
    """Returns whether the model uses the pooler.

    Models for words, tags and spans do not, unless their rows also pass through it (`pooler_norm`).
    """
    if stored.config is not None and stored.config.pooler_norm and stored.head != "replaced":
        return True
    return stored.head not in ("tagger", "span", "replaced", "decoder") and not (
        stored.head == "pretraining" and "next_sentence/output_weights" not in stored.weights
    )


def sizes_in(weights: Weights, table: NameTable, where: str) -> Fields:
    """Returns the sizes of a model, as fields of ModelConfig, from its weights.

    Raises ValueError if weights are missing.
    """
    if missing := [table.theirs(name) for name in SIZED if name not in weights]:
        raise ValueError(f"{where}: {', '.join(map(str, missing))} is missing")
    words, positions, segments, query, intermediate = (weights[name].shape for name in SIZED)
    return {
        "vocab_size": words[0],
        "hidden_size": query[0],
        "embedding_size": 0 if words[1] == query[0] else words[1],
        "num_hidden_layers": len({name.partition("/")[0] for name in weights if name.startswith("layer_")}),
        "intermediate_size": intermediate[1],
        "max_position_embeddings": positions[0],
        "type_vocab_size": segments[0],
    }


def class_names(stored: StoredModel) -> list[str]:
    """Returns the class names of a classifier or tagger: the known ones, or LABEL_0, LABEL_1, ..."""
    count = len(stored.weights.get(f"{stored.head}/output_bias", ()))
    return list(stored.labels) if len(stored.labels) == count else [f"LABEL_{index}" for index in range(count)]


def check_vocabulary_rows(stored: StoredModel, is_own: bool = False) -> int:
    """Returns the number of unused rows in the word table: the model's own vocabulary may have fewer entries.

    Raises ValueError for a vocabulary with more entries, and for a vocabulary other than the model's own with fewer.
    """
    rows = len(stored.weights["embeddings/word_embeddings"])
    spare = 0 if stored.vocab is None else rows - len(stored.vocab)
    if spare < 0 or (spare and not is_own):
        assert stored.vocab is not None
        raise ValueError(
            f"{stored.origin}: the vocabulary has {len(stored.vocab)} entries, but the table of word embeddings "
            f"{rows} rows; give the model's own vocabulary ([unusedN] entries may fill it up)"
        )
    return spare


def read_config(folder: str) -> ModelConfig | None:
    """Returns the `bert_config.json` in a folder, or None if there is none."""
    path = os.path.join(folder, BERT_CONFIG_FILE)
    return build(ModelConfig, read_bert_config(path), path) if os.path.exists(path) else None


def read_vocab(folder: str) -> list[str] | None:
    """Returns the entries of the vocabulary in a folder, or None if there is none."""
    path = os.path.join(folder, VOCAB_FILE)
    return read_entries(path) if os.path.exists(path) else None


def read_tokenizer(folder: str) -> dict[str, bytes]:
    """Returns the files of a tokenizer other than WordPiece in a run's folder, or {} if there are none."""
    path = os.path.join(folder, tokenizer_files.BUNDLE)
    return tokenizer_files.read(path) if os.path.exists(path) else {}


def write_vocab(stored: StoredModel, folder: str) -> None:
    """Writes the model's vocabulary, or the files of another tokenizer in one file, if it has one."""
    if stored.tokenizer:
        with open(os.path.join(folder, tokenizer_files.BUNDLE), "wb") as bundle:
            bundle.write(tokenizer_files.pack(stored.tokenizer))
    if stored.vocab is not None:
        with open(os.path.join(folder, VOCAB_FILE), "w", encoding="utf-8", newline="") as file:
            file.write("\n".join(stored.vocab) + "\n")


def read_safetensors(path: str) -> tuple[Tensors, dict[str, str]]:
    """Returns the tensors of a file and its metadata. Raises ValueError for damaged files and unsupported types."""
    try:
        with safetensors.safe_open(path, framework="numpy") as file:
            names = file.keys()
            require_at_most(MOST_LINKS, len(names), "tensors", path)
            for name in names:
                tensor = file.get_slice(name)
                require_at_most(MOST_DIMENSIONS, len(tensor.get_shape()), "dimensions", f"{path}: {name:.80}")
                if (kind := tensor.get_dtype()) not in (*WEIGHT_TYPES, *OTHER_TYPES):
                    raise ValueError(
                        f"{path}: {name}: {kind}: quantised weights are not supported; expected one of "
                        f"{', '.join(WEIGHT_TYPES)}"
                    )
            return {name: file.get_tensor(name) for name in names}, file.metadata() or {}
    except (safetensors.SafetensorError, TypeError, KeyError) as error:
        if kind := re.search("unknown variant `(.*?)`", str(error)):
            raise ValueError(
                f"{path}: {kind[1][:40]}: an unknown type of tensors; expected one of {', '.join(WEIGHT_TYPES)}"
            ) from None
        raise ValueError(f"{path}: damaged safetensors file: {' '.join(str(error).split())[:300]}") from None


def write_mapping(values: Values | Sequence[Any], *path: str) -> None:
    """Writes a mapping, or a list, as JSON to a file; `path` may be in parts, folder and name."""
    with open(os.path.join(*path), "w", encoding="utf-8") as file:
        json.dump(values, file, indent=2, ensure_ascii=False)
        file.write("\n")


def require_config(stored: StoredModel) -> ModelConfig:
    """Returns the model's configuration. Raises ValueError if the files do not have it."""
    if stored.config is None:
        raise ValueError(
            f"{stored.origin}: expected a bert_config.json beside it, got none: the number of attention heads "
            "cannot be told from the weights"
        )
    return stored.config


def refuse_architecture(config: ModelConfig, what: str) -> None:
    """Raises ValueError for a model with a BiLSTM or another attention than bidirectional, which other formats of BERT
    lack.
    """
    if config.attention != "bidirectional":
        raise ValueError(
            f"{what} attends in both directions, the model {config.attention} (model.attention): its outputs would "
            "differ there; only --to=ours can hold it"
        )
    if config.bilstm_layers:
        raise ValueError(
            f"{what} has no BiLSTM, the model {config.bilstm_layers} (model.bilstm_layers); only --to=ours can hold it"
        )


def refuse_numerics(config: ModelConfig, what: str, hidden_acts: Sequence[str]) -> None:
    """Raises ValueError for an activation, an epsilon or a relative's part that another implementation lacks."""
    others = [key for key in OF_RELATIVES if getattr(config, key) != getattr(BERT_BASE, key)]
    if others:
        values = ", ".join(f"{key} {getattr(config, key)!r}" for key in others)
        raise ValueError(
            f"{what} computes only BERT, but the model has {values}: only --to=ours or --to=hugging_face can hold it"
        )
    if not config.type_vocab_size:
        raise ValueError(
            f"{what} has segments, but the model has none (type_vocab_size 0): only --to=ours or --to=hugging_face can "
            "hold it"
        )
    refuse_acts(config, what, hidden_acts)


def refuse_acts(config: ModelConfig, what: str, hidden_acts: Sequence[str]) -> None:
    """Raises ValueError for an activation or an epsilon that another implementation lacks."""
    if config.hidden_act not in hidden_acts:
        raise ValueError(
            f"{what} has no hidden_act {config.hidden_act!r} (only {', '.join(hidden_acts)}); --hidden_act overrides "
            "the file, as for Google's models in Hugging Face's format"
        )
    if config.layer_norm_epsilon != 1e-12:
        raise ValueError(f"{what} has layer_norm_epsilon 1e-12 only, the model {config.layer_norm_epsilon}")
