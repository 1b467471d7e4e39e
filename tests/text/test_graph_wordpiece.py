"""WordPiece in the graph against the loop over a word's characters."""

import itertools
import random

import pytest
import tensorflow as tf

from official_bert.text.graph_wordpiece import WordPieces
from official_bert.text.tokenization import FullTokenizer

SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
LETTERS = ("ab", "abé", "abж中", "a\U00010400")  # of one byte to four


def differing(vocab, words):
    """Returns the words whose pieces are not those of `FullTokenizer.split_word`."""
    vocab = {token: number for number, token in enumerate(dict.fromkeys([*SPECIAL, *vocab]))}
    host = FullTokenizer("", vocab=vocab)
    pieces = tf.function(WordPieces(vocab), input_signature=[tf.TensorSpec([None], tf.string)])
    ids, splits = (part.numpy() for part in pieces(tf.constant(words, tf.string)))
    rows = [ids[first:end].tolist() for first, end in itertools.pairwise(splits)]
    assert len(rows) == len(words)
    return [word for word, row in zip(words, rows) if row != [vocab[piece] for piece in host.split_word(word)]]


@pytest.mark.parametrize(
    "letters",
    [*LETTERS[1:2], *(pytest.param(letters, marks=pytest.mark.slow) for letters in (*LETTERS[:1], *LETTERS[2:]))],
)
def test_pieces_of_random_vocabularies_are_those_of_the_loop(letters):
    draw = random.Random(letters)

    def some(longest):
        return "".join(draw.choices(letters, k=draw.randint(1, longest)))

    vocab = [draw.choice(("", "##")) + some(draw.choice((2, 5, 6, 11, 40))) for _ in range(400)]
    words = [some(draw.choice((3, 12, 60, 205))) for _ in range(3000)]
    assert differing(vocab, words) == []
    assert differing([*vocab, letters[0], *(f"##{letter}" for letter in letters)], words) == []


@pytest.mark.parametrize("length", [4, 5, 6, 9, 10, 11, 199, 200, 201])
def test_pieces_as_long_as_steps_and_words(length):
    words = ["a" * count for count in (1, 4, 5, 6, length - 1, length, length + 1, 200, 201)] + ["b", "a" * 5 + "b"]
    assert differing(["a" * length, "##" + "a" * length, "a", "##a"], words) == []
    assert differing(["a" * length, "##aa"], words) == []


def test_no_words_and_entries_that_no_word_has():
    assert differing([], []) == []
    assert differing(["", "##", "a\0b", "##\0", " "], ["a", "b"]) == []


def test_a_word_of_200_pieces_takes_no_loop():
    pieces = WordPieces({token: number for number, token in enumerate([*SPECIAL, "a", "##a"])})
    graph = tf.function(pieces._cut).get_concrete_function(tf.TensorSpec([None], tf.string)).graph
    assert not {op.type for op in graph.get_operations()} & {"While", "StatelessWhile"}
    assert pieces(tf.constant(["a" * 200]))[0].numpy().tolist() == [5, *[6] * 199]
