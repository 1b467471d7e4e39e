import random

import numpy as np
import pytest

from official_bert.data.raw_text import deduplication

VOCABULARY = [f"word{number}" for number in range(5000)]
FINGERPRINT = deduplication.Fingerprinter(near=True)


def jaccard(one, other):
    first, second = FINGERPRINT.features(one), FINGERPRINT.features(other)
    return len(first & second) / len(first | second)


def planted_pair(draw, similarity, size=200):
    """Two texts whose sets of features have about this similarity: some words of the one are replaced, one by one."""
    words = draw.sample(VOCABULARY, size)
    other = list(words)
    for place in draw.sample(range(size), size):
        if jaccard(" ".join(words), " ".join(other)) <= similarity:
            break
        other[place] = f"other{place}"
    return " ".join(words), " ".join(other)


def found(pairs, folder, similarity=0.8):
    """How many second texts of the pairs are called near duplicates."""
    seen = deduplication.Deduplicator(("near",), str(folder), similarity)
    return sum([seen.is_duplicate(FINGERPRINT([[text]])) == "near" for pair in pairs for text in pair][1::2])


def test_pairs_of_similarity_four_fifths_are_found_and_of_two_fifths_are_not(tmp_path):
    draw = random.Random(1)
    (tmp_path / "b").mkdir()
    assert found([planted_pair(draw, 0.8) for _ in range(40)], tmp_path) >= 38
    assert found([planted_pair(draw, 0.4) for _ in range(40)], tmp_path / "b") <= 1


def test_a_signature_estimates_the_similarity_of_the_sets():
    draw = random.Random(2)
    for similarity in (0.5, 0.8):
        estimates = [
            np.mean(FINGERPRINT.signature(one) == FINGERPRINT.signature(other))
            for one, other in (planted_pair(draw, similarity) for _ in range(25))
        ]
        assert np.mean(estimates) == pytest.approx(similarity, abs=0.04)


def test_thai_and_chinese_have_features_too():
    assert jaccard("ประวัติศาสตร์ของเมืองนี้เริ่มต้นขึ้น", "ประวัติศาสตร์ของเมืองนั้นเริ่มต้นขึ้น") > 0.5
    assert FINGERPRINT.features("北京是") == {"北", "京", "是", "北 京", "京 是"}


def test_an_index_finds_what_was_added_across_merges(monkeypatch):
    monkeypatch.setattr(deduplication, "RECENT", 16)
    index, numbers = deduplication.Index(), np.random.default_rng(0).integers(0, 2**63, 1000).astype(np.uint64)
    for entry, number in enumerate(numbers):
        assert index.find(np.array([number])) == set()
        index.add(np.array([number]), entry)
    assert all(index.find(numbers[entry : entry + 1]) == {entry} for entry in range(1000))
    assert index.find(np.array([1, 2, 3], np.uint64)) == set() and len(index._levels) < 10


def test_exact_duplicates_of_paragraphs_and_documents(tmp_path):
    seen = deduplication.Deduplicator(("paragraphs", "documents"), str(tmp_path))
    one, two = FINGERPRINT([["A.", "B."], ["C."]]), FINGERPRINT([["D."], ["C."], ["D."]])
    assert [seen.is_duplicate(document) for document in (one, two, one)] == ["", "", "exact"]
    assert seen.repeated_paragraphs(one) == [False, False]
    assert seen.repeated_paragraphs(two) == [False, True, True]
