"""Entities in the graph against words, windows and chunks found in plain Python."""

import itertools
import re

import made_tokenizers
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from seqeval.metrics.sequence_labeling import get_entities

from official_bert.config import ModelConfig
from official_bert.layers.relatives.crf import Scores, best_path
from official_bert.models.classifier import Tagger
from official_bert.tasks.tagging.served import ServedTagger
from official_bert.text import packing
from official_bert.text.graph_loading import load_graph
from official_bert.text.tokenization import FullTokenizer

LABELS = ("O", "B-PER", "I-PER", "B-LOC", "I-LOC")


@pytest.fixture(scope="module")
def model(token_tagger):
    return token_tagger


@pytest.fixture(scope="module")
def plain(golden):
    return FullTokenizer(str(golden / "vocab_uncased.txt"))


def make_tagger(model, graph_tokenizer, labels=LABELS, **options):
    return ServedTagger(model, graph_tokenizer, 20, labels=labels, doc_stride=5, **options)


def spaced_words(plain, text):
    """Returns [(start, end, number of the first piece)] of the words between spaces, as in CoNLL data."""
    words, end = [], None
    for number, (_, first, last) in enumerate(plain.tokenize_with_offsets(text)):
        if end is None or text[end:first].strip() != text[end:first]:
            words.append([first, last, number])
        words[-1][1] = end = last
    return words


def word_logits(plain, model, text, words, length=20, stride=5):
    """Returns the logits of each word's first piece, from the window that shows it with the most context."""
    ids = plain.convert_tokens_to_ids(plain.tokenize(text))
    windows = packing.sliding_windows(len(ids), length - 2, stride)
    logits, outputs = [], {}
    for _, _, piece in words:
        number = next(
            index
            for index, (first, size) in enumerate(windows)
            if first <= piece < first + size and packing.is_max_context(windows, index, piece)
        )
        first, size = windows[number]
        row, segments = plain.template.pack(ids[first : first + size])
        inputs = {"input_ids": [row], "input_mask": [[1] * len(row)], "segment_ids": [segments]}
        if number not in outputs:
            outputs[number] = model({name: np.array(value, np.int32) for name, value in inputs.items()})[
                "logits"
            ].numpy()
        logits.append(outputs[number][0, piece - first + 1])
    return np.array(logits).reshape(-1, len(LABELS))


def entities_of(text, words, tags):
    """Returns (type, start, end, slice) of the chunks that seqeval finds in the tags of one text."""
    return [
        (kind, words[first][0], words[last][1], text[words[first][0] : words[last][1]])
        for kind, first, last in get_entities(tags)
    ]


def rows_of(found, index):
    """Returns the model's answer to a text without padding."""
    columns = [found[name].numpy()[index].tolist() for name in ("types", "starts", "ends", "entities")]
    return [(kind.decode(), start, end, text.decode()) for kind, start, end, text in zip(*columns) if kind]


@pytest.mark.parametrize(
    ("labels", "kinds"),
    [(("PER", "O", "LOC", "B_X", "I_X"), ["PER", "LOC", "I_X"]), (("B-PER", "I-PER", "X", "[PAD]", "B-"), ["PER"])],
)
def test_published_labels_without_prefixes_are_types_unless_others_have_prefixes(model, graph_tokenizer, labels, kinds):
    tagger = make_tagger(model, graph_tokenizer, labels)
    found = tagger._entities(
        tf.constant([0, 0, 1, 2, 4, 1] if "O" in labels else [0, 1, 2, 3, 4, 2]), tf.constant([0, 6])
    )
    assert [tagger.types[kind] for kind in found.kind.numpy()] == kinds


@pytest.mark.parametrize(
    ("labels", "tags", "entities"),
    [
        (("O", "B-PER", "M-PER", "E-PER", "S-PER"), [1, 2, 3, 4, 0, 2], [("PER", 0, 2), ("PER", 3, 3), ("PER", 5, 5)]),
        (("O", "B-PER", "I-PER", "W-PER"), [1, 2, 3, 3], [("PER", 0, 1), ("PER", 2, 2), ("PER", 3, 3)]),
        (("O", "B-LOC", "I", "B-PER"), [2, 1, 2, 2, 3, 2, 0, 2], [("LOC", 1, 3), ("PER", 4, 5)]),
        (("B", "I", "O", "[PAD]"), [0, 1, 1, 3, 2, 0, 0], [("entity", 0, 2), ("entity", 5, 5), ("entity", 6, 6)]),
    ],
)
def test_entities_of_published_labels_are_those_of_their_letters(model, graph_tokenizer, labels, tags, entities):
    tagger = make_tagger(model, graph_tokenizer, labels)
    found = tagger._entities(tf.constant(tags), tf.constant([0, len(tags)]))
    assert [
        (tagger.types[kind], first, last)
        for kind, first, last in zip(*(part.numpy() for part in (found.kind, found.first, found.last)))
    ] == entities


def test_a_letter_alone_takes_no_type_from_another_text(model, graph_tokenizer):
    tagger = make_tagger(model, graph_tokenizer, ("O", "B-LOC", "I"))
    found = tagger._entities(tf.constant([1, 2, 2, 1]), tf.constant([0, 2, 4]))
    assert (found.first.numpy().tolist(), found.last.numpy().tolist()) == ([0, 3], [1, 3])


TEXTS = [
    "The surveyor met Señora Núñez , near Brno .",
    "",
    "Nobody",
    "中国 price e\u0301t",
    "the youngest apprentice borrowed the greenhouse thermometer while it rained in Brno and St. Anne 's parish " * 3,
]


def test_entities_are_those_of_the_tags_that_the_model_gives_first_pieces_in_windows(plain, model, graph_tokenizer):
    tagger = make_tagger(model, graph_tokenizer, pretokenized=True)
    answer = tf.function(tagger.answer_text, input_signature=[dict(tagger.text_inputs)], autograph=False)
    found = answer({"text": tf.constant(TEXTS)})
    total = 0
    for index, text in enumerate(TEXTS):
        words = spaced_words(plain, text)
        logits = word_logits(plain, model, text, words)
        tags = [LABELS[best] for best in logits.argmax(-1)]
        wanted = entities_of(text, words, tags)
        assert rows_of(found, index) == wanted
        chances = np.exp(logits - logits.max(-1, keepdims=True))
        chances = (chances / chances.sum(-1, keepdims=True)).max(-1)
        scores = [chances[first : last + 1].mean() for _, first, last in get_entities(tags)]
        np.testing.assert_allclose(found["scores"].numpy()[index][: len(scores)], scores, atol=1e-5)
        total += len(wanted)
    assert total > 5 and not found["truncated"].numpy().any()


def test_a_decoder_sees_the_words_of_a_whole_text_and_its_tags_are_used(model, graph_tokenizer):
    seen = {}

    def decode(logits, real):
        seen.update(shape=tuple(logits.shape), real=real.numpy().tolist())
        return tf.ones(tf.shape(logits)[:2], tf.int32)  # B-PER everywhere

    found = make_tagger(model, graph_tokenizer, decode=decode).answer_text(
        {"text": tf.constant(["a price", "", "the"])}
    )
    assert seen == {"shape": (3, 3, 5), "real": [[True, True, False], [False] * 3, [True, False, False]]}
    assert found["entities"].numpy().tolist() == [[b"a", b"price"], [b"", b""], [b"the", b""]]


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("(Reuters) U.S. shares, don't", ["(", "Reuters", ")", "U.S", ".", "shares", ",", "don't"]),
        ("...", [".", ".", "."]),
        ("a-b 3.5%", ["a-b", "3.5", "%"]),
        ("中国x, é", ["中", "国", "x", ",", "é"]),
        ("", []),
    ],
)
def test_punctuation_around_words_is_set_apart_and_within_them_is_not(model, graph_tokenizer, text, wanted):
    every = make_tagger(model, graph_tokenizer, decode=lambda logits, real: tf.ones(tf.shape(logits)[:2], tf.int32))
    assert [entity for _, _, _, entity in rows_of(every.answer_text({"text": tf.constant([text])}), 0)] == wanted
    spaced = make_tagger(model, graph_tokenizer, pretokenized=True, decode=every.decode)
    assert [entity for _, _, _, entity in rows_of(spaced.answer_text({"text": tf.constant([text])}), 0)] == text.split()


@pytest.mark.parametrize(("kind", "pretokenized"), [("xlm_roberta", False), ("roberta", False), ("roberta", True)])
def test_no_character_is_parted_and_no_white_space_belongs_to_a_word(tmp_path, kind, pretokenized):
    texts = {
        "½": ["½"],
        "the ½ boat": ["the", "½", "boat"],
        "wait… the": ["wait", "…", "the"],
        "(½)": ["(", "½", ")"],
        "ﬁne 12㎏": ["ﬁne", "12㎏"],
        "cafe\u0301": ["cafe\u0301"],
        "a…b": ["a…b"],
        "😀👍🏽 x": ["😀👍🏽", "x"],
        "": [],
        "a ": ["a"],
        " ": [],
        "a  b  ": ["a", "b"],
        "a\tb": ["a", "b"],
        "x\n\ny": ["x", "y"],
        "a\u3000\xa0b": ["a", "b"],
    }
    model = Tagger.make(
        ModelConfig(
            vocab_size=1000,
            hidden_size=4,
            num_hidden_layers=1,
            num_attention_heads=1,
            intermediate_size=4,
            max_position_embeddings=20,
        ),
        {"num_tags": len(LABELS)},
    )
    tagger = make_tagger(
        model,
        load_graph(made_tokenizers.write(tmp_path, kind)),
        pretokenized=pretokenized,
        decode=lambda logits, real: tf.ones(tf.shape(logits)[:2], tf.int32),
    )
    found = tagger.answer_text({"text": tf.constant([*texts])})
    for index, (text, words) in enumerate(texts.items()):
        wanted = re.split("[ \t\n]+", text.strip()) if pretokenized and text.strip() else words
        assert [entity for _, _, _, entity in rows_of(found, index)] == wanted, text
    alone = tagger.answer_text({"text": tf.constant(["a "])})
    assert rows_of(alone, 0)[0][1:] == (0, 1, "a")


@pytest.mark.parametrize("pretokenized", [False, True])
@pytest.mark.parametrize("kind", ["roberta", "xlm_roberta"])
def test_the_first_word_has_the_tokens_that_it_has_in_training_too(tmp_path, model, kind, pretokenized):
    graph = load_graph(made_tokenizers.write(tmp_path, kind))
    tagger = make_tagger(model, graph, pretokenized=pretokenized)
    texts = ["boat", "the boat", "", " the  old river", "wait the"]
    trained = [[token for word in text.split() for token in graph.host.tokenize_word(word)] for text in texts]
    found = (tagger._spaced_words if pretokenized else tagger._words)(tf.constant(texts))
    assert found.ids.to_list() == [graph.host.convert_tokens_to_ids(tokens) for tokens in trained]
    words = [(row, match.start(), match.end()) for row, text in enumerate(texts) for match in re.finditer(r"\S+", text)]
    assert [*zip(*(part.numpy().tolist() for part in (found.rows, found.starts, found.ends)))] == words
    if kind == "roberta":  # whose pieces behind a space are others
        assert trained[0] != graph.host.tokenize("boat")


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.lists(st.integers(0, 8), max_size=7), min_size=1, max_size=4))
def test_any_sequence_of_tags_is_read_as_conlleval_reads_it(model, graph_tokenizer, rows):
    labels = ("O", "B-PER", "I-PER", "E-PER", "S-PER", "B-LOC", "I-LOC", "E-LOC", "S-LOC")
    tagger = make_tagger(model, graph_tokenizer, labels=labels)
    splits = np.cumsum([0, *map(len, rows)])
    found = tagger._entities(tf.constant(sum(map(tuple, rows), ()), tf.int32), tf.constant(splits, tf.int32))
    wanted = [
        (tagger.types.index(kind), start + first, start + last)
        for start, row in zip(splits, rows)
        for kind, first, last in get_entities([labels[tag] for tag in row])
    ]
    assert list(zip(*(part.numpy().tolist() for part in (found.kind, found.first, found.last)))) == wanted


@pytest.mark.slow
def test_a_crf_finds_the_best_path_of_each_text_inside_the_graph(plain, model, graph_tokenizer):
    rng = np.random.default_rng(0)
    transitions, start, end = rng.normal(size=(5, 5)) * 3, rng.normal(size=5), rng.normal(size=5)
    scores = Scores(*(tf.constant(part, tf.float32) for part in (transitions, start, end)))
    tagger = make_tagger(
        model, graph_tokenizer, pretokenized=True, decode=lambda logits, real: best_path(logits, real, scores)
    )
    texts = ["a price in Brno", "", "nobody", "the surveyor asked Señora"]
    answer = tf.function(tagger.answer_text, input_signature=[dict(tagger.text_inputs)], autograph=False)
    found = answer({"text": tf.constant(texts)})
    for index, text in enumerate(texts):
        words = spaced_words(plain, text)
        logits = word_logits(plain, model, text, words)
        paths = itertools.product(range(5), repeat=len(words)) if words else [()]
        best = max(
            paths,
            key=lambda path: (
                sum(logits[place, tag] for place, tag in enumerate(path))
                + sum(transitions[pair] for pair in itertools.pairwise(path))
                + (start[path[0]] + end[path[-1]] if path else 0)
            ),
        )
        assert rows_of(found, index) == entities_of(text, words, [LABELS[tag] for tag in best])
    assert answer({"text": tf.constant([""])})["entities"].shape == [1, 0]


def test_ids_get_tags_where_a_piece_begins_a_word(plain, model, graph_tokenizer):
    tagger = make_tagger(model, graph_tokenizer)
    tokens = ["[CLS]", "sur", "##ve", "##y", "brno"[:2], "[SEP]"]
    ids = plain.convert_tokens_to_ids(tokens) + [0]
    rows = {
        "input_ids": tf.constant([ids]),
        "input_mask": tf.constant([[1] * 6 + [0]]),
        "segment_ids": tf.zeros([1, 7], tf.int32),
    }
    found = tagger.answer_ids(rows)
    best = [LABELS[index] for index in found["logits"].numpy()[0].argmax(-1)]
    wanted = [best[place] if place in (1, 4) else "" for place in range(7)]
    assert [tag.decode() for tag in found["tags"].numpy()[0]] == wanted
