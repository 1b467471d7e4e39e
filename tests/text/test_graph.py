"""The tokenizer in the graph against the plain one and against the golden rows of 2018."""

import json
import random
import sys

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from official_bert.text.graph import GraphTokenizer
from official_bert.text.tokenization import BasicTokenizer, FullTokenizer

BATCH = [tf.TensorSpec([None], tf.string)]


class Pair:
    """Returns the two tokenizers of one vocabulary; the graph's is traced once, as in an export."""

    def __init__(self, vocab_file, do_lower_case):
        self.plain = FullTokenizer(str(vocab_file), do_lower_case)
        self.graph = GraphTokenizer(str(vocab_file), do_lower_case)
        self.tokenize, self.tokenize_with_offsets, self.words = (
            tf.function(method, input_signature=BATCH, autograph=False)
            for method in (self.graph.tokenize, self.graph.tokenize_with_offsets, self.graph.words)
        )
        self.tokens = np.array(list(self.plain.vocab))

    def graph_tokens(self, texts):
        return [self.tokens[row].tolist() for row in self.tokenize(tf.constant(texts, tf.string)).to_list()]

    def graph_offsets(self, texts):
        columns = [column.to_list() for column in self.tokenize_with_offsets(tf.constant(texts, tf.string))]
        return [[(str(self.tokens[index]), start, end) for index, start, end in zip(*row)] for row in zip(*columns)]


@pytest.fixture(scope="module")
def pairs(golden):
    return {name: Pair(golden / f"vocab_{name}.txt", name == "uncased") for name in ("uncased", "cased")}


@pytest.fixture(scope="module")
def rows(golden):
    return json.loads((golden / "tokenizer.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", ["uncased", "cased"])
def test_all_golden_rows_are_equal(pairs, rows, name):
    found = pairs[name].graph_tokens([row["text"] for row in rows])
    assert len(found) == 1694
    assert [row["text"] for row, tokens in zip(rows, found) if tokens != row[name]] == []


@pytest.mark.parametrize("name", ["uncased", "cased"])
def test_offsets_of_the_golden_rows_are_those_of_the_plain_tokenizer(pairs, rows, name):
    texts = [row["text"] for row in rows]
    wanted = [pairs[name].plain.tokenize_with_offsets(text) for text in texts]
    assert [text for text, a, b in zip(texts, wanted, pairs[name].graph_offsets(texts)) if a != b] == []


@pytest.mark.slow
@pytest.mark.parametrize("name", ["uncased", "cased"])
def test_every_character_of_unicode_between_letters_is_treated_alike(pairs, name):
    basic = BasicTokenizer(name == "uncased")
    for first in range(0, sys.maxunicode + 1, 1 << 16):
        texts = [
            "".join(f"Ab{chr(code)}c " for code in range(page, page + 256) if not 0xD800 <= code < 0xE000)
            for page in range(first, first + (1 << 16), 256)
        ]
        found = pairs[name].words(tf.constant(texts))
        splits, words = found.row_splits.numpy(), found.values.numpy()
        for index, text in enumerate(texts):
            mine = b"\n".join(words[splits[index] : splits[index + 1]]).decode()
            assert mine == "\n".join(basic.tokenize(text)), hex(first + 256 * index)


# All of Unicode, with what tokenizers trip over far more often: marks of every class (U+1D165, U+302E and U+1B44 are
# letters to `Mn`-strippers but are moved by canonical ordering), formats, odd spaces, sigma, Hangul, CJK, Indic vowels.
TEXTS = st.text(
    st.one_of(
        st.characters(exclude_categories=["Cs"]),
        st.sampled_from(" \t\n\r\u00a0\u2028\u2003\u3000\u0085\x1c"),
        st.sampled_from("abcABCxyz.,!$~-'[]#"),
        st.sampled_from("ΣΣςΑαǅᾼİıßéÉ\u0301\u0323\u0345\u0344\u00ad\u200b\ufffd\x00\ufeff\u02b0'.·"),
        st.sampled_from("\U0001d165\U0001d16d\u302e\u302f\u1b44\U0001d15f\U0001d160\u0f73\u0b48\u0cc0\u0cca"),
        st.sampled_from("가각\u1100\u1161中\uf900\U0002f800にガ\u093f\u0947ไ≠\u1fef\u037e"),
    ),
    max_size=40,
)


@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(texts=st.lists(TEXTS, min_size=1, max_size=6))
@example(texts=["A b,", "é", "the\tthe", "\x7fthe", "", "Α", "a"])
@example(
    texts=["e\u0301", "\u0301\u0323", "ΑΣ", "Σ", "ΑΣ\u0301\u00adα ΑΣ\u0301\u00ad", "\U0001d158\U0001d16d\U0001d165a"]
)
@pytest.mark.parametrize("name", ["uncased", "cased"])
def test_any_texts_give_the_tokens_and_offsets_of_the_plain_tokenizer(pairs, name, texts):
    pair = pairs[name]
    wanted = [pair.plain.tokenize_with_offsets(text) for text in texts]
    assert pair.graph_offsets(texts) == wanted
    assert pair.graph_tokens(texts) == [[token for token, _, _ in row] for row in wanted]
    basic = pair.plain.basic_tokenizer
    assert [[word.decode() for word in row] for row in pair.words(tf.constant(texts)).to_list()] == [
        basic.tokenize(text) for text in texts
    ]


# Ranges that trip tokenizers: marks of every class, Hangul as syllables and as letters, ideographs and their
# compatibility forms, joiners, variation selectors, tags, direction marks, sigmas, letters that become several, ends of
# planes, what lies beside surrogates, unassigned and private codes.
ADVERSARIAL = [
    list(map(chr, codes))
    for codes in (
        range(0x20, 0x7F),
        range(0xA0, 0x250),
        range(0x300, 0x370),
        range(0x300, 0x370),
        range(0x591, 0x5C8),
        range(0x610, 0x65F),
        range(0x900, 0x9FF),
        range(0xE30, 0xE50),
        range(0xEB0, 0xED0),
        range(0xF70, 0xF88),
        range(0x1100, 0x1200),
        range(0x1AB0, 0x1ACF),
        range(0x1DC0, 0x1E00),
        range(0x1E00, 0x2000),
        range(0x2000, 0x2070),
        range(0x20D0, 0x20F1),
        range(0x2F00, 0x2FD6),
        (0x302A, 0x302B, 0x302C, 0x302D, 0x302E, 0x302F, 0x3099, 0x309A),
        range(0x3040, 0x3100),
        range(0x3400, 0x3410),
        range(0x4E00, 0x4E10),
        range(0xAC00, 0xD7A4, 97),
        range(0xD7B0, 0xD800),
        range(0xE000, 0xE004),
        range(0xF900, 0xFB00),
        range(0xFB00, 0xFB50),
        range(0xFE00, 0xFE70),
        range(0xFEFF, 0x10000),
        range(0x10400, 0x10450),
        range(0x110B0, 0x110BB),
        range(0x11130, 0x11135),
        range(0x16AF0, 0x16AF6),
        range(0x1BC98, 0x1BCA4),
        range(0x1D15E, 0x1D1AE),
        range(0x1E000, 0x1E02B),
        range(0x1E8D0, 0x1E8D7),
        range(0x1E944, 0x1E94B),
        range(0x1F1E6, 0x1F3FF),
        range(0x2F800, 0x2FA1E),
        (0x1FFFE, 0x1FFFF, 0x20000, 0x2A6DF, 0x2A6E0, 0x10FFFF),
        range(0xE0000, 0xE0200),
        map(ord, "ΣςσΑαǅᾼİıßﬁŉΐ\u0345\u0344\u0307\u00ad\u200b\u200c\u200d\ufeff\ufffd\x00\x1f\x7f\x85\u180e\u061c"),
        map(ord, " \t\n\r\u2028\u2029\u1680\u3000\u205f"),
        map(ord, "aAéÅeEoO0.,!-'"),
    )
]


def adversarial_texts(seed, count):
    """Draws texts from a few ranges of characters each, so that interacting characters meet."""
    rng = random.Random(seed)
    for _ in range(count):
        groups = rng.choices(ADVERSARIAL, k=rng.randint(1, 4))
        yield "".join(rng.choice(rng.choice(groups)) for _ in range(rng.randint(1, 24)))


def differing(pair, texts, at_once=1000):
    """Returns the texts for which the graph gives other tokens or offsets."""
    found = []
    for first in range(0, len(texts), at_once):
        part = texts[first : first + at_once]
        found += [
            text for text, row in zip(part, pair.graph_offsets(part)) if row != pair.plain.tokenize_with_offsets(text)
        ]
    return found


@pytest.mark.parametrize("name", ["uncased", "cased"])
def test_no_adversarial_text_differs(pairs, name):
    texts = [
        *adversarial_texts(1, 2000),
        "a\u302e\u0335",
        "ab\u302e\u0335c",
        "\u302e\u0335",
        "a\u302e\u0335\u302f b\u302e\u0335",
    ]
    assert differing(pairs[name], texts) == []


@pytest.mark.slow
@pytest.mark.parametrize("name", ["uncased", "cased"])
def test_none_of_100_000_adversarial_texts_differs(pairs, name):
    assert differing(pairs[name], list(adversarial_texts(2, 100_000))) == []


def test_an_accent_that_ends_behind_a_mark_that_was_moved_counts_to_its_letter(pairs):
    # U+302E is no accent to 2018's tokenizer (Mc) but canonical ordering puts it behind U+0335, which is one and is
    # deleted.
    assert pairs["uncased"].graph_offsets(["a\u302e\u0335"]) == [[("[UNK]", 0, 3)]]


def ascii_texts(golden):
    words = [token.removeprefix("##") for token in (golden / "vocab_uncased.txt").read_text().split("\n")]
    word = st.sampled_from([word for word in words if word.isascii()])
    return st.lists(
        st.one_of(
            word,
            word.map(str.upper),
            st.text(st.characters(max_codepoint=127), max_size=4),
            st.sampled_from(" \t\r\n,.'-#[]"),
            st.integers(198, 202).map("a".__mul__),
        )
    ).map("".join)


@pytest.mark.parametrize("name", ["uncased", "cased"])
def test_ascii_texts_which_go_another_way_give_the_same(pairs, golden, name):
    @settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
    @given(texts=st.lists(ascii_texts(golden), min_size=1, max_size=3))
    def check(texts):
        assert pairs[name].graph_offsets(texts) == [pairs[name].plain.tokenize_with_offsets(text) for text in texts]

    check()
    two = [chr(a) + chr(b) for a in range(32, 127) for b in range(32, 127)]
    assert pairs[name].graph_offsets(two) == [pairs[name].plain.tokenize_with_offsets(text) for text in two]


@pytest.mark.parametrize("letter", ["a", "é", "ж", "\U00010400"])
def test_words_of_more_than_200_characters_are_unknown(pairs, letter):
    texts = [f"the {letter * length} the" for length in (199, 200, 201, 1000)]
    wanted = [pairs["uncased"].plain.tokenize_with_offsets(text) for text in texts]
    assert pairs["uncased"].graph_offsets(texts) == wanted
    assert wanted[2][1] == ("[UNK]", 4, 205)


def test_no_texts_and_empty_texts_give_no_tokens(pairs):
    assert pairs["uncased"].graph_tokens([]) == []
    assert pairs["uncased"].graph_offsets([]) == []
    assert pairs["uncased"].graph_offsets(["", " \u00ad", "", "the"]) == [[], [], [], [("the", 0, 3)]]


def test_bytes_that_are_not_utf8_are_deleted(pairs):
    assert pairs["uncased"].graph_offsets([b"t\xffhe \xc3 the"]) == [[("the", 0, 4), ("the", 7, 10)]]


def test_an_empty_entry_and_special_tokens_in_the_vocabulary_match_nothing(tmp_path):
    vocab = ["[PAD]", "[UNK]", "", "[CLS]", "[SEP]", "[MASK]", "a", "##a", "[", "]", "mask", "##", "#"]
    (tmp_path / "vocab.txt").write_text("\n".join(vocab))
    pair = Pair(tmp_path / "vocab.txt", True)
    texts = ["[MASK] aaa ##a", "[PAD] ## a", "!!a!!", "a?a é# #aé", "~"]
    assert pair.graph_offsets(texts) == [pair.plain.tokenize_with_offsets(text) for text in texts]


def test_all_ops_of_the_graph_are_tensorflows_own(pairs):
    concrete = pairs["uncased"].tokenize_with_offsets.get_concrete_function()
    definition = concrete.graph.as_graph_def()
    nodes = [*definition.node, *(node for function in definition.library.function for node in function.node_def)]
    ops = {node.op for node in nodes}
    # tensorflow-text's beginnings of names; RegexSplit is its, Regex* TensorFlow's.
    assert not {op for op in ops if ">" in op or op.startswith(("Fast", "TF", "Wordpiece", "RegexSplit", "Normalize"))}
    assert "LookupTableFindV2" in ops
    assert not ops & {"PyFunc", "EagerPyFunc", "PyFuncStateless", "NumpyFunction"}


def real_lines(root, name):
    """Returns lines of real text; skips the test if the data is not beside the repository."""
    folder = root.parent / "shared" / "data"
    if not folder.is_dir():
        pytest.skip(f"{folder} is not there: real text is compared where it is")
    if name == "wikipedia_en":
        lines = (line for path in sorted((folder / name).iterdir()) for line in path.open(encoding="utf-8"))
        return folder, [line for line, _ in zip(lines, range(20000))]
    articles = [
        article
        for path in sorted((folder / name).glob("*.json"))
        for article in json.loads(path.read_text(encoding="utf-8"))["data"]
    ]
    paragraphs = [paragraph for article in articles for paragraph in article["paragraphs"]]
    return folder, [
        text
        for paragraph in paragraphs
        for text in [paragraph["context"], *(question["question"] for question in paragraph["qas"])]
    ]


@pytest.mark.slow
@pytest.mark.parametrize("vocab", ["multilingual_cased", "uncased", "chinese"])
@pytest.mark.parametrize("name", ["xquad", "wikipedia_en"])
def test_no_line_of_real_text_differs(root, name, vocab):
    folder, lines = real_lines(root, name)
    pair = Pair(next((folder / "vocab" / vocab).glob("*.txt")), do_lower_case=not vocab.endswith("_cased"))
    differing = []
    for first in range(0, len(lines), 500):
        part = lines[first : first + 500]
        wanted = [pair.plain.tokenize_with_offsets(line) for line in part]
        found = zip(pair.graph_offsets(part), pair.graph_tokens(part))
        differing += [
            line for line, row, both in zip(part, wanted, found) if both != (row, [token for token, _, _ in row])
        ]
    print(f"{name}, {vocab} vocabulary: {len(differing)} of {len(lines)} lines differ")
    assert differing == []
