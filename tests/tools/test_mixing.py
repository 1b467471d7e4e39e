import numpy as np
import pytest

from official_bert.data.raw_text import quality
from official_bert.data.raw_text.quality import QualityLimits, scripts_of
from official_bert.tools.corpus import mixing


def test_factors_are_those_worked_out_by_hand():
    # Shares 0.9 and 0.1 become 0.75 and 0.25 of 100 words (exponent 0.5): each English document 5/6 times, Swahili 2.5
    # times.
    sizes = {"en": 90, "sw": 10}
    shares = mixing.smoothed_shares(sizes, 0.5)
    assert shares == pytest.approx({"en": 0.75, "sw": 0.25})
    assert mixing.copy_factors(sizes, shares) == pytest.approx({"en": 5 / 6, "sw": 2.5})
    assert mixing.parse_mix("en=3,sw=1", ["sw", "en"]) == {"en": 0.75, "sw": 0.25}


def test_copies_have_the_wanted_mean_and_depend_on_nothing_else():
    for factor in (0.3, 1.0, 2.5):
        drawn = [mixing.copies(factor, "en", number) for number in range(4000)]
        assert np.mean(drawn) == pytest.approx(factor, abs=0.03) and set(drawn) <= {int(factor), int(factor) + 1}
        assert drawn == [mixing.copies(factor, "en", number) for number in range(4000)]


@pytest.mark.parametrize(
    "text", ["en", "en=x", "en=1", "en=1,sw=0", "en=1,sw=1,de=1", "en=1,sw=nan", "en=inf,sw=1", "en=3,sw=1,en=1"]
)
def test_weights_that_are_none_are_refused(text):
    with pytest.raises(ValueError, match="--mix: expected"):
        mixing.parse_mix(text, ["en", "sw"])


def test_files_have_the_language_that_stands_before_them(tmp_path):
    for name in ("a.txt", "b.txt", "c.txt"):
        (tmp_path / name).touch()
    files = mixing.split_languages(f"{tmp_path}/a.txt,sw:{tmp_path}/b.txt,zh-min-nan:{tmp_path}/c.txt", "en")
    assert files == {"en": [f"{tmp_path}/a.txt"], "sw": [f"{tmp_path}/b.txt"], "zh-min-nan": [f"{tmp_path}/c.txt"]}


def test_a_file_is_read_once_and_has_one_language(tmp_path):
    (tmp_path / "a.txt").touch()
    assert mixing.split_languages(f"{tmp_path}/*.txt,{tmp_path}/a.txt", "en") == {"en": [f"{tmp_path}/a.txt"]}
    with pytest.raises(ValueError, match="--input_file: expected one language for .*a.txt, got en and sw"):
        mixing.split_languages(f"en:{tmp_path}/*.txt,sw:{tmp_path}/a.txt")


@pytest.mark.parametrize(
    ("limits", "sentences", "language", "told"),
    [
        ({"min_words": 5}, ["One two."], "en", "fewer than 5 words"),
        ({"max_repeated_lines": 0.3}, ["A b.", "A b.", "C d."], "en", "more than 30% of repeated sentences"),
        ({"min_letters": 0.7}, ["1 2 3 4 ab"], "en", "fewer than 70% letters"),
        ({"min_script": 0.5}, ["Это русский."], "en", "letters of their language's script"),
        ({"min_script": 0.5}, ["Это русский."], "ru", ""),
        ({"same_language": True}, ["Die Stadt liegt am nördlichen Ufer des Flusses."], "de", ""),
        ({"same_language": True}, ["Die Stadt liegt am nördlichen Ufer des Flusses."], "en", "another language"),
        ({"same_language": True}, ["The town lies on the northern bank of the river."], "simple", ""),
        ({"same_language": True}, ["Byen ligger på den nordlige bredden av elva, og mange bor der."], "nn", ""),
        ({"min_script": 0.9}, ["この都市は川の北岸に位置している。"], "ja", ""),
        ({"min_script": 0.9, "min_letters": 0.8}, ["यह शहर नदी के उत्तरी किनारे पर स्थित है।"], "hi", ""),
        ({}, ["1"], "en", ""),
    ],
)
def test_each_limit_drops_what_misses_it(limits, sentences, language, told):
    reason = QualityLimits(**limits).reason_to_drop(sentences, sum(len(line.split()) for line in sentences), language)
    assert (told in reason) if told else reason == ""


@pytest.mark.parametrize(
    ("language", "word"),
    [
        ("alt", "алтай"),
        ("arc", "ܫܠܡܐ"),
        ("arz", "مصر"),
        ("acm", "بغداد"),
        ("chr", "ᏣᎳᎩ"),
        ("cr", "ᓀᐦᐃᔭᐍᐏᐣ"),
        ("dv", "ދިވެހި"),
        ("got", "𐌲𐌿𐍄𐌹𐍃𐌺"),
        ("ii", "ꆈꌠꉙ"),
        ("iu", "ᐃᓄᒃᑎᑐᑦ"),
        ("kum", "къумукъ"),
        ("lbj", "ལ་དྭགས"),
        ("mag", "मगही"),
        ("ksw", "ကညီ"),
        ("mni", "ꯃꯤꯇꯩ"),
        ("nqo", "ߒߞߏ"),
        ("rsk", "русински"),
        ("sat", "ᱥᱟᱱᱛᱟᱲᱤ"),
        ("syl", "ꠍꠤꠟꠐꠤ"),
        ("tdd", "ᥖᥭᥰ"),
        ("zgh", "ⵜⴰⵎⴰⵣⵉⵖⵜ"),
    ],
)
def test_the_name_of_a_language_is_of_its_script(language, word):
    assert QualityLimits(min_script=0.9).reason_to_drop([word], 1, language) == ""


def test_scripts_of_languages():
    assert scripts_of("de") == ("LATIN",) and scripts_of("zh-yue") == ("CJK",) and "HIRAGANA" in scripts_of("ja")


def test_a_language_that_cannot_be_told_is_refused():
    with pytest.raises(ValueError, match="--same_language: expected languages that can be told apart .*, got 'nah'"):
        quality.accepted_labels("nah")
