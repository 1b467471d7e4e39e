"""Search and similarity, against values worked out by hand."""

import numpy as np
import pytest

from official_bert.search import measures
from official_bert.tasks.retrieval import metrics


def turned(*degrees):
    """Returns vectors [N,2] of length 1."""
    angles = np.deg2rad(degrees)
    return np.stack([np.cos(angles), np.sin(angles)], axis=-1)


def test_ranks_of_right_texts_are_those_worked_out_by_hand():
    queries, answers = turned(0, 0, 90, 180), turned(10, 50, 40, 60)
    texts = np.array([[0, 1], [0, 2], [3, 4], [5, 6]])  # query 0 has two right answers
    # Query 0 sees 10 (right), 40, 50 (right), 60: ranks 1 and 3, of right ones the second. Query 3 at 90 sees 60, 50,
    # 40 (right): rank 3. Query 5 at 180 sees 60 (right) first.
    by_query, rows, nearest = metrics.search(np.stack([queries, answers], axis=1), texts)
    found = measures.means(by_query)
    assert found["mrr"] == pytest.approx((1 + 1 / 3 + 1) / 3)
    assert found["recall_at_1"] == pytest.approx((1 / 2 + 0 + 1) / 3)
    assert found["recall_at_5"] == found["recall_at_10"] == 1.0
    assert rows.tolist() == [0, 2, 3] and nearest == [0, 3, 3]
    # The gain of rank r is 1 / log2(r + 1); the best order of two right answers has ranks 1 and 2.
    gains = [query["ndcg_at_10"] for query in by_query]
    assert gains == pytest.approx([(1 + 1 / 2) / (1 + 1 / np.log2(3)), 1 / 2, 1])


def test_equal_vectors_find_nothing_and_a_query_does_not_find_itself():
    same = np.stack([turned(*[30] * 20)] * 2, axis=1)
    texts = np.arange(40).reshape(20, 2)
    found = measures.means(metrics.search(same, texts)[0])
    assert found["mrr"] == pytest.approx(1 / 20) and found["recall_at_1"] == found["recall_at_10"] == 0.0
    # The second query stands among the answers too, nearer to itself than its right answer is.
    circular = np.stack([turned(90, 0), turned(0, 45)], axis=1)
    found = measures.means(metrics.search(circular, np.array([[0, 1], [1, 2]]))[0])
    assert found["mrr"] == pytest.approx((1 / 2 + 1) / 2)


def test_similarity_is_the_correlation_of_cosines_with_scores():
    vectors = np.stack([turned(0, 0, 0, 0), turned(80, 60, 20, 10)], axis=1)
    found = metrics.similarity(vectors, np.array([0.0, 1.0, 3.0, 5.0]))
    assert found["spearman"] == pytest.approx(1.0) and 0.9 < found["pearson"] < 1.0
    assert all(np.isnan(value) for value in metrics.similarity(vectors, np.ones(4)).values())
