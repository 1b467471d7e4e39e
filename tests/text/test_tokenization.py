"""The plain tokenizer against the results of 2018, and its offsets against the text."""

import json
import unicodedata

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from official_bert.text.tokenization import UNKNOWN, BasicTokenizer, FullTokenizer


@pytest.fixture(scope="module")
def tokenizers(golden):
    return {
        name: FullTokenizer(str(golden / f"vocab_{name}.txt"), do_lower_case=name == "uncased")
        for name in ("uncased", "cased")
    }


@pytest.fixture(scope="module")
def rows(golden):
    return json.loads((golden / "tokenizer.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", ["uncased", "cased"])
def test_all_golden_rows_are_equal(tokenizers, rows, name):
    assert len(rows) == 1694
    assert [row["text"] for row in rows if tokenizers[name].tokenize(row["text"]) != row[name]] == []


@pytest.mark.parametrize("name", ["uncased", "cased"])
def test_offsets_give_the_tokens_of_the_golden_rows(tokenizers, rows, name):
    for row in rows:
        assert [token for token, _, _ in tokenizers[name].tokenize_with_offsets(row["text"])] == row[name]


# All of Unicode, with what tokenizers trip over (marks, formats, odd spaces, sigma, Hangul, CJK) far more often.
TEXTS = st.text(
    st.one_of(
        st.characters(),
        st.sampled_from(" \t\n\r\u00a0\u2028\u2003\u3000\u0085\x1c"),
        st.sampled_from("abcABCxyz.,!$~-'[]#"),
        st.sampled_from("ΣςΑİıßéÉ\u0301\u0323\u0345\u302e\u00ad\u200b\ufffd\x00\ufeff"),
        st.sampled_from("가각\u1100\u1161中\uf900\U0002f800にガ\u093f\u0947ไ"),
    )
)


# 2018: "anything in the CJK Unicode block", so places without a character too; the blocks of Unicode 8 that have such
# places.
CJK_BLOCKS = (
    (0x3400, 0x4DBF),
    (0x4E00, 0x9FFF),
    (0xF900, 0xFAFF),
    (0x20000, 0x2A6DF),
    (0x2A700, 0x2CEAF),
    (0x2F800, 0x2FA1F),
)


def is_ideograph(char: str) -> bool:
    """Whether 2018 takes a character for a word of its own: by its name or, where none is assigned, by its block."""
    if name := unicodedata.name(char, ""):
        return (
            name.startswith("CJK ")
            and "IDEOGRAPH" in name
            and not 0x2CEB0 <= ord(char) < 0x2F800
            and ord(char) < 0x30000
        )
    return any(first <= ord(char) <= last for first, last in CJK_BLOCKS)


def reference_words(text: str, do_lower_case: bool) -> list[str]:
    """Splits a text into normalised words by 2018's steps, as its comments and README describe them."""
    cleaned = ""
    for char in text:
        category = unicodedata.category(char)
        if char in "\t\n\r" or category == "Zs":
            cleaned += " "
        elif category not in ("Cc", "Cf") and char != "\ufffd":
            cleaned += f" {char} " if is_ideograph(char) else char
    words = []
    for token in cleaned.split():
        if do_lower_case:
            token = "".join(c for c in unicodedata.normalize("NFD", token.lower()) if unicodedata.category(c) != "Mn")
        for char in token:
            ascii_symbol = ord(char) < 128 and not char.isalnum()
            token = token.replace(char, f" {char} ") if ascii_symbol or unicodedata.category(char)[0] == "P" else token
        words += token.split()
    return words


@settings(max_examples=400, deadline=None)
@example("0\ufada", False)
@given(TEXTS, st.booleans())
def test_words_are_those_of_the_steps_taken_one_by_one(text, do_lower_case):
    assert BasicTokenizer(do_lower_case).tokenize(text) == reference_words(text, do_lower_case)


def normalised(text: str, do_lower_case: bool) -> str:
    return "".join(BasicTokenizer(do_lower_case).tokenize(text))


@settings(max_examples=400, deadline=None)
@given(text=TEXTS)
@pytest.mark.parametrize("name", ["uncased", "cased"])
def test_a_slice_of_the_text_normalised_is_its_token(tokenizers, name, text):
    tokenizer = tokenizers[name]
    found = tokenizer.tokenize_with_offsets(text)
    assert [token for token, _, _ in found] == tokenizer.tokenize(text)
    for token, start, end in found:
        part = normalised(text[start:end], tokenizer.do_lower_case)
        if token == UNKNOWN or "Σ" in text:
            continue  # a capital sigma's form depends on what stands around the slice
        whole = token.removeprefix("##") or token
        assert part == whole or (end - start == 1 and whole in part), (token, start, end)
