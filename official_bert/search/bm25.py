"""Ranks passages by their words: BM25 (Robertson et al. 1994), computed by bm25s."""

import logging
from collections.abc import Sequence

import bm25s
import numpy as np

QUERIES_AT_ONCE = 1024


def nearest_by_words(queries: Sequence[str], passages: Sequence[str], count: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns the BM25 scores and the numbers of the K = min(count, P) best passages of each query: [Q,K] each.

    Words are lower-cased, and no word is left out as too frequent. A passage without a word of the query scores 0.
    """
    logging.getLogger("bm25s").setLevel(logging.WARNING)  # else it tells each index that it makes
    index = bm25s.BM25()
    index.index(bm25s.tokenize(list(passages), stopwords=None, show_progress=False), show_progress=False)
    scores, numbers = [], []
    for start in range(0, len(queries), QUERIES_AT_ONCE):
        tokens = bm25s.tokenize(
            list(queries[start : start + QUERIES_AT_ONCE]), stopwords=None, show_progress=False, return_ids=False
        )
        ranked, values = index.retrieve(tokens, k=min(count, len(passages)), show_progress=False)
        numbers.append(ranked)
        scores.append(values)
    return np.concatenate(scores), np.concatenate(numbers).astype(np.int64)
