"""Documents of the same text: which they are, and that none is the random next segment of another."""

import numpy as np
import pytest

from official_bert.data.pretraining import equal_documents
from official_bert.data.pretraining.equal_documents import texts_of_documents
from official_bert.data.pretraining.instances import InstanceConfig, InstanceSampler
from official_bert.data.pretraining.masking import VocabularyFacts
from official_bert.data.pretraining.rows import Corpus

CLS, SEP = 2, 3
FACTS = VocabularyFacts(65000, CLS, SEP, 4, np.zeros(65000, np.bool_), np.arange(10))
CONFIG = InstanceConfig(max_seq_length=32, max_predictions_per_seq=5, dupe_factor=20, masking=None)


def arrays(documents):
    """Tokens, starts of sentences and starts of documents."""
    sentences = [sentence for document in documents for sentence in document]
    tokens = np.array([token for sentence in sentences for token in sentence], np.uint16)
    return tokens, np.cumsum([0, *map(len, sentences)]), np.cumsum([0, *map(len, documents)])


def test_a_copy_is_told_by_its_tokens():
    documents = [[[5, 6], [7]], [[8]], [[5], [6, 7]], [[8]], [[5, 6]], [[7, 6, 5]], [[8]]]
    assert texts_of_documents(*arrays(documents)).tolist() == [0, 1, 0, 1, 4, 5, 1]
    assert texts_of_documents(*arrays([])).tolist() == []


def test_documents_that_only_share_a_hash_are_no_copies(monkeypatch):
    monkeypatch.setattr(equal_documents, "_hash_documents", lambda tokens, ends: np.zeros(len(ends) - 1, np.uint64))
    documents = [[[5, 6]], [[5, 7]], [[5, 6]], [[5]]]
    assert texts_of_documents(*arrays(documents)).tolist() == [0, 1, 0, 3]


def random_partners(num_copies, apart):
    """The pairs of numbers of a text and of that of its random next segment; no token stands in two texts."""
    texts = [[[10 + 20 * text + 5 * line + token for token in range(5)] for line in range(4)] for text in range(3)]
    tokens, starts, document_starts = arrays(texts * num_copies)
    same = texts_of_documents(tokens, starts, document_starts) if apart else np.arange(3 * num_copies)
    corpus = Corpus(tokens, starts, document_starts, np.arange(3 * num_copies), same)
    sampler = InstanceSampler(CONFIG, FACTS, corpus, 1)
    pairs = []
    for rows in sampler.blocks(np.zeros((50, sampler.row_width), np.uint16)):
        for length, second, label, _, *ids in rows.tolist():
            if label and second < length - 1:
                pairs.append(((ids[1] - 10) // 20, (ids[second] - 10) // 20))
    return pairs


@pytest.mark.parametrize("num_copies", [2, 7])
def test_no_random_next_segment_comes_from_a_copy(num_copies):
    apart, as_in_2018 = random_partners(num_copies, True), random_partners(num_copies, False)
    assert len(apart) > 100 and not [pair for pair in apart if pair[0] == pair[1]]
    assert np.mean([first == second for first, second in as_in_2018]) > 0.15
    assert set(apart) == {(a, b) for a in range(3) for b in range(3) if a != b}


def test_a_corpus_of_copies_of_one_document_is_sampled_to_the_end():
    tokens, starts, document_starts = arrays([[[10, 11], [12, 13], [14]]] * 4)
    corpus = Corpus(tokens, starts, document_starts, np.arange(4), np.zeros(4, np.int64))
    sampler = InstanceSampler(CONFIG, FACTS, corpus, 1)
    assert sum(len(rows) for rows in sampler.blocks(np.zeros((50, sampler.row_width), np.uint16))) >= 80
