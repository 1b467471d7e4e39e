"""Exports of labelling tools: what people confirmed is read, all else is left out and counted."""

import json

import pytest

from official_bert.data.rows import Rows
from official_bert.data.tagged import span_forms
from official_bert.data.tagged.spans import Span
from official_bert.tasks.tagging import conll
from official_bert.tasks.tagging.options import Options

TEXT = "the dog sat"


def region(start, end, words="", label="A", **more):
    value = {"start": start, "end": end, "labels": [label]} | ({"text": words} if words else {})
    return {"id": f"r{start}", "type": "labels", "from_name": "label", "to_name": "text", "value": value} | more


def task(*annotations, data=None, **more):
    return {
        "data": data or {"text": TEXT},
        "annotations": [
            {"result": annotation} if isinstance(annotation, list) else annotation for annotation in annotations
        ],
    } | more


DOG, SAT = region(4, 7, "dog"), region(8, 11, "sat", "B")


def read(*rows, notes=None, **columns):
    file = conll.read_sentences(Rows("f", list(rows)), Options(**columns))
    if notes is not None:
        notes += file.notes
    return [" ".join(sentence.tags) for sentence in file.sentences]


def spans(row):
    ((_, record),) = span_forms.records(Rows("f", [row]))
    return record


@pytest.mark.parametrize(
    "unlabelled",
    [
        task(),
        task(predictions=[{"result": [DOG]}]),
        {"data": {"text": TEXT}},
        task() | {"annotations": None},
        task(drafts=[{"result": [DOG]}]),
    ],
)
def test_tasks_of_label_studio_that_nobody_annotated_are_left_out_and_counted(unlabelled):
    notes = []
    assert read(unlabelled, task([DOG]), unlabelled, notes=notes) == ["O B-A O"]
    assert notes == ["f: 2 rows that nobody labelled left out"]
    with pytest.raises(ValueError, match="f: no sentence in this file; f: 1 rows that nobody labelled left out"):
        read(unlabelled)
    assert spans(unlabelled) == (TEXT, None)  # its text can be tagged
    told = []
    assert [
        s.tags for s in conll.read_to_tag(Rows("f", [task([DOG]), unlabelled]), Options(), told.append).sentences
    ] == [
        (),
        (),
    ]


@pytest.mark.parametrize(
    ("row", "tags"),
    [
        (task([DOG], {"result": [SAT], "ground_truth": True}), ["O O B-B"]),
        (task([DOG], [SAT]), ["O B-A O"]),
        (task({"result": [DOG], "was_cancelled": True}, [SAT]), ["O O B-B"]),
        (task({"result": [DOG], "skipped": True}, [SAT]), ["O O B-B"]),
        (task({"result": [DOG], "was_cancelled": True, "ground_truth": True}, [SAT]), ["O O B-B"]),
        (task([]), ["O O O"]),
        ({"data": {"text": TEXT}, "completions": [{"result": [DOG]}]}, ["O B-A O"]),
    ],
)
def test_of_several_annotations_the_ground_truth_counts_or_the_first(row, tags):
    assert read(row) == tags


def hyper(start, end, first, last, label="X", **more):
    return {
        "id": "h",
        "type": "hypertextlabels",
        "value": {"start": start, "end": end, "startOffset": first, "endOffset": last, "hypertextlabels": [label]}
        | more,
    }


NODE = "/p[1]/text()[1]"


@pytest.mark.parametrize(
    "result",
    [
        hyper(NODE, NODE, 0, 3),
        hyper(NODE, NODE, 0, 3, text="the"),
        hyper("/text()[1]", "/text()[1]", 0, 3),
        hyper("/p[1]/text()[1]", "/p[2]/text()[1]", 7, 3, globalOffsets={"start": 0, "end": 3}),
        {"type": "hypertextlabels", "value": {"start": 0, "end": 3, "text": "the", "hypertextlabels": ["X"]}},
    ],
)
def test_hypertext_is_read_as_text_is(result):
    assert read(task([DOG, result])) == ["B-X B-A O"]
    assert read({"text": TEXT, "label": [DOG["value"]], "hyper": [result["value"]]}) == ["B-X B-A O"]  # JSON_MIN


@pytest.mark.parametrize(
    ("result", "text", "message"),
    [
        (hyper("/p[2]/text()[1]", "/p[2]/text()[1]", 0, 3), TEXT, "expected globalOffsets .* got /p\\[2\\]"),
        (hyper(NODE, "/p[2]/text()[1]", 0, 3), TEXT, "expected globalOffsets"),
        (hyper(NODE, NODE, 0, 3), "<p>the dog</p>", "expected plain text, got HTML"),
        (
            {"id": "q", "type": "paragraphlabels", "value": {"start": "0", "end": "0", "paragraphlabels": ["A"]}},
            TEXT,
            "expected regions of type labels or hypertextlabels, got 'paragraphlabels'",
        ),
    ],
)
def test_regions_that_are_no_places_in_a_text_are_refused(result, text, message):
    with pytest.raises(ValueError, match=rf"f\[row 0\]: not in the form of Label Studio's JSON: {message}"):
        read(task([result], data={"text": text}))


def test_labels_of_whole_texts_and_of_regions_are_no_entities():
    extra = [
        {"type": "choices", "value": {"choices": ["x"]}},
        {"id": "r4", "type": "textarea", "value": {"start": 4, "end": 7, "text": ["y"]}},
        {"type": "relation", "from_id": "r4", "to_id": "r8"},
    ]
    assert read(task([DOG, *extra])) == ["O B-A O"]


@pytest.mark.parametrize(
    "data",
    [
        {"source": "document number one", "content": TEXT},
        {"text": "document number one", "content": TEXT},
        {"content": TEXT, "text": "document number one"},
        {"source": "x", "content": TEXT},
        {"id": 7, "body": TEXT},
    ],
)
def test_the_text_is_where_the_words_of_the_entities_stand(data):
    rows = [task([DOG], data=data), task([], data=data), task(data=data)]
    assert [record for _, record in span_forms.records(Rows("f", rows))] == [
        (TEXT, [Span(4, 7, "A")]),
        (TEXT, []),
        (TEXT, None),
    ]
    written = span_forms.BY_NAME["label_studio"].write(rows[2], TEXT, [Span(4, 7, "A")])
    assert written["predictions"][0]["result"][0]["to_name"] == next(
        key for key, value in data.items() if value == TEXT
    )


def test_a_text_that_nothing_tells_is_refused():
    with pytest.raises(ValueError, match="f: expected a key text, or words of entities, .* got source, content"):
        read(task([region(0, 3)], data={"source": "document one", "content": TEXT}))
    # the place is beyond the other
    assert read(task([region(8, 11)], data={"source": "x", "content": TEXT})) == ["O O B-A"]


@pytest.mark.parametrize(
    "row",
    [
        task([region(4, 7, "cat")]),
        {"text": TEXT, "label": [{"start": 4, "end": 7, "text": "cat", "labels": ["A"]}]},
        {"text": TEXT, "spans": [{"start": 4, "end": 7, "label": "A", "text": "cat"}]},
        {"text": TEXT, "label": {"A": {"cat": [[4, 6]]}}},
        {"text": TEXT, "ents": [{"start": 4, "end": 7, "label": "A", "text": "cat"}]},
    ],
)
def test_entities_whose_words_contradict_their_places_are_refused(row):
    with pytest.raises(ValueError, match=r"f\[row 0\]: expected 'cat' from 4 to 7 \(A\), as the file says, got 'dog'"):
        read(row)


def test_words_may_differ_from_the_text_by_spaces_alone():
    assert read(task([region(0, 7, "the dog ")], data={"text": "the\ndog sat"})) == ["B-A I-A O"]
    # as the tool spells a line end
    assert read(task([region(0, 7, r"the\ndog")], data={"text": "the\ndog sat"})) == ["B-A I-A O"]


def test_words_in_files_of_brat_are_those_of_their_places(tmp_path):
    (tmp_path / "a.txt").write_text("the dog sat\nin it")
    (tmp_path / "a.ann").write_text("T1\tA 4 7\tdog\nT2\tB 0 3;8 11\tthe sat\nT3\tC 8 14\tsat in\n")
    span_forms.span_rows(str(tmp_path / "a.ann"))
    (tmp_path / "a.ann").write_text("T1\tA 4 7\tdog\nT2\tB 4 7\tcat\n")
    with pytest.raises(ValueError, match=r"a\.ann:2: expected 'cat' from 4 to 7 \(B\), as the file says, got 'dog'"):
        span_forms.span_rows(str(tmp_path / "a.ann"))


ACCEPTED = {"text": TEXT, "spans": [{"start": 4, "end": 7, "label": "A"}], "answer": "accept"}


@pytest.mark.parametrize(
    "other",
    [
        ACCEPTED | {"answer": "reject"},
        ACCEPTED | {"answer": "ignore"},
        {"text": TEXT, "answer": "ignore"},
        ACCEPTED | {"answer": None},
        {"text": TEXT, "spans": ACCEPTED["spans"]},
    ],
)
def test_rows_of_prodigy_that_nobody_accepted_are_left_out_and_counted(other):
    notes = []
    assert read(ACCEPTED, other, ACCEPTED, notes=notes) == ["O B-A O"] * 2
    assert notes == ["f: 1 rows that people rejected or skipped left out"]


def test_rows_of_words_that_nobody_accepted_are_left_out_too():
    notes, row = [], {"tokens": ["the", "dog"], "ner_tags": ["O", "B-A"]}
    assert read(row | {"answer": "accept"}, row | {"answer": "reject"}, notes=notes) == ["O B-A"]
    assert "1 rows that people rejected or skipped left out" in notes[0]
    assert len(read(row | {"answer": "yes"}, row | {"answer": "reject"})) == 2  # no file of Prodigy


def test_rows_of_json_min_without_regions_were_annotated_or_not():
    notes, row = [], {"id": 1, "text": TEXT, "annotator": 1}
    labelled = row | {"annotation_id": 7, "label": [DOG["value"]], "more": [SAT["value"]]}
    assert read(labelled, row | {"annotation_id": 8}, row | {"annotation_id": None}, notes=notes) == [
        "O B-A B-B",
        "O O O",
    ]
    assert notes == ["f: 1 rows that nobody labelled left out"]


def test_the_older_export_of_doccano_has_numbers_for_labels():
    notes, row = [], {"id": 1, "text": TEXT, "meta": {}, "annotation_approver": None}
    labelled = row | {"annotations": [{"label": 10, "start_offset": 4, "end_offset": 7, "user": 1}]}
    rows = [labelled, row | {"annotations": [], "annotation_approver": "admin"}, row | {"annotations": []}]
    assert read(*rows, notes=notes) == ["O B-10 O", "O O O"] and notes == ["f: 1 rows that nobody labelled left out"]
    form = span_forms.BY_NAME["doccano_old"]
    written = json.loads(json.dumps(form.write(labelled, TEXT, [Span(0, 3, "10"), Span(4, 7, "B")])))
    assert (
        form.read(written) == (TEXT, [Span(0, 3, "10"), Span(4, 7, "B")]) and written["annotations"][0]["label"] == 10
    )


@pytest.mark.parametrize("broken", [{"annotations": ["x"]}, {"annotations": 3}, {"predictions": [{"result": [{}]}]}])
def test_broken_tasks_are_refused_in_one_line(broken):
    with pytest.raises(
        ValueError, match="f: not in the form of Label Studio's JSON: (AttributeError|KeyError|TypeError)"
    ):
        read(task([DOG]), task([DOG]) | broken)
