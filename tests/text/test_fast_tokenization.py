"""The compiled tokenizer against the plain one: golden rows, every code point, anything that hypothesis thinks of."""

import json
import pickle
import subprocess
import sys
import unicodedata

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from official_bert.text import fast_tokenization
from official_bert.text.fast_tokenization import FastTokenizer
from official_bert.text.tokenization import FullTokenizer
from official_bert.text.vocab import SPECIAL_TOKENS


@pytest.fixture(scope="module")
def tokenizers(golden):
    return {
        name: FastTokenizer(str(golden / f"vocab_{name}.txt"), do_lower_case=name == "uncased")
        for name in ("uncased", "cased")
    }


def split(ids, lengths):
    assert ids.dtype == lengths.dtype == np.int32 and lengths.sum() == len(ids)
    return [part.tolist() for part in np.split(ids, np.cumsum(lengths)[:-1])] if len(lengths) else []


def plain(tokenizer: FullTokenizer, lines):
    return [tokenizer.convert_tokens_to_ids(tokenizer.tokenize(line)) for line in lines]


def assert_equal(fast: FastTokenizer, lines):
    got, wanted = split(*fast.encode_lines(lines)), plain(fast.tokenizer, lines)
    assert [row for row in zip(lines, got, wanted) if row[1] != row[2]] == []
    assert len(got) == len(wanted)


@pytest.mark.parametrize("name", ["uncased", "cased"])
def test_all_golden_rows_are_equal(tokenizers, golden, name):
    rows = json.loads((golden / "tokenizer.json").read_text(encoding="utf-8"))
    got = split(*tokenizers[name].encode_lines([row["text"] for row in rows]))
    assert got == [tokenizers[name].tokenizer.convert_tokens_to_ids(row[name]) for row in rows]


# A word around each character, so that what it deletes, separates or changes shows.
@pytest.mark.parametrize("name", ["uncased", "cased"])
def test_every_assigned_code_point_is_equal(tokenizers, name):
    chars = [char for char in map(chr, range(sys.maxunicode + 1)) if unicodedata.category(char) not in ("Cn", "Co")]
    assert len(chars) > 140_000
    assert_equal(tokenizers[name], [f"the{char}t" for char in chars])


@pytest.mark.slow
@pytest.mark.parametrize("name", ["uncased", "cased"])
def test_every_code_point_is_equal(tokenizers, name):
    assert_equal(tokenizers[name], [f"{char}the {char}" for char in map(chr, range(sys.maxunicode + 1))])


CHARACTERS = st.one_of(
    st.characters(),
    st.characters(max_codepoint=127),
    st.sampled_from("thesandingerABCZ"),
    st.sampled_from(" \t\n\r\u00a0\u2028\u2029\u3000\u0085\x1c.'#-"),
    st.sampled_from("ΣςΑσİıßẞéÉ\u0301\u0323\u0345\u302e\u302f\U0001d165\U0001d16d\u00ad\u200b\ufffd\x00\ufeff\ud800"),
    st.sampled_from("가각\u1100\u1161中\uf900\U0002f800にガ\u093f\u0947ไ\u1fef\u037e\u226e"),
)


@settings(max_examples=500, deadline=None)
@given(lines=st.lists(st.text(CHARACTERS, max_size=60), max_size=6))
@pytest.mark.parametrize("name", ["uncased", "cased"])
def test_any_lines_are_equal(tokenizers, name, lines):
    assert_equal(tokenizers[name], lines)


@settings(max_examples=200, deadline=None)
@given(text=st.text(CHARACTERS.filter(lambda char: not "\ud800" <= char <= "\udfff")))
@pytest.mark.parametrize("name", ["uncased", "cased"])
def test_bytes_are_split_as_2018_reads_lines(tokenizers, name, text):
    fast = tokenizers[name]
    lines = text.split("\n")[:-1] if text.endswith("\n") or not text else text.split("\n")
    encoded = fast.encode_bytes(text.encode())
    assert split(encoded.ids, encoded.lengths) == plain(fast.tokenizer, [line.strip() for line in lines])
    assert encoded.blank.tolist() == [not line.strip() for line in lines]


def test_words_of_200_characters_are_split_and_longer_ones_unknown(tokenizers):
    fast = tokenizers["uncased"]
    for word in (
        "t" * 200,
        "t" * 201,
        "ö" * 200,
        "Ö" * 201,
        "t\u0301" * 200,
        "t\u0301" * 201,
        "中" * 300,
        "\u1fef" * 300,
        "가" * 67,
        "가" * 66,
        "Σ" + "t" * 199,
        "Σ" + "t" * 200,
        "t" * 100_000 + " the",
    ):
        assert_equal(fast, [f"a {word} the"])


def test_a_line_of_ten_megabytes_is_taken(tokenizers):
    fast = tokenizers["uncased"]
    encoded = fast.encode_bytes(b"the harbour ledger " * 550_000)
    once = fast.tokenizer.convert_tokens_to_ids(fast.tokenizer.tokenize("the harbour ledger"))
    assert encoded.lengths.tolist() == [len(once) * 550_000]
    assert (encoded.ids.reshape(-1, len(once)) == once).all()


def test_entries_of_a_vocabulary_that_look_like_other_things_are_equal(tmp_path):
    entries = [
        *SPECIAL_TOKENS,
        "#",
        "##",
        "##a",
        "###",
        "a",
        "ab",
        "##bc",
        "##ς",
        "σ",
        "##σ",
        "α",
        "##α",
        "ÄB",
        "##\u302e",
        "##ᅡ",
        "ᄀ",
        "",
        "c d",
    ]
    (tmp_path / "vocab.txt").write_text("\n".join(entries) + "\nend\n", encoding="utf-8")
    for do_lower_case in (True, False):
        fast = FastTokenizer(str(tmp_path / "vocab.txt"), do_lower_case)
        assert_equal(fast, ["a ab abc aba ##a # ## [MASK] ÄB ΑΣ ΑΣ.Α ΑΣΑ' 가 a\u302e abab ςa", "c d", "", "end"])


@pytest.mark.parametrize(
    ("wrong", "offset"),
    [
        (b"\xff", 0),
        (b"\xc3", 0),
        (b"\xc0\x80", 0),
        (b"\xed\xa0\x80", 0),
        (b"\xe2\x82 ", 0),
        (b"\xf4\x90\x80\x80", 0),
        (b"\x80", 0),
        (b"\xf0\x80\x80\x80", 0),
        (b"\xe0\x80\x80", 0),
    ],
)
def test_malformed_utf8_is_refused_with_its_offset(tokenizers, wrong, offset):
    for before, behind in ((b"the \xc3\xa9\n", b""), (b"the ", b" ledger\n"), ("ΑΣ".encode(), b"x\n")):
        with pytest.raises(UnicodeDecodeError) as raised:
            tokenizers["uncased"].encode_bytes(before + wrong + behind)
        assert raised.value.start == len(before) + offset


def test_nothing_gives_nothing(tokenizers):
    ids, lengths, blank = tokenizers["uncased"].encode_bytes(b"")
    assert len(ids) == len(lengths) == len(blank) == 0
    assert split(*tokenizers["uncased"].encode_lines([])) == []
    assert_equal(tokenizers["uncased"], ["", "the", ""])


def test_a_pickled_tokenizer_gives_the_same(tokenizers):
    again = pickle.loads(pickle.dumps(tokenizers["uncased"]))
    lines = ["The harbour ledger", "ΑΣ", "naïve"]
    wanted = split(*tokenizers["uncased"].encode_lines(lines))
    versions = len(fast_tokenization._encode_text.signatures)
    assert split(*again.encode_lines(lines)) == wanted
    encoded = again.encode_bytes(bytearray("\n".join(lines).encode()))  # which can be written
    assert split(encoded.ids, encoded.lengths) == wanted
    assert len(fast_tokenization._encode_text.signatures) == versions  # a worker process compiles nothing anew


def test_the_plain_tokenizer_needs_no_numba(root):
    code = (
        "import sys, official_bert.text.tokenization; sys.exit('numba' in sys.modules or 'tensorflow' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], cwd=root, check=True, timeout=60)
