"""Cleaned documents as JSON values: the same again, and nothing else is taken."""

import copy
import json

import numpy as np
import pytest

from official_bert.data.pretraining.yield_report import YieldReport
from official_bert.data.raw_text.deduplication import Fingerprinter
from official_bert.tools.corpus.cleaned_documents import Cleaned, from_data, to_data


@pytest.fixture(params=[False, True], ids=["exact", "near"])
def piece(request):
    paragraphs = [["A first sentence.", "\ud800 half a pair."], ["東京は晴れ。"]]
    amounts = [{"sentences": 2, "characters": 27, "words": 6}, {"sentences": 1, "characters": 6, "words": 3}]
    report = YieldReport()
    report.drop("too short", "No.", expected=True, documents=1)
    report.note("bad text replaced", "file:3", lines=1)
    report.keep(documents=2**40)
    return [Cleaned("ja", paragraphs, amounts, Fingerprinter(request.param)(paragraphs))], report, 1234


def test_a_piece_comes_back_as_it_was(piece):
    [document], report, read = from_data(json.loads(json.dumps(to_data(piece))))
    [wanted], wanted_report, wanted_read = piece
    assert (document.language, document.paragraphs, document.amounts) == (
        wanted.language,
        wanted.paragraphs,
        wanted.amounts,
    )
    assert document.total() == {"documents": 1, "sentences": 3, "characters": 33, "words": 9} and read == wanted_read
    for name in ("paragraphs", "signature"):
        ours, theirs = getattr(document.fingerprint, name), getattr(wanted.fingerprint, name)
        np.testing.assert_array_equal(ours, theirs)
        assert getattr(ours, "dtype", None) == getattr(theirs, "dtype", None)
    assert document.fingerprint.document == wanted.fingerprint.document and report.as_dict() == wanted_report.as_dict()


def test_other_values_are_refused(piece):
    whole = json.loads(json.dumps(to_data(piece)))

    def changed(place, value):
        values = copy.deepcopy(whole)
        target = values
        for key in place[:-1]:
            target = target[key]
        target[place[-1]] = value
        return values

    others = [
        changed(place, value)
        for place, values in {
            (0,): [None, [1], [[]], {"a": 1}],
            (1,): [None, {}, []],
            (2,): ["1", None, 1.5],
            (0, 0, 0): [1],
            (0, 0, 1): [[], [[1]], [[]], "ab"],
            (0, 0, 2): [[{}, {}], [{"sentences": "1"}] * 2],
            (0, 0, 3): [[1], [-1, 2], [2**70, 1], ["a", "b"], [[1], [2]]],
            (0, 0, 4): ["1"],
            (0, 0, 5): [[1], ["a"] * 64],
            (1, 1, "too short", 2): [1],
            (1, 0): [{"documents": "1"}],
        }.items()
        for value in values
    ]
    for values in [*others, None, [], [1, 2, 3, 4], "abc", {}]:
        with pytest.raises(ValueError, match="no cleaned documents"):
            from_data(values)
