"""Schemes of tags: chunks read and written, legal transitions, scores."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from seqeval.metrics import f1_score, precision_score, recall_score
from seqeval.metrics.sequence_labeling import get_entities

from official_bert.data.tagged import chunk_tags
from official_bert.data.tagged.chunk_tags import Chunk


def test_schemes_of_a_worked_example():
    chunks = [Chunk("PER", 0, 2), Chunk("PER", 2, 3), Chunk("LOC", 4, 5)]
    written = {scheme: " ".join(chunk_tags.write_tags(chunks, 6, scheme)) for scheme in ("iob1", "iob2", "iobes")}
    assert written == {
        "iob1": "I-PER I-PER B-PER O I-LOC O",
        "iob2": "B-PER I-PER B-PER O B-LOC O",
        "iobes": "B-PER E-PER S-PER O S-LOC O",
    }
    for tags in written.values():
        assert chunk_tags.read_chunks(tags.split()) == chunks
    assert chunk_tags.read_chunks(["B-PER", "L-PER", "U-PER", "O", "U-LOC", "O"]) == chunks  # BILOU


def test_illegal_tags_are_read_as_conlleval_reads_them():
    assert chunk_tags.read_chunks(["O", "I-PER", "I-LOC", "E-LOC", "I-LOC"]) == [
        Chunk("PER", 1, 2),
        Chunk("LOC", 2, 4),
        Chunk("LOC", 4, 5),
    ]


@st.composite
def chunked(draw):
    """Draws chunks over a sentence; returns them and its length."""
    chunks, place = [], 0
    for gap, size, kind in draw(
        st.lists(st.tuples(st.integers(0, 2), st.integers(1, 3), st.sampled_from(["A", "B-C"])), max_size=5)
    ):
        chunks.append(Chunk(kind, place + gap, place + gap + size))
        place += gap + size
    return chunks, place + draw(st.integers(0, 2))


@given(chunked(), st.sampled_from(["iob1", "iob2", "iobes"]))
def test_every_scheme_gives_the_chunks_back_and_only_legal_transitions(case, scheme):
    chunks, length = case
    tags = chunk_tags.write_tags(chunks, length, scheme)
    assert chunk_tags.read_chunks(tags) == chunks
    labels = chunk_tags.label_list(["A", "B-C"], scheme)
    between, start, end = chunk_tags.legal_transitions(labels, scheme)
    numbers = [labels.index(tag) for tag in tags]
    assert all(between[a, b] for a, b in itertools.pairwise(numbers))
    assert not numbers or (start[numbers[0]] and end[numbers[-1]])


@given(st.lists(st.sampled_from(["O", "B-A", "I-A", "E-A", "S-A", "B-B", "I-B", "E-B", "S-B"]), max_size=5))
def test_legal_sequences_are_those_that_are_written_back_as_they_are(tags):
    for scheme in ("iob2", "iobes"):
        labels = chunk_tags.label_list("AB", scheme)
        if not set(tags) <= set(labels):
            continue
        between, start, end = chunk_tags.legal_transitions(labels, scheme)
        numbers = [labels.index(tag) for tag in tags]
        legal = all(between[a, b] for a, b in itertools.pairwise(numbers))
        legal = legal and (not numbers or bool(start[numbers[0]] and end[numbers[-1]]))
        assert legal == (chunk_tags.convert_tags(tags, scheme) == tags)


@settings(deadline=None)
@given(st.lists(st.sampled_from(["O", "B-A", "I-A", "E-A", "S-A", "B-B", "I-B", "E-B"]), max_size=8))
def test_chunks_equal_those_of_seqeval(tags):
    assert [(chunk.kind, chunk.start, chunk.end - 1) for chunk in chunk_tags.read_chunks(tags)] == get_entities(tags)


def test_scores_of_chunks_by_hand():
    scores = chunk_tags.chunk_scores([["B-A", "I-A", "O"], ["S-B"]], [["B-A", "O", "O"], ["B-B"]])
    # Of two gold chunks and two found, one is right; two of four tags are the same.
    assert scores == {"precision": 0.5, "recall": 0.5, "f1": 0.5, "tag_accuracy": 0.5, "f1_A": 0.0, "f1_B": 1.0}
    assert chunk_tags.chunk_scores([["O"]], [["O"]])["f1"] == 0.0


TAG_LISTS = st.lists(st.sampled_from(["O", "B-A", "I-A", "B-B", "I-B"]), min_size=4, max_size=4)


@settings(deadline=None, max_examples=50)
@given(st.lists(st.tuples(TAG_LISTS, TAG_LISTS), min_size=1, max_size=5))
def test_scores_of_chunks_equal_those_of_seqeval(rows):
    gold, predicted = (list(column) for column in zip(*rows))
    found = chunk_tags.chunk_scores(gold, predicted)
    for name, function in (("precision", precision_score), ("recall", recall_score), ("f1", f1_score)):
        assert found[name] == pytest.approx(function(gold, predicted, zero_division=0))
