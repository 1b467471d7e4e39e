"""MLQA's rules against answers worked out by hand, and the language of a file."""

import json

import pytest

from official_bert.tasks.squad import languages, mlqa


@pytest.mark.parametrize(
    ("language", "text", "wanted"),
    [
        ("en", "The  Cat, a dog & an $8 mat!", "cat dog 8 mat"),
        ("en", "Theatre", "theatre"),
        ("en", "the “new” 1–2 price…", "new 12 price"),  # Unicode's punctuation is deleted, and leaves no space
        ("es", "El niño de las casas, ¿una?", "niño de casas"),
        ("de", "Die Straße des 17. Juni; dem Kind", "straße 17 juni kind"),
        ("vi", "Những con mèo của tôi là cái gì", "con mèo tôi gì"),
        ("hi", "दिल्ली, भारत।", "दिल्ली भारत"),
        ("ar", "الكتاب الجديد", "كتاب جديد"),
        ("ar", "والكتاب", "و كتاب"),  # also within a word
        ("zh", "1997年的《中国》 ABC-1 the", "1997 年 的 中 国 abc1 the"),
    ],
)
def test_normalisation_by_hand(language, text, wanted):
    assert mlqa.normalize(text, language) == wanted


def articles(*golds):
    return [
        {
            "paragraphs": [
                {
                    "qas": [
                        {"id": str(number), "answers": [{"text": text} for text in texts]}
                        for number, texts in enumerate(golds)
                    ]
                }
            ]
        }
    ]


def test_scores_by_hand():
    # 中国 人 against 中国: 2 of 3 predicted words are right, both wanted ones are found: 0.8.
    # The second question is not answered.
    found = mlqa.mlqa_metrics(articles(["美", "中国"], ["北京"], ["the"]), {"0": "中国人", "2": "THE"}, "zh")
    assert found == pytest.approx({"exact_match": 1 / 3, "f1": (0.8 + 1) / 3})
    # In English nothing is left of both: equal, but without a word in common.
    assert mlqa.mlqa_metrics(articles(["the"]), {"0": "A"}, "en") == {"exact_match": 1.0, "f1": 0.0}
    assert (
        mlqa.mlqa_metrics(articles(["x"]), {"0": "x"}, "ru") == {} == mlqa.mlqa_metrics(articles([]), {"0": "x"}, "en")
    )


@pytest.mark.parametrize(
    ("name", "language"),
    [
        ("xquad.de.json", "de"),
        ("a/b.en/XQUAD.ZH.json", "zh"),
        ("test-context-ar-question-de.json", "ar"),
        ("dev_hi.json", "hi"),
        ("de", "de"),
        ("xquad.zh-CN.json", "zh"),
        ("xquad.de.qa.json", "de"),
        ("made_fr.qa.jsonl", "qa"),
        ("context-fr-in-el.json", "fr"),
    ],
)
def test_the_language_is_in_the_name(name, language):
    assert languages.language_of(name) == language


@pytest.mark.parametrize("name", ["squad.json", "dev-v1.1.json", "xquad.deu.json"])
def test_a_name_without_a_language_is_refused(name):
    with pytest.raises(ValueError, match="expected the language in the file's name, as in xquad.de.json"):
        languages.language_of(name)


def test_a_mean_over_fewer_files_says_so():
    rows = [
        languages.Scores(language, f"{language}.json", 4, 0.5, score, *of_mlqa)
        for language, score, of_mlqa in (("en", 0.6, (0.4, 0.7)), ("ru", 0.7, ()), ("de", 0.8, (0.2, 0.3)))
    ]
    assert (
        languages.table(rows).splitlines()[-1]
        == "| mean | | 12 | 50.00 % | 70.00 % | 30.00 % (2 of 3 files) | 50.00 % (2 of 3 files) |"
    )
    assert languages.table(rows[1:2]).splitlines()[-1] == "| mean | | 4 | 50.00 % | 70.00 % | - | - |"


def test_rows_without_gold_answers_are_refused(tmp_path):
    path = tmp_path / "xquad.de.jsonl"
    path.write_text(json.dumps({"question": "Wer?", "context": "Ada sitzt."}) + "\n")
    with pytest.raises(
        ValueError, match=r"xquad\.de\.jsonl: question '0': expected gold answers to measure against, got none"
    ):
        languages.check([str(path)], version_2=False)


def test_questions_that_the_script_cannot_measure_and_answers_that_would_replace_each_other_are_refused(tmp_path):
    path = tmp_path / "xquad.de.jsonl"
    path.write_text(json.dumps({"question": "Wer?", "context": "Ada sitzt.", "answers": []}) + "\n")
    with pytest.raises(
        ValueError, match=r"xquad\.de\.jsonl: question '0': .*got none; .* read with version_2_with_negative"
    ):
        languages.check([str(path)], version_2=False)
    languages.check([str(path)], version_2=True)
    (tmp_path / "xquad.de.json").write_text(f"[{path.read_text()}]")
    with pytest.raises(ValueError, match="--eval_files: expected files of different names"):
        languages.check([str(path), str(tmp_path / "xquad.de.json")], version_2=True)
