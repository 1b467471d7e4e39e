"""Rows of words for taggers, windows, raw text into words and tags back into slices."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from oracles.tagging import Word, entities_of, split_text

from official_bert.tasks.tagging.features import TaggingFeatureMaker, gather_words
from official_bert.text.tokenization import FullTokenizer


@pytest.fixture(scope="module")
def tokenizer(golden):
    return FullTokenizer(str(golden / "vocab_uncased.txt"))


def test_a_sentence_becomes_pieces_with_tags_at_first_ones(tokenizer):
    words = ["The", "quartermaster", "\u200b", "repainted", "café"]  # of a zero-width space nothing is left
    (feature,) = TaggingFeatureMaker(tokenizer).make([words])
    pieces = [tokenizer.tokenize(word) or ["[UNK]"] for word in words]
    assert tokenizer.convert_ids_to_tokens(feature.input_ids) == ["[CLS]", *itertools.chain(*pieces), "[SEP]"]
    row = feature.row(np.array([3, 4, 5, 6, 7]))
    starts = np.cumsum([1, *map(len, pieces)])[:-1]
    assert row["tag_mask"].nonzero()[0].tolist() == starts.tolist() == row["tags"].nonzero()[0].tolist()
    assert row["tags"][starts].tolist() == [3, 4, 5, 6, 7]
    assert row["input_mask"].all() and not row["segment_ids"].any()


@settings(deadline=None, max_examples=50)
@given(
    st.lists(st.lists(st.integers(100, 120), min_size=1, max_size=3), min_size=1, max_size=40),
    st.integers(4, 12),
    st.integers(1, 10),
)
def test_every_word_is_read_once_where_it_has_the_most_context(tokenizer, words, length, stride):
    maker = TaggingFeatureMaker(tokenizer, length, stride)
    features = maker.windows(0, words)
    ids, firsts = list(itertools.chain(*words)), np.cumsum([0, *map(len, words)])[:-1]
    assert sorted(itertools.chain(*(feature.words for feature in features))) == list(range(len(words)))
    for feature in features:
        assert len(feature.input_ids) <= length
        assert [feature.input_ids[position] for position in feature.positions] == [
            words[word][0] for word in feature.words
        ]
    if stride < length - 2:  # somewhere in the middle, both sides of a word are seen
        for feature in features:
            for word, position in zip(feature.words, feature.positions):
                left, right = position - 1, len(feature.input_ids) - 2 - position
                assert min(left, right) >= min(
                    firsts[word], len(ids) - 1 - firsts[word], (length - 2 - stride) // 2 - 1
                )


def test_values_of_rows_come_back_to_words(tokenizer):
    texts = [["the", "quartermaster"] * 9, ["nobody"]]
    features = TaggingFeatureMaker(tokenizer, 12, 4).make(texts)
    assert len(features) > 4
    values = [np.stack([feature.input_ids, feature.input_ids + 1], 1) for feature in features]
    found = gather_words(features, values, [18, 1])
    firsts = [[tokenizer.vocab[tokenizer.tokenize(word)[0]] for word in words] for words in texts]
    assert [part[:, 0].tolist() for part in found] == firsts and (found[0][:, 1] == found[0][:, 0] + 1).all()


def test_limits_that_leave_no_room_are_named(tokenizer):
    with pytest.raises(ValueError, match="max_seq_length and doc_stride: expected at least 3 and 1, got 2 and 1"):
        TaggingFeatureMaker(tokenizer, 2, 1)


# The same cases as those of the served model.
@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("(Reuters) U.S. shares, don't", ["(", "Reuters", ")", "U.S", ".", "shares", ",", "don't"]),
        ("...", [".", ".", "."]),
        ("a-b 3.5%", ["a-b", "3.5", "%"]),
        ("中国x, é", ["中", "国", "x", ",", "é"]),
        ("", []),
        ("\u200b  Señora\u00a0Núñez ", ["Señora", "Núñez"]),
    ],
)
def test_words_of_raw_text_have_punctuation_set_apart_around_them(tokenizer, text, wanted):
    words = split_text(tokenizer, text)
    assert [text[word.start : word.end] for word in words] == wanted
    assert [piece for word in words for piece in word.pieces] == tokenizer.tokenize(text)


def test_entities_are_slices_with_the_mean_probability_of_their_words():
    text = "Ada  Lovelace, London"
    words = [Word(("ada",), 0, 3), Word(("love", "##lace"), 5, 13), Word((",",), 13, 14), Word(("london",), 15, 21)]
    found = entities_of(text, words, ["B-PER", "I-PER", "O", "B-LOC"], [0.5, 0.75, 0.9, 0.25])
    assert found == {
        "entities": ["Ada  Lovelace", "London"],
        "types": ["PER", "LOC"],
        "starts": [0, 15],
        "ends": [13, 21],
        "scores": [0.625, 0.25],
    }
