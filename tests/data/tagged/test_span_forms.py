"""Every form of entities as character spans: read, written back, and refused where it is wrong."""

import json

import pytest

from official_bert.data.rows import Rows
from official_bert.data.tagged import brat, span_forms
from official_bert.data.tagged.span_forms import Reading
from official_bert.data.tagged.spans import Span, in_utf16, of_utf16
from official_bert.tasks.tagging import conll
from official_bert.tasks.tagging.options import Options

TEXT = "Ada Lovelace lived in London."
SPANS = [Span(0, 12, "PER"), Span(22, 28, "LOC")]
ROWS = {  # as each tool writes them
    "doccano": {"id": 7, "text": TEXT, "label": [[0, 12, "PER"], [22, 28, "LOC"]]},
    "doccano_relations": {
        "id": 7,
        "text": TEXT,
        "relations": [],
        "entities": [
            {"id": 0, "label": "PER", "start_offset": 0, "end_offset": 12},
            {"id": 1, "label": "LOC", "start_offset": 22, "end_offset": 28},
        ],
    },
    "label_studio": {
        "id": 1,
        "data": {"text": TEXT},
        "annotations": [
            {
                "id": 3,
                "was_cancelled": False,
                "result": [
                    {
                        "type": "labels",
                        "from_name": "label",
                        "to_name": "text",
                        "value": {"start": 0, "end": 12, "text": "Ada Lovelace", "labels": ["PER"]},
                    },
                    {
                        "type": "labels",
                        "from_name": "label",
                        "to_name": "text",
                        "value": {"start": 22, "end": 28, "labels": ["LOC"]},
                    },
                    {"type": "choices", "value": {"choices": ["x"]}},
                ],
            }
        ],
    },
    "label_studio_min": {
        "id": 1,
        "text": TEXT,
        "annotator": 1,
        "label": [
            {"start": 0, "end": 12, "text": "Ada Lovelace", "labels": ["PER"]},
            {"start": 22, "end": 28, "text": "London", "labels": ["LOC"]},
        ],
    },
    "spacy": [TEXT, {"entities": [[0, 12, "PER"], [22, 28, "LOC"]]}],
    "spacy_docs": {
        "text": TEXT,
        "ents": [{"start": 0, "end": 12, "label": "PER"}, {"start": 22, "end": 28, "label": "LOC"}],
        "tokens": [{"id": 0, "start": 0, "end": 3}],
    },
    "prodigy": {
        "text": TEXT,
        "tokens": [{"text": "Ada", "id": 0}],
        "answer": "accept",
        "spans": [{"start": 0, "end": 12, "label": "PER", "token_start": 0}, {"start": 22, "end": 28, "label": "LOC"}],
    },
    "cluener": {"text": TEXT, "label": {"PER": {"Ada Lovelace": [[0, 11]]}, "LOC": {"London": [[22, 27]]}}},
    "flair": {"data": TEXT, "label": [[0, 12, "PER"], [22, 28, "LOC"]]},
}


def confirmed(row):
    """A row as its tool exports it when a person has confirmed what was predicted."""
    return row | {"annotations": row["predictions"]} if "predictions" in row else row


@pytest.mark.parametrize("name", ROWS)
def test_a_form_is_read_and_written_by_the_same_row(name):
    (found,) = span_forms.records(Rows("f", [ROWS[name]]))
    assert found == (0, (TEXT, SPANS)) and span_forms.common_form(Rows("f", [ROWS[name]])).name == name
    form = span_forms.BY_NAME[name]
    for before in (ROWS[name], {}):
        written = json.loads(json.dumps(form.write(before, TEXT, SPANS)))
        assert form.fits(written) and form.read(confirmed(written)) == (TEXT, SPANS)
        # the answer replaces what was there
        assert form.read(confirmed(form.write(written, TEXT, SPANS[:1]))) == (TEXT, SPANS[:1])
    assert isinstance(ROWS[name], list) or form.write(ROWS[name], TEXT, []).get("id") == ROWS[name].get("id")


@pytest.mark.parametrize(
    ("rows", "name"),
    [
        ([{"text": "a", "label": []}, {"text": "b", "label": []}], "doccano"),
        ([{"text": "a", "entities": [], "relations": []}], "doccano_relations"),
        ([{"text": "a", "label": []}, ROWS["label_studio_min"]], "label_studio_min"),
        ([{"text": "a", "label": {}}], "cluener"),
        ([{"text": "a", "entities": []}, ROWS["doccano_relations"]], "doccano_relations"),
    ],
)
def test_rows_that_nobody_has_labelled_yet_are_in_the_form_of_the_tool(rows, name):
    assert span_forms.common_form(Rows("f", rows)).name == name


@pytest.mark.parametrize("name", ROWS)
@pytest.mark.parametrize("other", ROWS)
def test_entities_that_a_row_of_another_form_holds_are_not_read_instead(name, other):
    row = {"id": 7, "note": "kept"} | {
        key: value for key, value in dict(ROWS[other] if other != "spacy" else {}).items() if key != "text"
    }
    form = span_forms.BY_NAME[name]
    written = form.convert(row, TEXT, SPANS[:1])
    assert span_forms.form_of(written).read(confirmed(written)) == (TEXT, SPANS[:1])
    assert name in ("spacy", "label_studio") or (written["id"], written["note"]) == (row["id"], "kept")


def test_rejected_rows_are_no_records_and_rows_without_entities_are_in_the_form_of_the_others():
    studio = ROWS["label_studio"] | {"annotations": [{"was_cancelled": True, "result": []}]}
    assert span_forms.BY_NAME["label_studio"].read(studio) is None
    rejected = Rows("f", [ROWS["prodigy"] | {"answer": "reject"}])
    assert list(span_forms.records(rejected)) == [(0, None)]
    rows = Rows("f", [{"text": "No entity.", "label": []}, ROWS["label_studio_min"]])
    assert span_forms.common_form(rows).name == "label_studio_min"


@pytest.mark.parametrize(
    ("name", "other", "message"),
    [
        (
            "doccano",
            ROWS["prodigy"],
            r"f\[row 1\]: expected the form of doccano, as in f\[row 0\], got that of Prodigy",
        ),
        ("spacy", {"a": 1}, r"f\[row 1\]: expected the form of spaCy's .* got \{\"a\": 1\}"),
        (
            "prodigy",
            {"text": "x", "spans": [{"start": 0}], "answer": "accept"},
            r"f\[row 1\]: not in the form of Prodigy: KeyError",
        ),
    ],
)
def test_rows_of_several_forms_and_broken_ones_are_refused_with_their_rows(name, other, message):
    with pytest.raises(ValueError, match=message):
        list(span_forms.records(Rows("f", [ROWS[name], other])))


def test_words_are_those_of_the_basic_split_so_that_ideographs_are_words():
    words, tags = span_forms.tags_of("我爱北京!Ünïted", [Span(2, 4, "LOC"), Span(5, 11, "X")], "f:1", Reading())
    assert words == ["我", "爱", "北", "京", "!", "Ünïted"] and tags == ["O", "O", "B-LOC", "I-LOC", "O", "B-X"]


def test_spans_that_cut_words_are_widened_and_counted():
    reading = Reading()
    assert span_forms.tags_of(
        "unhappy New Yorkers", [Span(2, 7, "A"), Span(8, 16, "B"), Span(7, 8, "C")][:2], "f:1", reading
    ) == (["unhappy", "New", "Yorkers"], ["B-A", "B-B", "I-B"])
    assert reading.notes("f") == ["f: 2 spans cut a word and were widened to it, the first in f:1"]
    assert span_forms.tags_of("a b ", [Span(0, 4, "A")], "f:1", fresh := Reading())[1] == [
        "B-A",
        "I-A",
    ] and not fresh.notes("f")


def test_overlapping_spans_are_refused_or_the_longest_is_kept():
    spans = [Span(0, 3, "A"), Span(2, 9, "B"), Span(2, 9, "B")]
    with pytest.raises(
        ValueError, match=r"f:4: entities overlap, B and A, .* options\.overlaps=longest keeps the longest"
    ):
        span_forms.tags_of("one two three", spans, "f:4", Reading())
    reading = Reading("longest")
    assert span_forms.tags_of("one two three", spans, "f:4", reading)[1] == ["B-B", "I-B", "I-B"]
    assert "1 spans overlapped a longer one and were ignored, the first in f:4" in reading.notes("f")[1]


@pytest.mark.parametrize(
    ("span", "message"),
    [
        (Span(0, 99, "A"), "f:2: expected places from 0 to 5, the length of the text, got 0 to 99 .A."),
        (Span(3, 3, "A"), "got 3 to 3"),
        (Span(-1, 2, "A"), "got -1 to 2"),
        (Span("0", 2, "A"), "expected start, end and type"),
        (Span([], 2, "A"), "expected start, end and type"),
        (Span(1, 2, "A"), "f:2: expected words from 1 to 2"),
    ],
)
def test_spans_out_of_range_or_without_words_are_refused_with_their_row(span, message):
    with pytest.raises(ValueError, match=message):
        span_forms.tags_of("a  bc", [Span(0, 1, "B"), span], "f:2", Reading())


def test_places_in_units_of_utf_16_are_read_written_and_noticed(tmp_path):
    text = "😀 Ada 😀 Byron"
    value = {"start": 3, "end": 6, "text": "Ada", "labels": ["PER"]}  # as JavaScript counts
    row = {
        "data": {"text": text},
        "annotations": [
            {
                "result": [
                    {"type": "labels", "value": value},
                    {"type": "labels", "value": {"start": 10, "end": 15, "labels": ["PER"]}},
                ]
            }
        ],
    }
    file = conll.read_sentences(Rows("f", [row]), Options(places="utf16"))
    (sentence,) = file.sentences
    assert sentence.tags == ("O", "B-PER", "O", "B-PER") and not file.notes
    spans = of_utf16(text, span_forms.BY_NAME["label_studio"].read(row)[1], "f")
    assert [text[span.start : span.end] for span in spans] == ["Ada", "Byron"]
    written = span_forms.BY_NAME["label_studio_min"].write({}, text, in_utf16(text, spans))
    assert written["label"][0] == value and (written["label"][1]["start"], written["label"][1]["text"]) == (10, "Byron")
    with pytest.raises(
        ValueError, match=r"from 0 to 13, .* got 10 to 15 \(X\); options\.places: utf16 reads places that count some"
    ):
        conll.read_sentences(Rows("f", [{"text": text, "label": [[10, 15, "X"]]}]))
    with pytest.raises(
        ValueError,
        match=r"f\[row 0\]: expected places between characters, from 0 to 15 units of UTF-16, got 1 to 2 \(X\)",
    ):
        conll.read_sentences(Rows("f", [{"text": text, "label": [[1, 2, "X"]]}]), Options(places="utf16"))
    with pytest.raises(
        ValueError, match=r"f\[row 0\]: expected 'Ada' from 3 to 6 .* options\.places: utf16 reads places"
    ):
        conll.read_sentences(Rows("f", [row]))
    (tmp_path / "a.txt").write_text(text)
    (tmp_path / "a.ann").write_text("T1\tPER 2 5\tAda\n")
    with pytest.raises(ValueError, match="places: utf16: expected none beside files of brat"):
        conll.read_sentences(str(tmp_path / "a.ann"), Options(places="utf16"))


def test_brats_files_are_read_line_by_line(tmp_path):
    (tmp_path / "one.txt").write_text(f"{TEXT}\n\nBig Ben rings.\n", encoding="utf-8")
    (tmp_path / "one.ann").write_text(
        "T1\tPER 0 12\tAda Lovelace\nT2\tLOC 22 28\tLondon\nR1\tIn Arg1:T1 Arg2:T2\n#1\tNote T1\tx\n"
        "T3\tBELL 31 34;35 38\tBig Ben\n"
    )
    for path in (tmp_path / "one.ann", tmp_path / "one.txt", tmp_path):
        rows = span_forms.span_rows(str(path))
        assert [record for _, record in span_forms.records(rows)] == [
            (TEXT, SPANS),
            ("Big Ben rings.", [Span(0, 7, "BELL")]),
        ]
    (tmp_path / "one.ann").write_text("T1\tPER zero\n")
    with pytest.raises(ValueError, match=r"one\.ann:1: expected T1, a tab, a type with start and end"):
        span_forms.span_rows(str(tmp_path / "one.ann"))


def test_lines_that_an_entity_of_brat_joins_are_one_row_and_documents_are_written_back(tmp_path):
    text = "Ada Byron\nLovelace sang.\n\nBig\nBen rings."
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "two.txt").write_text(text)
    (tmp_path / "in" / "two.ann").write_text("T1\tPER 0 9;10 18\tAda Byron Lovelace\nT2\tBELL 26 33\tBig Ben\n")
    (tmp_path / "in" / "one.txt").write_text("x 😀 Ada")  # code points, as brat counts
    (tmp_path / "in" / "one.ann").write_text("T1\tPER 4 7\tAda\n")
    rows = span_forms.span_rows(str(tmp_path / "in"))
    assert [row["text"] for row in rows.values] == ["x 😀 Ada", "Ada Byron\nLovelace sang.", "Big\nBen rings."]
    found = [[(span.start, span.end, span.kind) for span in record[1]] for _, record in span_forms.records(rows)]
    brat.write_documents(str(tmp_path / "out"), brat.answered_documents(rows.values, found, "unused"))
    for name in ("one.txt", "two.txt", "one.ann"):
        assert (tmp_path / "out" / name).read_text() == (tmp_path / "in" / name).read_text()
    assert (tmp_path / "out" / "two.ann").read_text() == (
        "T1\tPER 0 9;10 18\tAda Byron Lovelace\nT2\tBELL 26 29;30 33\tBig Ben\n"
    )
    assert list(span_forms.records(span_forms.span_rows(str(tmp_path / "out")))) == list(span_forms.records(rows))
    with pytest.raises(ValueError, match=r"one\.ann: expected the name of a new folder for 2 documents of brat"):
        brat.write_documents(str(tmp_path / "one.ann"), brat.answered_documents(rows.values, found, "unused"))


def test_a_list_of_words_with_tags_is_no_text_with_spans(tmp_path):
    assert not span_forms.has_spans(
        Rows("f", [{"text": "a b", "tokens": ["a", "b"], "ner_tags": [0, 0], "entities": []}])
    )
    (tmp_path / "annotator.json").write_text(json.dumps({"classes": ["PER"], "annotations": [ROWS["spacy"], None]}))
    assert span_forms.span_rows(str(tmp_path / "annotator.json")).values == [ROWS["spacy"]]
