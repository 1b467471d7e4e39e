"""A model as a file of some format holds it, under our names: what every format reads and writes."""

import dataclasses
import json
import os
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np

from official_bert import files
from official_bert.config import ModelConfig
from official_bert.models.interchange.names import NameTable
from official_bert.text.vocab import read_entries

Head = Literal["", "pretraining", "classifier", "choice", "tagger", "span"]
VOCAB_FILE = "vocab.txt"
# The weights of each head begin so.
HEAD_PREFIXES: Mapping[str, str] = {"masked_lm/": "pretraining", "next_sentence/": "pretraining", "classifier/": "classifier",
                                    "tagger/": "tagger", "span/": "span"}


@dataclasses.dataclass(frozen=True, kw_only=True)
class StoredModel:
    """Weights by our names, kernels as matrices [in, out] or in our shapes, and what the files say of the model."""

    origin: str  # what was found, in words, with its path
    weights: Mapping[str, np.ndarray]
    table: NameTable  # their names, to speak of what is missing
    config: ModelConfig | None = None
    head: Head = ""
    vocab: Sequence[str] | None = None
    do_lower_case: bool | None = None
    labels: Sequence[str] = ()
    unknown: Sequence[str] = ()  # their weights that no row of the table stands for
    notes: Sequence[str] = ()  # what a user should know of how the files were understood


def head_of(weights: Mapping[str, Any], where: str) -> Head:
    """The head to which weights belong; ValueError where they belong to several."""
    heads = sorted({head for prefix, head in HEAD_PREFIXES.items() if any(name.startswith(prefix) for name in weights)})
    if len(heads) > 1:
        raise ValueError(f"{where}: expected one kind of head, got {' and '.join(heads)}")
    return heads[0] if heads else ""  # type: ignore[return-value]


def needs_pooler(stored: StoredModel) -> bool:
    """Whether the pooler is part of what the model computes: not for words, tags and spans."""
    return stored.head not in ("tagger", "span") and not (
        stored.head == "pretraining" and "next_sentence/output_weights" not in stored.weights)


def class_names(stored: StoredModel) -> list[str]:
    """Names of the classes of a classifier or tagger: those that are known, or as many numbered ones as there are classes."""
    count = len(stored.weights[f"{stored.head}/output_bias"])
    return list(stored.labels) if len(stored.labels) == count else [f"LABEL_{index}" for index in range(count)]


def check_vocabulary_rows(stored: StoredModel) -> None:
    """Raises ValueError where the vocabulary has not as many entries as the table of word embeddings has rows."""
    rows = len(stored.weights["embeddings/word_embeddings"])
    if stored.vocab is not None and len(stored.vocab) != rows:
        raise ValueError(f"{stored.origin}: the vocabulary has {len(stored.vocab)} entries, but the table of word embeddings "
                         f"{rows} rows; give the vocabulary that goes with it ([unusedN] entries may fill it up)")


def read_vocab(folder: str) -> list[str] | None:
    """The entries of the vocabulary in a folder, where there is one."""
    path = os.path.join(folder, VOCAB_FILE)
    return read_entries(path) if os.path.exists(path) else None


def write_vocab(stored: StoredModel, folder: str) -> None:
    """Writes the vocabulary, where the model has one."""
    if stored.vocab is not None:
        with open(os.path.join(folder, VOCAB_FILE), "w", encoding="utf-8", newline="") as file:
            file.write("\n".join(stored.vocab) + "\n")


def read_json(path: str) -> dict:
    """The mapping in a JSON file; ValueError if it is missing or holds something else."""
    values = files.read_json(path)
    if not isinstance(values, dict):
        raise ValueError(f"{path}: expected a mapping, got {str(values)[:80]}")
    return values


def write_json(values: Mapping[str, Any], path: str) -> None:
    """Writes a mapping as JSON."""
    with open(path, "w", encoding="utf-8") as file:
        json.dump(values, file, indent=2, ensure_ascii=False)
        file.write("\n")


def require_config(stored: StoredModel) -> ModelConfig:
    """The model's configuration; ValueError where the files do not have it."""
    if stored.config is None:
        raise ValueError(f"{stored.origin}: expected a bert_config.json beside it, got none: the number of attention heads "
                         "cannot be told from the weights")
    return stored.config


def refuse_numerics(config: ModelConfig, what: str, hidden_acts: Sequence[str]) -> None:
    """Raises ValueError for a model whose activation or epsilon another implementation does not have."""
    if config.hidden_act not in hidden_acts:
        raise ValueError(f"{what} has no hidden_act {config.hidden_act!r} (only {', '.join(hidden_acts)}); --hidden_act says "
                         "that the file's origin is mistaken, as for Google's models in Hugging Face's form")
    if config.layer_norm_epsilon != 1e-12:
        raise ValueError(f"{what} has layer_norm_epsilon 1e-12 only, the model {config.layer_norm_epsilon}")
