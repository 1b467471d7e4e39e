"""The nearest passages, their measures and the negatives among them, against sorting everything."""

import math
import sys

import numpy as np
import pytest
from needed_tools import need

from official_bert.search import measures, neighbours
from official_bert.search.bm25 import nearest_by_words
from official_bert.tools.mining.rules import MiningRules, choose, in_window


@pytest.mark.parametrize("values", ["random", "ties"])
def test_blocks_give_the_nearest_of_a_full_sort(values, monkeypatch):
    monkeypatch.setattr(neighbours, "QUERIES_AT_ONCE", 5)
    monkeypatch.setattr(neighbours, "PASSAGES_AT_ONCE", 16)
    rng = np.random.default_rng(0)
    queries, passages = (
        rng.integers(-2, 3, (rows, 4)).astype("float32")
        if values == "ties"
        else rng.normal(size=(rows, 4)).astype("float32")
        for rows in (13, 203)
    )
    products = queries @ passages.T
    order = np.argsort(-products, axis=1, kind="stable")[:, :30]
    scores, numbers = neighbours.nearest(queries, passages, 30)
    np.testing.assert_array_equal(numbers, order)
    np.testing.assert_allclose(scores, np.take_along_axis(products, order, axis=1), rtol=1e-6)
    assert neighbours.nearest(queries, passages[:3], 30)[1].shape == (13, 3)


def test_faiss_gives_the_same_with_a_flat_index():
    need("faiss")
    rng = np.random.default_rng(1)
    queries, passages = rng.normal(size=(5, 8)).astype("float32"), rng.normal(size=(50, 8)).astype("float32")
    np.testing.assert_array_equal(
        neighbours.nearest_by_faiss(queries, passages, 7, "Flat")[1], neighbours.nearest(queries, passages, 7)[1]
    )
    with pytest.raises(ValueError, match="an index of FAISS, 'nonsense'"):
        neighbours.nearest_by_faiss(queries, passages, 7, "nonsense")


def test_measures_are_those_worked_out_by_hand():
    # Answers at ranks 2 and 4 of grades 2 and 1; at rank 11; none found.
    rankings = [[9, 1, 8, 2], [*range(20, 30), 3], [4, 5]]
    relevant = [{1: 2, 2: 1}, {3: 1}, {7: 1, 6: 1}]
    found = measures.measure(rankings, relevant)
    gain = 2 / math.log2(3) + 1 / math.log2(5)
    assert found[0]["ndcg_at_10"] == pytest.approx(gain / (2 + 1 / math.log2(3)))
    assert found[0]["mrr_at_10"] == 0.5 and found[0]["map_at_100"] == pytest.approx((1 / 2 + 2 / 4) / 2)
    assert found[1]["mrr_at_10"] == found[1]["ndcg_at_10"] == 0.0 and found[1]["map_at_100"] == pytest.approx(1 / 11)
    assert [found[1][f"recall_at_{most}"] for most in (1, 5, 10, 100)] == [0.0, 0.0, 0.0, 1.0]
    assert set(found[2].values()) == {0.0}
    assert measures.means(found)["mrr_at_10"] == pytest.approx(0.5 / 3)


@pytest.mark.slow
def test_ranx_measures_the_same_where_trec_eval_has_no_wheel(monkeypatch):
    need("ranx")
    rng = np.random.default_rng(0)
    rankings = [rng.permutation(300)[:length].tolist() for length in (1, 5, 12, 100, 250)]
    relevant = [
        {int(number): int(grade) for number, grade in zip(rng.choice(300, 60, replace=False), rng.integers(1, 4, 60))}
        for _ in rankings[1:]
    ] + [{999: 1}]
    wanted = measures.measure(rankings, relevant)
    assert 0.0 < measures.means(wanted)["ndcg_at_10"] < 1.0
    monkeypatch.setitem(sys.modules, "pytrec_eval", None)
    for found, query in zip(measures.measure(rankings, relevant), wanted):
        assert found == pytest.approx(query, abs=1e-9)
    monkeypatch.setitem(sys.modules, "ranx", None)
    with pytest.raises(ValueError, match="expected the package pytrec_eval-terrier, or ranx"):
        measures.measure(rankings, relevant)


def test_negatives_come_from_a_window_of_ranks_below_the_positive():
    ranking, scores, answers = [7, 3, 5, 1, 9, 2], [0.9, 0.8, 0.7, 0.6, 0.5, 0.4], {3}
    rules = MiningRules(first_rank=2, last_rank=4)
    assert in_window(ranking, scores, answers, 0.8, rules) == [5, 1, 9]  # the answer takes no rank
    assert in_window(ranking, scores, answers, 0.8, MiningRules(margin=0.25)) == [9, 2]
    assert in_window(ranking, scores, answers, 0.8, MiningRules(relative_margin=0.25)) == [1, 9, 2]
    assert in_window(ranking, scores, answers, -math.inf, MiningRules(margin=0.0)) == []
    assert choose([5, 1, 9], MiningRules(negatives=2), np.random.default_rng(0)) == [5, 1]
    drawn = [
        tuple(choose([5, 1, 9], MiningRules(negatives=2, sample=True), np.random.default_rng(seed)))
        for seed in range(30)
    ]
    assert set(drawn) == {(5, 1), (5, 9), (1, 9)}


def test_words_rank_passages():
    passages = ["the king of rivers", "a river in Spain", "music and film", "king king king"]
    scores, numbers = nearest_by_words(["River in spain", "king"], passages, 3)
    assert numbers[0, 0] == 1 and numbers[1, 0] == 3 and numbers[1, 1] == 0 and scores[1, 2] == 0.0


@pytest.mark.parametrize(
    ("rules", "told"),
    [
        ({"first_rank": 5, "last_rank": 4}, "--first_rank, --last_rank"),
        ({"first_rank": 0}, "--first_rank: expected at least 1"),
        ({"negatives": 0}, "--negatives: expected at least 1"),
        ({"relative_margin": 1.0}, "--relative_margin"),
        ({"margin": 0.1, "relative_margin": 0.1}, "expected one of them"),
    ],
)
def test_rules_that_cannot_hold_are_refused(rules, told):
    with pytest.raises(ValueError, match=told):
        MiningRules(**rules)
