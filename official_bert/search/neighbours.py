"""Finds the nearest passages of queries by blocks of exact products. Memory does not grow with the number of passages.

Q queries, P passages, D numbers of a vector, K nearest.
"""

import numpy as np

from official_bert.text.compiling import compiled

QUERIES_AT_ONCE, PASSAGES_AT_ONCE = 1024, 8192  # a block of products has 32 MB


def nearest(queries: np.ndarray, passages: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns the products and the numbers of the K = min(count, P) nearest passages of each query, best first: [Q,K]
    each.

    queries [Q,D], passages [P,D], in memory or mapped from a file. Of equal products, the lower passage number comes
    first.
    """
    count = min(count, len(passages))
    scores = np.full((len(queries), count), -np.inf, np.float32)
    numbers = np.zeros((len(queries), count), np.int64)
    for start in range(0, len(passages), PASSAGES_AT_ONCE):
        block = np.ascontiguousarray(passages[start : start + PASSAGES_AT_ONCE], np.float32).T
        for first in range(0, len(queries), QUERIES_AT_ONCE):
            rows = slice(first, first + QUERIES_AT_ONCE)
            products = np.ascontiguousarray(queries[rows], np.float32) @ block
            _keep_largest(products, start, scores[rows], numbers[rows])
    return scores, numbers


@compiled(nogil=True)
def _keep_largest(products: np.ndarray, start: int, scores: np.ndarray, numbers: np.ndarray) -> None:
    """Inserts products into the largest ones of each query, which are sorted, the best first."""
    count = scores.shape[1]
    for row in range(products.shape[0]):
        for column in range(products.shape[1]):
            value, place = products[row, column], count
            # numbers rise, so of equal products the new one stays behind
            while place and value > scores[row, place - 1]:
                place -= 1
                if place + 1 < count:
                    scores[row, place + 1], numbers[row, place + 1] = scores[row, place], numbers[row, place]
            if place < count:
                scores[row, place], numbers[row, place] = value, start + column


def nearest_by_faiss(
    queries: np.ndarray, passages: np.ndarray, count: int, factory: str
) -> tuple[np.ndarray, np.ndarray]:
    """Returns the same as `nearest`, approximately, from a FAISS index in memory named by its factory string (`HNSW32`,
    `IVF1024,Flat`).

    Raises ValueError if FAISS is not installed or does not know the index.
    """
    try:
        import faiss
    except ImportError:
        raise ValueError(
            f"an index of FAISS ({factory}): expected the package faiss-cpu: pip install official-bert[faiss]"
        ) from None
    try:
        index = faiss.index_factory(passages.shape[1], factory, faiss.METRIC_INNER_PRODUCT)
        index.train(np.ascontiguousarray(passages, np.float32))
        index.add(np.ascontiguousarray(passages, np.float32))
    except RuntimeError as error:
        raise ValueError(f"an index of FAISS, {factory!r}: {str(error).strip().splitlines()[-1][:200]}") from None
    scores, numbers = index.search(np.ascontiguousarray(queries, np.float32), min(count, len(passages)))
    return scores, numbers
