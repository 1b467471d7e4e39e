"""Replaces the tokenizer of a stored model, and sets vectors for its new words."""

import dataclasses
import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from official_bert.models.interchange import casing
from official_bert.models.interchange.stored_models import StoredModel
from official_bert.storage.files import BadText
from official_bert.text import loading
from official_bert.text.tokenization import FullTokenizer
from official_bert.text.tokenizer import Tokenizer
from official_bert.tools.resizing import weights as resizing
from official_bert.tools.resizing.word_vectors import read_vectors

SPECIAL = re.compile(r"\[[^\]]+\]")  # [CLS], [unused1]: no words


def with_tokenizer(
    stored: StoredModel, vocab: list[str] | None = None, files: Mapping[str, bytes] | None = None
) -> tuple[StoredModel, Tokenizer]:
    """Returns the model with another vocabulary or other tokenizer files, and that tokenizer."""
    if vocab is not None:
        stored = dataclasses.replace(stored, vocab=vocab)
    if files is not None:
        stored = dataclasses.replace(stored, tokenizer=files)
    if stored.tokenizer:
        return stored, loading.of_files(stored.tokenizer, stored.origin)
    entries = {token: index for index, token in enumerate(stored.vocab or ())}
    return stored, FullTokenizer(f"{stored.origin}: vocab.txt", casing.is_lower_case(stored) is not False, entries)


def vectors_of(stored: StoredModel, path: str, on_bad_text: BadText) -> dict[int, np.ndarray]:
    """Returns the vectors in a file for the vocabulary's whole words, by id. Raises ValueError for other tokenizers."""
    if stored.tokenizer:
        raise ValueError("--vectors: expected a checkpoint with a WordPiece vocabulary; this one has another tokenizer")
    ids = {word: index for index, word in enumerate(stored.vocab or ()) if is_word(word)}
    found = read_vectors(path, ids.keys(), bool(stored.do_lower_case), on_bad_text)
    return {ids[word]: vector for word, vector in found.items()}


def is_word(entry: str) -> bool:
    """Returns whether an entry is a whole word."""
    return not entry.startswith("##") and not SPECIAL.fullmatch(entry)


def map_vectors(
    stored: StoredModel, pieces: Mapping[int, list[int]], path: str, on_bad_text: BadText
) -> tuple[StoredModel, dict[str, Any]]:
    """Returns the model in which new words start from their mapped vectors, if they have one, and a note."""
    vectors, table = vectors_of(stored, path, on_bad_text), np.array(stored.weights[resizing.WORDS])
    rows, explained = resizing.map_vectors(table, vectors, pieces)
    for index, row in rows.items():
        table[index] = row
    print(
        f"{path}: vectors for {len(rows)} of {len(pieces)} new words "
        f"({len(rows) / max(len(pieces), 1):.1%}), fitted to "
        f"{len(vectors) - len(rows)} words of the checkpoint; the map explains {explained:.1%} of their embeddings"
    )
    note = {"of_words": len(rows), "explained": round(explained, 4)}
    return dataclasses.replace(stored, weights={**stored.weights, resizing.WORDS: table}), note
