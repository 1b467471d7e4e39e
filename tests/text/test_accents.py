"""What lower-casing loses, by values worked out by hand."""

import collections
import unicodedata

import pytest

from official_bert.text import accents
from official_bert.text.tokenization import FullTokenizer
from official_bert.text.vocab import SPECIAL_TOKENS, casing_that_helps

VIETNAMESE = "Tôi bán bàn cho bạn. Bạn bán sách, tôi đọc sách."


@pytest.mark.parametrize("form", ["NFC", "NFD"])
@pytest.mark.parametrize(
    ("text", "kept", "marks", "controls"),
    [
        ("Café x", 5, 1, 0),
        ("мой йод", 6, 2, 0),
        ("ที่นี่", 2, 4, 0),  # two consonants, each with two signs above
        ("a\u200bb\ufffd", 2, 0, 2),
        ("Việt", 4, 2, 0),  # a circumflex and a dot below
    ],
)
def test_characters_are_counted_alike_composed_and_decomposed(form, text, kept, marks, controls):
    counts = accents.count_characters([unicodedata.normalize(form, text)])
    assert (counts[accents.KEPT], counts[accents.MARKS], counts[accents.CONTROLS]) == (kept, marks, controls)


def test_a_cased_tokenizer_deletes_controls_alone():
    assert accents.count_characters(["ที่นี่ e\u0301\u200b"], do_lower_case=False) == {
        accents.KEPT: 8,
        accents.MARKS: 0,
        accents.CONTROLS: 1,
    }


def test_all_but_the_most_frequent_word_of_a_group_are_lost():
    accented = collections.Counter({"bán": 5, "bạn": 3, "sách": 4})
    loss = accents.describe_loss(accented, {"ban": 10, "sach": 4, "cho": 6}, 0.5)  # ban itself occurs twice
    assert "makes 3 different words the same as others: 25.0% of the words" in loss  # 10 - 5 of 20
    assert loss.endswith("(bán, bạn, ban -> ban)")


@pytest.mark.parametrize("form", ["NFC", "NFD"])
def test_a_text_says_its_loss_in_both_forms(form):
    loss = accents.what_lower_casing_loses([unicodedata.normalize(form, VIETNAMESE)])
    assert "makes 3 different words the same as others: 21.4% of the words" in loss and "bán, bạn, bàn -> ban" in loss
    assert accents.what_lower_casing_loses(["It was a café, she said."] * 3) == ""
    assert "deletes 45.5% of the text's characters" in accents.what_lower_casing_loses(["ที่นี่ เมือง"])


@pytest.mark.parametrize(
    ("entries", "lower", "hint"),
    [
        (["bán", "##bạn", "cho"], True, "the vocabulary has accents, and --do_lower_case=False keeps"),
        (["ban", "##cho"], True, ""),
        (["ban", "##cho"], False, "the vocabulary has no capital letters"),
        (["Ban", "##cho"], False, ""),
    ],
)
def test_the_casing_that_helps_follows_from_the_vocabulary(entries, lower, hint):
    helps = casing_that_helps([*SPECIAL_TOKENS, *entries], lower)
    assert helps.startswith(hint) and bool(helps) == bool(hint)


def test_texts_that_a_checkpoints_casing_does_not_suit_are_a_warning(golden):
    tokenizer = FullTokenizer(str(golden / "vocab_uncased.txt"), do_lower_case=True)
    [warning] = accents.casing_warnings(tokenizer, iter([VIETNAMESE]))
    assert warning.startswith("lower-casing deletes accents")
    assert warning.endswith("a cased checkpoint keeps them")
    assert accents.casing_warnings(tokenizer, ["plain text"]) == []
    cased = FullTokenizer(str(golden / "vocab_cased.txt"), do_lower_case=False)
    assert accents.casing_warnings(cased, [VIETNAMESE]) == []
