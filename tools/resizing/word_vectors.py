"""Reads word vectors from text files of GloVe, word2vec and fastText: a word and its numbers per line."""

from collections.abc import Collection

import numpy as np

from official_bert.storage.files import BadText, read_lines
from official_bert.text.tokenization import BasicTokenizer


def read_vectors(
    path: str, words: Collection[str], lower: bool = False, on_bad_text: BadText = "error"
) -> dict[str, np.ndarray]:
    """Returns the vectors of those `words` that are in a file, float64 [W] each. The first line may be word2vec's
    header.

    The file may be compressed (`.gz`). With `lower`, words first lose capitals and accents, as in a lower-cased
    vocabulary; the first of several counts, which is the most frequent in published files. Raises ValueError that names
    the line if it has fewer numbers than the first line, or other content.
    """
    vectors: dict[str, np.ndarray] = {}
    width, lower_casing = 0, BasicTokenizer(do_lower_case=True)
    for number, line in enumerate(read_lines(path, "file of word vectors", on_bad_text=on_bad_text, unzip=True), 1):
        fields = line.rstrip().replace("\t", " ").split(" ")
        if fields == [""] or (number == 1 and len(fields) == 2 and all(part.isdigit() for part in fields)):
            continue
        width = width or len(fields) - 1
        if width < 2 or len(fields) <= width:
            raise ValueError(f"{path}:{number}: expected a word and {max(width, 2)} numbers, got {line.strip()[:60]!r}")
        word = " ".join(fields[:-width])  # a few published words have spaces in them
        if lower:
            word = word.lower() if word.isascii() else lower_casing.normalise(word).strip()
        if word in words and word not in vectors:
            vectors[word] = _numbers(fields[-width:], f"{path}:{number}")
    if not width:
        raise ValueError(f"{path}: no word vector in this file")
    return vectors


def _numbers(fields: list[str], where: str) -> np.ndarray:
    try:
        vector = np.array(fields, np.float64)
    except ValueError:
        raise ValueError(f"{where}: expected {len(fields)} numbers, got {' '.join(fields)[:60]!r}") from None
    if not np.isfinite(vector).all():
        raise ValueError(f"{where}: expected finite numbers, got {' '.join(fields)[:60]!r}")
    return vector
