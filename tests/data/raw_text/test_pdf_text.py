"""Hyphens at line ends and ligatures, against results worked out by hand."""

import numpy as np
import pytest

from official_bert.data.pretraining.yield_report import YieldReport
from official_bert.data.raw_text import pdf_text


def repaired(*documents):
    """The documents of a corpus after the repair, and the amounts of its account."""
    known, report = pdf_text.known_joined_forms(map(pdf_text.word_keys, documents)), YieldReport()
    texts = [pdf_text.WordRepair(known)(document, report) for document in documents]
    return texts, {name: dict(reason.amounts) for name, reason in report.notes.items()}


def test_a_divided_word_is_joined_if_the_joined_form_occurs_elsewhere():
    other = ["La contaminación y lo nacional, contaminado.", "well- known, Ein- und Ausgabe, COVID- 19, x - y"]
    texts, notes = repaired(["La contamina- ción del agua.", "Un rio con- tamina- do, una na- cio- nal."], other)
    assert texts == [["La contaminación del agua.", "Un rio contaminado, una nacional."], other]
    assert notes == {pdf_text.JOINED: {"words": 3}, pdf_text.HYPHENATED: {"words": 1}}  # left: well- known


@pytest.mark.parametrize(
    ("divided", "word", "joined"),
    [
        ("Umwelt\u00ad schutz", "Umweltschutz", "Umweltschutz"),  # a soft hyphen
        ("infor\u2010 mación", "INFORMACIÓN", "información"),  # another case
        ("CONTAMINA- CIÓN", "contaminación", "CONTAMINACIÓN"),
        ("contaminacio\u0301- nes", "contaminaciónes", "contaminacio\u0301nes"),  # accents behind their letters
        ("заяв- ление", "заявление", "заявление"),
        ("e\ufb03- cient", "efficient", "efficient"),
        ("Trans- Atlantic", "transatlantic", "Trans- Atlantic"),  # a name goes on
        ("be- und", "beund", "be- und"),
    ],
)
def test_hyphens_cases_accents_and_scripts(divided, word, joined):
    assert repaired([f"a {divided} b"], [word])[0][0] == [f"a {joined} b"]


def test_a_line_that_ends_within_a_word_goes_on_with_the_next_one():
    assert repaired(["La contamina-", "ción sigue.", "", "Fin de con-", "", "taminar."], ["contaminación"])[0][0] == [
        "La contaminación sigue.",
        "",
        "Fin de con-",
        "",
        "taminar.",
    ]


def test_ligatures_become_letters_and_are_counted():
    texts, notes = repaired(["\ufb01n, e\ufb00ect, o\ufb03ce, \ufb02ow, \ufb06eel, ½ … é"])
    assert texts == [["fin, effect, office, flow, steel, ½ … é"]] and notes == {pdf_text.REPLACED: {"ligatures": 5}}


def test_without_the_repair_words_are_counted_and_the_text_stays():
    report, text = YieldReport(), ["La contamina-", "ción de la o\ufb01cina."]
    assert pdf_text.WordRepair()(text, report) is text
    assert {name: dict(reason.amounts) for name, reason in report.notes.items()} == {
        pdf_text.LIGATURES: {"ligatures": 1},
        pdf_text.HYPHENATED: {"words": 1},
    }
    report.keep(words=1000)
    assert pdf_text.unrepaired_share(report) == pytest.approx(0.002)


def test_words_of_many_parts_are_found(monkeypatch):
    monkeypatch.setattr("official_bert.data.raw_text.deduplication.RECENT", 4)
    texts = [f"word{chr(97 + number)} wor- d{chr(97 + number + 1)} and so on" for number in range(20)]
    parts = [pdf_text.word_keys([text]) for text in texts]
    known = pdf_text.known_joined_forms(parts)
    assert len(known) == 19 and all(isinstance(key, int) for key in known) and parts[0][0].dtype == np.uint64
