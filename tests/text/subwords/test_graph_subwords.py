"""Tokenizers of the family in TensorFlow: ids and places equal to those on the host."""

import itertools
import random

import made_tokenizers
import pytest
import tensorflow as tf

from official_bert.text import loading
from official_bert.text.graph_loading import load_graph

ADDED = [
    ("boat", {"single_word": True}),
    ("<ent>", {"lstrip": True, "rstrip": True}),
    ("new_word", {}),
    ("new_words", {}),
]


def both(folder, kind, traced=False, **config):
    """The tokenizer on the host, and a function that gives its graph's tokens for a list of texts: op by op, or as one
    graph.
    """
    path = made_tokenizers.write(folder, kind, **config)
    host, graph = loading.load(path), load_graph(path)
    run = graph.tokenize_with_offsets
    if traced:  # which takes seconds
        run = tf.function(run, input_signature=[tf.TensorSpec([None], tf.string)], autograph=False)  # as in exports

    def tokens(texts):
        rows = zip(*(part.to_list() for part in run(tf.constant(texts, tf.string))))
        return [[(host.inv_vocab[index], start, end) for index, start, end in zip(*row)] for row in rows]

    return host, tokens, graph


def random_texts(count, seed=0):
    draw = random.Random(seed)
    letters = " 'stremvld\n\tab1٣é.,中\xa0\u3000😀Ação``çã\r\u2028boatnew_words<mask><ent>"
    return ["".join(draw.choice(letters) for _ in range(draw.randint(0, 60))) for _ in range(count)]


def random_accents(count, seed=0):
    draw = random.Random(seed)
    letters = (
        "aeoq \u0301\u0323\u0307\u0338\u1100\u1161\u11a8\u0958\u212b\u00e9\uac00\u0345\u0b47\u0b56\u0f73  x1\u2126"
    )
    return ["".join(draw.choice(letters) for _ in range(draw.randint(0, 30))) for _ in range(count)]


QUICK = [("xlm_roberta", True), ("xlm_roberta", False), ("roberta", False), ("modernbert", False)]
CASES = [
    pytest.param(*case, marks=[] if case in QUICK else [pytest.mark.slow])
    for case in itertools.product(made_tokenizers.KINDS, (False, True))
]


@pytest.mark.parametrize(("kind", "traced"), CASES)
def test_the_graph_gives_the_hosts_tokens_and_places(tmp_path, kind, traced):
    host, tokens, graph = both(
        tmp_path, kind, traced, **({"add_prefix_space": True} if kind == "roberta_files" else {})
    )
    texts = [*made_tokenizers.texts(), *random_texts(200), *(random_accents(100) if kind == "modernbert" else ()), ""]
    wanted = [host.tokenize_with_offsets(text) for text in texts]
    for text, row, expected in zip(texts, tokens(texts), wanted):
        assert row == expected, text
    assert graph.tokenize(tf.constant(texts)).to_list() == [host.tokenize_ids(text) for text in texts]
    assert tokens([]) == []


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["camembert", "roberta_files", "mpnet"])
def test_the_graph_finds_added_tokens(tmp_path, kind):
    plain = loading.load(made_tokenizers.write(tmp_path / "plain", kind))
    host, tokens, _ = both(
        tmp_path / "added",
        kind,
        added_tokens_decoder={
            str(plain.vocab.get(content, plain.size + number)): {"content": content, **flags}
            for number, (content, flags) in enumerate(ADDED)
        },
    )
    texts = [
        "a boat, aboat boats boat",
        "x <ent> y<ent>",
        "new_words new_word new_wordsnew_word",
        " <ent> ",
        "<mask><ent> <mask>",
        *random_texts(100, 1),
    ]
    for text, row in zip(texts, tokens(texts)):
        assert row == host.tokenize_with_offsets(text), text


def test_the_work_of_bpe_is_linear_in_a_words_length(tmp_path, monkeypatch):
    _, tokens, graph = both(tmp_path, "roberta")
    draw, symbols, whole_round = random.Random(2), [], graph._round
    monkeypatch.setattr(graph, "_round", lambda ids, *others: symbols.append(len(ids)) or whole_round(ids, *others))
    for word in ("a" * 8000, "ab" * 4000, "".join(draw.choice("etaoinshr") for _ in range(8000)), "中文" * 4000):
        work = []
        for length in (800, 8000):
            symbols.clear()
            tokens([word[:length]])
            work.append(sum(symbols))
        assert 8000 <= work[1] < 13 * work[0] and len(symbols) < 30, word[:8]


@pytest.mark.slow
def test_long_words_take_few_rounds(tmp_path):
    host, tokens, _ = both(tmp_path, "roberta")
    draw = random.Random(2)
    words = ["a" * 20000, "ab" * 5000, "".join(draw.choice("etaoinshr") for _ in range(20000)), "中文" * 2000]
    assert [[token for token, _, _ in row] for row in tokens(words)] == [host.tokenize(word) for word in words]


@pytest.mark.slow
def test_invalid_utf8_counts_as_one_replacement_character(tmp_path):
    host, tokens, _ = both(tmp_path, "xlm_roberta")
    assert tokens([b"the \xff boat"]) == [host.tokenize_with_offsets("the \ufffd boat")]
