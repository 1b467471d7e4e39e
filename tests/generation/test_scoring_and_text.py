"""Scores of texts, beside sums over rows computed one by one and the chain rule in every order; text from pieces."""

import itertools

import keras
import made_tokenizers
import numpy as np
import pytest
import tensorflow as tf

from official_bert.generation import pieces, scoring
from official_bert.models.pretrainer import Pretrainer
from official_bert.tasks.writing.served import ServedText
from official_bert.text import loading
from official_bert.text.tokenization import FullTokenizer

TEXT = "The atlas unravels, slowly"


@pytest.fixture(scope="module")
def model(small_config):
    keras.utils.set_random_seed(7)
    return Pretrainer.make(small_config)


@pytest.fixture(scope="module")
def tokenizer(golden):
    return FullTokenizer(str(golden / "vocab_uncased.txt"))


def log_probability(model, tokenizer, ids, hidden, place):
    """log p of a row's token at a place, with `hidden` places of the text replaced by [MASK]."""
    row = [tokenizer.vocab["[CLS]"], *ids, tokenizer.vocab["[SEP]"]]
    shown = [tokenizer.vocab["[MASK]"] if number - 1 in hidden else index for number, index in enumerate(row)]
    inputs = {"input_ids": [shown], "input_mask": [[1] * len(row)], "segment_ids": [[0] * len(row)]}
    logits = model({name: np.array(value) for name, value in inputs.items()} | {
        "masked_lm_positions": np.array([[place + 1]])})["mlm_logits"].numpy()[0, 0].astype(np.float64)  # fmt: skip
    return logits[ids[place]] - np.log(np.exp(logits - logits.max()).sum()) - logits.max()


def test_scores_hide_each_token_and_the_later_pieces_of_its_word(model, tokenizer):
    scorer = scoring.Scorer(model, tokenizer, 32)
    ids = tokenizer.tokenize_ids(TEXT)
    tokens = tokenizer.tokenize(TEXT)
    word = np.cumsum([not token.startswith("##") for token in tokens])
    assert len({*word}) < len(tokens)  # a word of several pieces is in the text
    for by in ("token", "word_l2r"):
        alone = scorer.score([TEXT], by)[0]
        later = {place: np.flatnonzero(word[place + 1 :] == word[place]) + place + 1 for place in range(len(ids))}
        hidden = {place: [place, *(later[place] if by == "word_l2r" else ())] for place in later}
        expected = [log_probability(model, tokenizer, ids, hidden[place], place) for place in later]
        np.testing.assert_allclose(alone["token_scores"], expected, atol=2e-5)
        assert alone["score"] == pytest.approx(sum(expected), abs=1e-4)
        assert alone["words"] == ["The", "atlas", "unravels", ",", "slowly"]
        np.testing.assert_allclose(
            alone["word_scores"], [sum(np.array(expected)[word == number]) for number in sorted({*word})], atol=1e-4
        )
        several = scorer.score(["The", TEXT, ""], by)
        np.testing.assert_allclose(several[1]["token_scores"], alone["token_scores"], atol=2e-5)
        assert (several[2]["score"], several[2]["tokens"], several[2]["words"]) == (0.0, [], [])


def test_the_bound_is_the_mean_of_the_chain_rule_over_all_orders(model, tokenizer):
    text = "the river time"
    ids = tokenizer.tokenize_ids(text)
    orders = [
        sum(log_probability(model, tokenizer, ids, order[done:], place) for done, place in enumerate(order))
        for order in itertools.permutations(range(len(ids)))
    ]
    answer = scoring.Scorer(model, tokenizer, 32).score([text], "bound")[0]
    assert answer["score"] == pytest.approx(np.mean(orders), abs=1e-4)
    assert sum(answer["token_scores"]) == pytest.approx(answer["score"], abs=1e-9)


def test_rows_of_a_long_text_are_drawn_the_same_each_time_and_weigh_as_all_sets_would():
    text = scoring.ScoredText("", [], list(range(20)), [])
    first, second = (list(text.rows(0, "bound")) for _ in range(2))
    assert first == second
    assert len(first) == scoring.SAMPLES
    # each place counts with the weight 1 on average: 20 / m for m of 20 places
    assert sum(len(row.counted) * row.weight for row in first) == pytest.approx(20)
    assert list(scoring.ScoredText("", [], list(range(1, 21)), []).rows(0, "bound")) != first


def test_texts_that_have_no_score_are_refused_by_row(model, tokenizer):
    scorer = scoring.Scorer(model, tokenizer, 8)
    with pytest.raises(ValueError, match=r"row 2: a score needs a text without \[MASK\]"):
        scorer.score(["the", "the [MASK]"])
    with pytest.raises(ValueError, match="row 1: expected at most 6 tokens"):
        scorer.score(["the river time the river time again"])
    with pytest.raises(ValueError, match="by: expected one of word_l2r, token, bound, got 'sum'"):
        scorer.score(["the"], "sum")


@pytest.mark.parametrize(
    "text, words, filled",
    [
        ("the [MASK] rained.", ["river"], "the river rained."),
        ("([MASK]) is  [MASK][MASK]!", ["river", "the", "music"], "(river) is  the music!"),
        ("un [MASK] , [MASK]", ["##s", "##s"], "uns ,s"),
        ("[MASK] [MASK]", ["the"], "the [MASK]"),  # the second was cut off
        ("none", [], "none"),
    ],
)
def test_filled_words_stand_in_the_text_as_they_would_be_written(tokenizer, text, words, filled):
    ids = np.array([tokenizer.convert_tokens_to_ids(words)], np.int32).reshape(1, -1)
    result = pieces.Pieces(tokenizer).insert(tf.constant([text]), "[MASK]", tf.constant(ids), tf.constant([len(words)]))
    assert result.numpy()[0].decode() == filled


def test_pieces_are_joined_into_text(tokenizer, tmp_path):
    texts = ["The river, it's music.", "She (the people) rained 3 times!", ""]
    graph = pieces.Pieces(tokenizer)
    ids = [tokenizer.tokenize_ids(text) for text in texts]
    joined = [text.decode() for text in graph.join(tf.ragged.constant(ids, dtype=tf.int32)).numpy()]
    assert joined == ["the river, it's music.", "she ( the people ) rained 3 times!", ""]
    assert joined == [tokenizer.decode(row) for row in ids]
    bytes_of = loading.load(made_tokenizers.write(tmp_path, "roberta"))
    for text in ("the atlas, 日本 é", "  two  spaces", "👍"):
        row = bytes_of.tokenize_ids(text)
        assert bytes_of.decode(row) == text.removeprefix(" ")
        assert pieces.Pieces(bytes_of).join(tf.ragged.constant([row], dtype=tf.int32)).numpy()[0].decode() == text[
            text.startswith(" ") :]  # fmt: skip


def test_what_an_answer_may_cost_is_limited(small_config, graph_tokenizer):
    model = Pretrainer.make(small_config)
    with pytest.raises(ValueError, match=r"^--passes: expected at most 256 of rows of 512 tokens, got 300$"):
        ServedText(model, graph_tokenizer, 512, answer_length=300)
    assert ServedText(model, graph_tokenizer, 512, answer_length=300, passes=256).how.passes == 256
