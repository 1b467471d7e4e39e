import random

import pytest

from official_bert.data.raw_text import languages
from official_bert.data.raw_text.sentence_splitting import split_sentences

SENTENCES = [f"Mr. Brown counted {number} sheep on the hill." for number in range(400)]


def squeezed(text):
    return "".join(text.split())


@pytest.mark.parametrize("mark", ['"', "“", "”", "«", "»", "‘", "(", ")", "[", "<", "'", "「", "`"])
def test_a_stray_mark_merges_no_sentences(mark):
    text = list(SENTENCES)
    for place in range(3, 400, 50):
        text[place] = f"{mark}{text[place]}" if place % 100 == 3 else text[place].replace(" sheep", f" {mark}sheep")
    sentences = split_sentences(" ".join(text))
    assert len(sentences) == 400 and max(map(len, sentences)) < 60


def test_short_quotations_stay_whole_and_long_ones_do_not():
    assert split_sentences('He said, "I go. You stay." Then he left.') == [
        'He said, "I go. You stay."',
        "Then he left.",
    ]
    speech = " ".join(SENTENCES[:20])
    assert split_sentences(f'"{speech}" Then he left.') == [
        f'"{SENTENCES[0]}',
        *SENTENCES[1:19],
        f'{SENTENCES[19]}"',
        "Then he left.",
    ]


@pytest.mark.parametrize(
    ("text", "sentences"),
    [
        ("He left.” “Then she came. It rained.", ["He left.”", "“Then she came.", "It rained."]),
        ("他走了。” “她来了。下雨了。", ["他走了。”", "“她来了。", "下雨了。"]),
        ("Il part. » Elle vient.", ["Il part. »", "Elle vient."]),
        ("The boys' house burned. It was the cats' fault.", ["The boys' house burned.", "It was the cats' fault."]),
    ],
)
def test_unpaired_marks_stay_with_their_sentence(text, sentences):
    assert split_sentences(text) == sentences


def test_nothing_is_lost_or_longer_than_the_limit_whatever_the_text():
    draw = random.Random(3)
    letters = ["ab", "Zé.", *"!?“”‘’()[]«»\"'`,;\u0301", "他。」「", "ไท", "ก", "\ud7ff", "\U0001f600"]
    for _ in range(120):
        text = "".join(draw.choice(letters) + draw.choice(["", " ", ""]) for _ in range(draw.randrange(3000)))
        sentences = split_sentences(text)
        assert squeezed("".join(sentences)) == squeezed(text)
        assert all(sentence and len(sentence) <= 1000 for sentence in sentences)


def test_text_without_any_mark_is_cut_at_spaces():
    words = "word " * 2000
    assert all(600 < len(sentence) <= 1000 and sentence.endswith("word") for sentence in split_sentences(words)[:-1])
    thai = "ประวัติศาสตร์ของเมืองนี้เริ่มต้นขึ้นเมื่อหลายร้อยปีก่อน " * 20
    sentences = split_sentences(thai, "th")
    assert len(sentences) >= 8 and all(sentence.endswith("ก่อน") for sentence in sentences)


def test_text_in_small_letters_is_split_although_the_library_waits_for_a_capital():
    text = " ".join(sentence.lower().replace("mr. ", "") for sentence in SENTENCES)
    assert len(split_sentences(text)) == 400


def test_each_code_of_wikipedia_has_a_rule_or_a_stated_fallback():
    assert languages.splitting_rule("de") == "de" and languages.splitting_rule("als") == "de"
    assert languages.describe_rule("sw") == "sentences of sw are split by the rules of en (fallback)"
    assert languages.describe_rule("hi") == ""
    assert len(languages.RULES) >= 320 and set(languages.RULES.values()) == set(languages.OWN_RULES.split())
    codes = [*languages.OWN_RULES.split(), *(code for text in languages._FALLBACKS.values() for code in text.split())]
    assert len(codes) == len(set(codes))
    with pytest.raises(ValueError, match="--language: expected the code of a Wikipedia.*got 'english'"):
        split_sentences("Some text.", "english")
