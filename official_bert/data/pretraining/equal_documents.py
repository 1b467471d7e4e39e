"""Documents of the same text."""

import numpy as np

from official_bert.text.compiling import compiled, read_only


def texts_of_documents(tokens: np.ndarray, sentence_starts: np.ndarray, document_starts: np.ndarray) -> np.ndarray:
    """Returns, for each document, the number of the first document with the same tokens, [documents] int64.

    It is a document's own number unless it is a copy of an earlier one. How the tokens are split into sentences does
    not matter.
    """
    tokens, ends = read_only(tokens), sentence_starts[document_starts]
    _, first_of_hash, hash_numbers = np.unique(_hash_documents(tokens, ends), return_index=True, return_inverse=True)
    firsts = first_of_hash[hash_numbers]
    _compare(tokens, ends, firsts)
    return firsts


@compiled(nogil=True)
def _hash_documents(tokens: np.ndarray, ends: np.ndarray) -> np.ndarray:
    """Returns 64 bits of hash of the tokens between neighbouring `ends`."""
    hashes = np.empty(len(ends) - 1, np.uint64)
    for document in range(len(hashes)):
        value = np.uint64(ends[document + 1] - ends[document])
        for place in range(ends[document], ends[document + 1]):
            value = (value ^ np.uint64(tokens[place])) * np.uint64(0x9E3779B97F4A7C15)
            value ^= value >> np.uint64(32)
        hashes[document] = value
    return hashes


@compiled(nogil=True)
def _compare(tokens: np.ndarray, ends: np.ndarray, firsts: np.ndarray) -> None:
    """Resets a document to its own number if it has the hash, but not the text, of another."""
    for document in range(len(firsts)):
        first, size = ends[firsts[document]], ends[document + 1] - ends[document]
        same = ends[firsts[document] + 1] - first == size
        place = 0
        while same and place < size:
            same = tokens[first + place] == tokens[ends[document] + place]
            place += 1
        if not same:
            firsts[document] = document
