"""Sentences that stand together: 2018's algorithm in plain Python and the compiled one, and each task's properties."""

import collections
import itertools
import random

import numpy as np
import pytest
from made_generation import facts_of

from official_bert.data.pretraining.instances import InstanceConfig, InstanceSampler
from official_bert.data.pretraining.masking import MaskingConfig, VocabularyFacts
from official_bert.data.pretraining.rows import HEADER, UNPAIRED, Corpus

VOCAB = (
    {"[PAD]": 0, "[UNK]": 1, "[CLS]": 2, "[SEP]": 3, "[MASK]": 4}
    | {f"w{n}": n for n in range(5, 60)}
    | {f"##p{n}": n for n in range(60, 100)}
)
FACTS = facts_of(VOCAB)
CLS, SEP, MASK = 2, 3, 4


def make_corpus(documents):
    """Lists of lists of ids as compiled functions take them."""
    sentences = [sentence for document in documents for sentence in document]
    tokens = np.array([token for sentence in sentences for token in sentence], np.uint16)
    return Corpus(
        tokens,
        np.cumsum([0, *map(len, sentences)]),
        np.cumsum([0, *map(len, documents)]),
        np.arange(len(documents)),
        np.arange(len(documents)),
    )


def sample(documents, config, seed=0, facts=FACTS):
    """(ids, start of the second segment, label, positions, originals) of each instance."""
    sampler = InstanceSampler(config, facts, make_corpus(documents), seed)
    block = np.zeros((7, sampler.row_width), np.uint16)
    found = []
    for rows in sampler.blocks(block):
        for row in rows.tolist():
            length, second, label, count = row[:HEADER]
            S, P = config.max_seq_length, sampler.plan.max_predictions_per_seq
            body = row[HEADER:]
            found.append((body[:length], second, label, body[S : S + count], body[S + P : S + P + count]))
    return found, sampler


def joined(sentences):
    return list(itertools.chain(*sentences))


def random_documents(seed, documents=9, longest=9, words=14):
    rng = random.Random(seed)
    return [
        [[rng.randint(5, 99) for _ in range(rng.randint(1, words))] for _ in range(rng.randint(1, longest))]
        for _ in range(documents)
    ]


def plain_instances(documents, config, rng):
    """The algorithm of 2018, written from its description, over lists."""
    documents = list(documents)
    rng.shuffle(documents)
    most = config.max_seq_length - 3
    found = []
    for _ in range(config.dupe_factor):
        for place, document in enumerate(documents):
            target = rng.randint(2, most) if rng.random() < config.short_seq_prob else most
            first = 0
            while first < len(document):
                end = first + 1
                while end < len(document) and sum(map(len, document[first:end])) < target:
                    end += 1
                split = first + (rng.randint(1, end - first - 1) if end - first > 1 else 1)
                a, b = joined(document[first:split]), joined(document[split:end])
                is_random = end - first == 1 or rng.random() < 0.5
                if is_random:
                    b = random_next(documents, place, target - len(a), rng)
                    end = split
                first = end
                while len(a) + len(b) > most:
                    longer = a if len(a) > len(b) else b
                    longer.pop(0 if rng.random() < 0.5 else -1)
                ids = [CLS, *a, SEP, *b, SEP]
                found.append((ids, len(a) + 2, int(is_random), *plain_masks(ids, config, rng)))
    return found


def random_next(documents, place, length, rng):
    """Sentences of another document, from a random one on, until they have that many tokens."""
    for _ in range(10):
        other = rng.randint(0, len(documents) - 1)
        if other != place:
            break
    tokens = []
    for sentence in documents[other][rng.randint(0, len(documents[other]) - 1) :]:
        tokens = tokens + sentence
        if len(tokens) >= length:
            break
    return tokens


def plain_masks(ids, config, rng):
    """Chooses and replaces tokens of `ids` in place; returns places and originals."""
    groups = []
    for place, token in enumerate(ids):
        if token not in (CLS, SEP):
            if config.masking.strategy == "whole_word" and groups and token >= 60:
                groups[-1].append(place)
            else:
                groups.append([place])
    rng.shuffle(groups)
    budget = min(config.max_predictions_per_seq, max(1, round(len(ids) * config.masking.rate)))
    chosen = {}
    for group in groups:
        if len(chosen) >= budget:
            break
        if len(chosen) + len(group) > budget:
            continue
        for place in group:
            chosen[place] = ids[place]
            if rng.random() < 0.8:
                ids[place] = MASK
            elif rng.random() >= 0.5:
                ids[place] = rng.randint(0, 99)
    places = sorted(chosen)
    return places, [chosen[place] for place in places]


@pytest.mark.parametrize("strategy", ["token", "whole_word"])
@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize(
    "shape", [{}, {"documents": 1}, {"longest": 1}, {"documents": 3, "words": 1}, {"documents": 2, "words": 300}]
)
def test_instances_are_those_of_the_plain_algorithm(shape, seed, strategy):
    documents = random_documents(seed, **shape)
    for S, P, short in ((32, 5, 0.1), (5, 2, 0.5), (64, 20, 1.0)):
        config = InstanceConfig(
            max_seq_length=S,
            max_predictions_per_seq=P,
            dupe_factor=3,
            short_seq_prob=short,
            masking=MaskingConfig(strategy=strategy, rate=0.25),
        )
        rng = random.Random(seed)
        wanted = plain_instances(documents, config, rng)
        found, sampler = sample(documents, config, seed)
        assert found == wanted
        order, wanted_order = np.arange(len(found)), list(range(len(found)))
        sampler.shuffle(order)
        rng.shuffle(wanted_order)
        assert order.tolist() == wanted_order  # the stream goes on where it stands in 2018's


def numbered_documents(seed, documents=40):
    """Documents whose tokens tell where they come from: no id occurs twice."""
    ids = iter(range(5, 65000))
    return [
        [[next(ids) for _ in sentence] for sentence in document]
        for document in random_documents(seed, documents, longest=12)
    ]


def numbered_sample(task, S=64, dupe_factor=2, seed=3):
    facts = VocabularyFacts(65000, CLS, SEP, MASK, np.zeros(65000, np.bool_), np.arange(10))
    documents = numbered_documents(seed)
    config = InstanceConfig(
        max_seq_length=S, max_predictions_per_seq=5, dupe_factor=dupe_factor, sentence_task=task, masking=None
    )
    home = {token: number for number, document in enumerate(documents) for sentence in document for token in sentence}
    return documents, home, sample(documents, config, seed, facts)[0]


def parts(ids, second):
    assert ids[0] == CLS and ids[second - 1] == SEP and ids[-1] == SEP
    return ids[1 : second - 1], ids[second:-1]


def test_sentence_order_pairs_follow_each_other_or_are_swapped():
    _, home, found = numbered_sample("sop")
    labels = []
    for ids, second, label, _, _ in found:
        first, then = parts(ids, second)
        before, after = (then, first) if label else (first, then)
        assert before == list(range(before[0], before[0] + len(before)))
        assert after == list(range(after[0], after[0] + len(after)))
        assert before[-1] < after[0] and home[before[0]] == home[after[-1]]
        labels.append(label)
    assert 0.4 < np.mean(labels) < 0.6


def test_sentence_order_uses_every_token_of_sentences_that_fit():
    documents, home, found = numbered_sample("sop", S=400, dupe_factor=1)
    used = [token for ids, *_ in found for token in ids if token not in (CLS, SEP)]
    alone = {document[0][0] for document in documents if len(document) == len(document[0]) == 1}
    assert sorted(used) == sorted(set(home) - alone)  # a document of one token makes no pair


@pytest.mark.parametrize("units", [False, True])
def test_sentence_order_cuts_a_sentence_on_its_own_between_two_of_its_words(units):
    facts = FACTS.with_units() if units else FACTS
    rest = 7 + FACTS.size if units else 70  # continues a word: of a unit of the text, or with ##
    documents = [[[5, rest, rest, 6, rest, 7, 8, rest]], [[9, rest, rest]], [[10]]]
    config = InstanceConfig(
        max_seq_length=32, max_predictions_per_seq=5, dupe_factor=200, sentence_task="sop", masking=None
    )
    found, sampler = sample(documents, config, facts=facts)
    words = [[5, rest, rest], [6, rest], [7], [8, rest]]
    pairs = [(joined(words[:cut]), joined(words[cut:])) for cut in (1, 2, 3)]
    counts = collections.Counter((*map(tuple, parts(ids, second)), label) for ids, second, label, *_ in found)
    assert counts.keys() == {(*map(tuple, pair[:: 1 - 2 * label]), label) for pair in pairs for label in (0, 1)}
    assert sum(counts.values()) == 200 and min(counts.values()) > 15  # of 33
    assert sampler.position[UNPAIRED] == 200 * 4  # sentences of one word make no pair


def test_single_segments_hold_all_sentences_in_order_and_as_many_as_fit():
    documents, home, found = numbered_sample("none")
    S = 64
    stream = [token for ids, *_ in found for token in ids if token not in (CLS, SEP)]
    assert len(stream) == 2 * len(home) and stream[: len(home)] == stream[len(home) :]
    runs = [
        stream[start : start + len(joined(document))]
        for document in documents
        for start in [stream.index(document[0][0])]
    ]
    assert runs == [joined(document) for document in documents]
    sentences = {sentence[0]: len(sentence) for document in documents for sentence in document}
    for (ids, second, label, _, _), (following, *_) in itertools.pairwise(found):
        assert ids[0] == CLS and ids[-1] == SEP and label == 0 and second == len(ids) <= S
        ends_pass = ids[-2] == stream[-1]
        assert len(ids) + sentences[following[1]] + (home[following[1]] != home[ids[-2]]) > S or ends_pass
        inner = [place for place, token in enumerate(ids[:-1]) if token == SEP]
        ends = [place for place in range(2, len(ids) - 1) if ids[place - 1] in home and ids[place] == SEP]
        assert inner == ends and all(home[ids[place - 1]] != home[ids[place + 1]] for place in inner)


def test_a_sentence_longer_than_a_row_is_cut_into_rows():
    document = [list(range(5, 60))]
    config = InstanceConfig(
        max_seq_length=12, max_predictions_per_seq=3, dupe_factor=1, sentence_task="none", masking=None
    )
    found, _ = sample([document[0:1]], config)
    assert [ids[1:-1] for ids, *_ in found] == [document[0][start : start + 10] for start in range(0, 55, 10)]


def test_next_sentences_follow_and_random_ones_come_from_elsewhere():
    _, home, found = numbered_sample("nsp")
    same_document = 0
    for ids, second, label, _, _ in found:
        first, then = parts(ids, second)
        if label:
            same_document += home[first[0]] == home[then[0]]
        else:
            assert home[first[0]] == home[then[0]] and first[-1] < then[0]
    assert same_document == 0


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"max_seq_length": 4}, "max_seq_length"),
        ({"max_predictions_per_seq": 0}, "max_predictions_per_seq"),
        ({"max_predictions_per_seq": 126}, "1 to 125"),
        ({"dupe_factor": 0}, "dupe_factor"),
        ({"short_seq_prob": 1.5}, "short_seq_prob"),
    ],
)
def test_values_that_make_no_instances_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        InstanceConfig(**changes)
