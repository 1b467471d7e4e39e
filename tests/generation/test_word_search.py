"""Greedy and beam search in the graph beside plain Python lists, one text at a time, on random tables of logits."""

import itertools

import numpy as np
import pytest
import tensorflow as tf

from official_bert.generation.word_search import Search, write_words

VOCABULARY, LAST, ENDS = 9, 8, (1, 4)


def searcher(table, places, how, beginning=2):
    """The texts that the graph writes for logits = table[last word] + places[number of words so far - 1]."""

    def step(words, count, cache):
        return tf.gather(tf.constant(table), words[:, 0]) + tf.gather(tf.constant(places), count - 1), cache

    def run(begun):
        logits = tf.gather(tf.constant(table), begun[:, -1]) + places[beginning - 1]
        return write_words(step, logits, (), begun, how)

    graph = tf.function(run, autograph=False, input_signature=[tf.TensorSpec([None, beginning], tf.int32)])

    def searched(begun):
        texts, scores, length = graph(begun)
        return texts.numpy()[:, :, : int(length)].tolist(), scores.numpy()

    return searched


def log_chances(table, places, text):
    logits = (table[text[-1]] + places[len(text) - 1]).astype(np.float32)
    shifted = logits - logits.max()
    return logits, (shifted - np.log(np.exp(shifted).sum())).astype(np.float32)


def banned(text, how, beginning):
    """The words that may not follow a text."""
    size, words = how.no_repeat_ngram_size, set()
    grams = {tuple(text[at : at + size]) for at in range(len(text) - size + 1)} if size else set()
    words |= {word for word in range(VOCABULARY) if size and (*text[len(text) - size + 1 :], word)[-size:] in grams}
    if len(text) < how.min_length or len(text) - beginning < (how.min_new_tokens or 0):
        words |= {*how.eos_token_id}
    return words


def by_beams(table, places, begun, how):
    """The list of finished texts (value, text), best first, of one beginning."""
    many, beginning, last = how.num_beams, len(begun), how.last(len(begun))
    running, finished, hopes = [(np.float32(0), begun)], [], True
    while True:
        candidates = []
        for beam, (total, text) in enumerate(running):
            chances, wrong = log_chances(table, places, text)[1], banned(text, how, beginning)
            candidates += [(total + chances[w], beam, w) for w in range(VOCABULARY) if w not in wrong]
        candidates = sorted(candidates, key=lambda item: (-item[0], item[1:]))[
            : many * (1 + max(1, len(how.eos_token_id)))
        ]
        length = len(running[0][1]) + 1 - beginning
        ended, rest = [], []
        for rank, (total, beam, word) in enumerate(candidates):
            text = [*running[beam][1], word]
            if word not in how.eos_token_id and len(text) < last:
                rest.append((total, text))
            elif rank < many:
                ended.append((total / np.float32(length**how.length_penalty), text))
        if hopes and not (how.early_stopping is True and len(finished) == many):
            finished = sorted(finished + ended, key=lambda item: -item[0])[:many]
        running = rest[:many]
        if not running:
            return finished
        longest = last - beginning if how.early_stopping == "never" and how.length_penalty > 0 else length
        best = running[0][0] / np.float32(longest**how.length_penalty)
        hopes = hopes and (len(finished) < many or best > finished[-1][0])
        if not hopes or (how.early_stopping is True and len(finished) == many):
            return finished


def cut(text, beginning):
    """A text up to its first end."""
    ends = [at for at in range(beginning, len(text)) if text[at] in ENDS]
    return text[: ends[0] + 1] if ends else text


SETTINGS = [
    {"length_penalty": penalty, "early_stopping": early, **more}
    for (penalty, early), more in zip(
        itertools.product((1.0, 0.0, 2.0, -1.0), (False, True, "never")),
        itertools.cycle(
            [{}, {"no_repeat_ngram_size": 2}, {"min_length": 5}, {"no_repeat_ngram_size": 1}, {"min_new_tokens": 3}]
        ),
    )
]


@pytest.mark.parametrize(("number", "values"), [*enumerate(SETTINGS)], ids=str)
def test_beams_are_those_of_plain_lists_for_each_text_alone(number, values):
    rng = np.random.default_rng(number)
    table, places = rng.normal(0, 2, (VOCABULARY, VOCABULARY)), rng.normal(0, 1, (LAST, VOCABULARY))
    if number % 2:  # equal sums: the lowest beam and then the lowest word count
        table, places = np.round(table), np.zeros_like(places)
    table, places = table.astype(np.float32), places.astype(np.float32)
    begun = rng.integers(5, VOCABULARY, (4, 2)).astype(np.int32)
    how = Search.of({"num_beams": 3, "num_return_sequences": 3, "max_length": LAST, "eos_token_id": ENDS, **values})
    searched = searcher(table, places, how)
    texts, scores = searched(begun)
    for number, beginning in enumerate(begun.tolist()):
        expected = by_beams(table, places, beginning, how)
        assert [cut(text, 2) for text in texts[number]][: len(expected)] == [text for _, text in expected]
        np.testing.assert_allclose(scores[number][: len(expected)], [value for value, _ in expected], rtol=2e-5)
        alone, alone_scores = searched(begun[number : number + 1])
        assert [cut(text, 2) for text in alone[0]] == [cut(text, 2) for text in texts[number]]
        np.testing.assert_allclose(alone_scores[0], scores[number], rtol=1e-6)


@pytest.mark.parametrize("values", [{}, {"no_repeat_ngram_size": 2}, {"min_length": 6}, {"max_new_tokens": 3}], ids=str)
def test_greedy_takes_the_largest_logit_and_fills_finished_rows_with_padding(values):
    rng = np.random.default_rng(3)
    table, places = (rng.normal(0, 2, shape).astype(np.float32) for shape in ((VOCABULARY,) * 2, (LAST, VOCABULARY)))
    begun = rng.integers(5, VOCABULARY, (6, 2)).astype(np.int32)
    how = Search.of({"max_length": LAST, "eos_token_id": ENDS, "pad_token_id": 2, **values})
    texts, scores = searcher(table, places, how)(begun)
    longest = 0
    for number, text in enumerate(begun.tolist()):
        total = 0.0
        while len(text) < how.last(2) and not (set(text[2:]) & {*ENDS}):
            logits = log_chances(table, places, text)[0].astype(float)
            logits[[*banned(text, how, 2)]] = -np.inf
            text = [*text, int(logits.argmax())]
            total += logits.max() - np.log(np.exp(logits).sum())
        longest = max(longest, len(text))
        assert texts[number][0] == text + [2] * (len(texts[number][0]) - len(text))
        np.testing.assert_allclose(scores[number][0], total, rtol=1e-5)
    assert len(texts[0][0]) == longest


def test_beams_are_filled_with_the_end_if_padding_is_0_and_with_padding_otherwise():
    table = np.full((VOCABULARY, VOCABULARY), -5.0, np.float32)
    table[5, 1], table[6, 7], table[7, 7] = 5, 5, 5  # the first text ends at once, the second never
    begun = np.array([[5], [6]], np.int32)
    for pad, fill in ((0, 1), (3, 3)):
        how = Search.of({"num_beams": 2, "max_length": 4, "eos_token_id": 1, "pad_token_id": pad})
        texts, _ = searcher(table, np.zeros((4, VOCABULARY), np.float32), how, 1)(begun)
        assert texts[0][0] == [5, 1, fill, fill]
        assert texts[1][0] == [6, 7, 7, 7]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"num_beams": 0}, "num_beams: expected 1 to 256, got 0"),
        ({"num_beams": 1000}, "num_beams: expected 1 to 256, got 1000"),
        ({"num_return_sequences": 2}, "num_return_sequences: expected at most 1, num_beams"),
        ({"early_stopping": "always"}, "early_stopping: expected bool or 'never', got 'always'"),
        ({"do_sample": True}, r": unknown keys \['do_sample'\]; known: \['decoder_start_token_id'"),
    ],
)
def test_values_that_are_not_computed_are_refused_in_one_line(values, message):
    with pytest.raises(ValueError, match=rf"^search\.?{message}"):
        Search.of(values)
