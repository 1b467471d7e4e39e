"""Labels, scores and texts of tables."""

import numpy as np
import pandas
import pytest

from official_bert.data.labelled import labelled_texts
from official_bert.data.labelled.labelled_texts import LabelledTexts, TextSet
from official_bert.data.tabular.tables import Table
from official_bert.data.tagged.chunk_tags import label_list
from official_bert.tasks.data import DataFiles
from official_bert.tasks.texts.classification import Options


def table(**columns):
    count = len(next(iter(columns.values())))
    return Table("data.tsv", dict(columns), list(range(2, count + 2)), [])


def test_labels_are_numbered_in_the_order_given_and_an_unknown_one_names_its_line():
    np.testing.assert_array_equal(labelled_texts.label_ids(table(y=["b", "a", " b "]), "y", ["a", "b"]), [1, 0, 1])
    with pytest.raises(ValueError, match=r"data\.tsv:3: column 'y': expected one of \['a', 'b'\], got 'c'"):
        labelled_texts.label_ids(table(y=["b", "c"]), "y", ["a", "b"])


def test_found_labels_are_sorted_as_numbers_where_they_are_numbers():
    assert labelled_texts.find_labels(["10", "9", "9"]) == ("9", "10")
    assert labelled_texts.find_labels([True, False, 3]) == ("3", "false", "true")
    assert labelled_texts.find_labels(["b", "a"]) == ("a", "b")
    assert labelled_texts.find_labels(["1.0", 1, 2.0]) == ("1", "2") and labelled_texts.find_labels(["1.0", "1.1"]) == (
        "1.0",
        "1.1",
    )


def test_a_whole_number_is_one_label_also_beside_labels_that_are_none():
    assert labelled_texts.find_labels([1, "1.0", 1.5, 2]) == ("1", "1.5", "2")
    assert labelled_texts.find_labels(["none", 2.0, "2"]) == ("2", "none")
    assert labelled_texts.find_labels(["1", "01", "+1", "0"]) == ("0", "+1", "01", "1")


def test_a_whole_number_is_one_label_with_or_without_decimals():
    np.testing.assert_array_equal(
        labelled_texts.label_ids(table(y=["1.0", 0, 1.0, "0"]), "y", ["0", "1"]), [1, 0, 1, 0]
    )
    np.testing.assert_array_equal(labelled_texts.label_ids(table(y=["1.0", "1"]), "y", ["1", "1.0"]), [1, 0])
    np.testing.assert_array_equal(labelled_texts.label_columns(table(x=["1.0", 0.0]), ["x"]), [[1], [0]])


@pytest.mark.parametrize("value", ["", " ", None, float("nan"), "NaN", "null", pandas.NA])
def test_a_missing_label_is_refused_with_its_line_or_left_out(value):
    rows = table(text=["a", "b", "c"], y=["0", value, "1"])
    with pytest.raises(
        ValueError, match=r"data\.tsv:3: column 'y': expected a label, got .* \(1 such rows in this file"
    ):
        labelled_texts.without_missing(rows, ["y"], "refuse", pytest.fail)
    said = []
    assert labelled_texts.without_missing(rows, ["y"], "skip", said.append).columns == {
        "text": ["a", "c"],
        "y": ["0", "1"],
    }
    assert "left out" in said[0]
    assert (
        len(labelled_texts.without_missing(table(y=["null", "x"]), ["y"], "refuse", pytest.fail, labels=["null", "x"]))
        == 2
    )
    assert (
        len(
            labelled_texts.without_missing(
                table(y=["", [], "x", "x,", "x, y"]), ["y"], "refuse", pytest.fail, separator=","
            )
        )
        == 5
    )


def test_labels_that_are_spelled_as_missing_values_can_be_kept():
    rows = table(text=["a", "b", "c", "d"], y=["null", "NaN", "x", "<NA>"])
    assert labelled_texts.without_missing(rows, ["y"], "keep", pytest.fail) == rows
    for value in ("", " ", None, float("nan"), pandas.NA):
        with pytest.raises(ValueError, match=r"data\.tsv:3: column 'y': expected a label, .* skip leaves them out\)"):
            labelled_texts.without_missing(table(y=["null", value]), ["y"], "keep", pytest.fail)
    with pytest.raises(ValueError, match="skip leaves them out, keep reads it as a label"):
        labelled_texts.without_missing(rows, ["y"], "refuse", pytest.fail)
    several = table(y=["null,x", None, ["x", "nan"], float("nan"), ""])
    kept = labelled_texts.without_missing(several, ["y"], "keep", pytest.fail, separator=",")
    assert kept.columns == {"y": ["null,x", [], ["x", "nan"], [], []]}


@pytest.mark.parametrize("value", [["a", None], ["a", float("nan")], [None], "a,nan", "null, a"])
def test_a_missing_label_within_a_list_is_missing(value):
    rows = table(y=[["a"], value, []])
    with pytest.raises(ValueError, match=r"data\.tsv:3: column 'y': expected a label, got ."):
        labelled_texts.without_missing(rows, ["y"], "refuse", pytest.fail, separator=",")
    assert labelled_texts.without_missing(rows, ["y"], "skip", [].append, separator=",").columns == {"y": [["a"], []]}


@pytest.mark.parametrize(
    ("value", "several", "said"),
    [
        (["a", "b"], False, r"one label \(options\.kind: multi_label takes lists\), got \['a', 'b'\]"),
        ([], False, r"one label .*, got \[\]"),
        ({"a": 1}, False, "one label .*, got {'a': 1}"),
        ({"a": 1}, True, "a list of labels, got {'a': 1}"),
        ([["a"], "b"], True, r"a list of labels, got \[\['a'\], 'b'\]"),
        ({"a"}, True, "a list of labels, got {'a'}"),
        (b"a", False, "one label .*, got b'a'"),
    ],
)
def test_a_cell_that_holds_no_label_names_its_line(value, several, said):
    with pytest.raises(ValueError, match=rf"data\.tsv:3: column 'y': expected {said}"):
        labelled_texts.check_cells(table(y=["a", value]), "y", several)
    labelled_texts.check_cells(table(y=["a", 1, None, *([["a", 2], []] if several else [])]), "y", several)


@pytest.mark.parametrize(
    ("value", "labels"), [("['a', 'b']", ["a", "b"]), ('["a"]', ["a"]), ("[]", []), ("[1, 2]", ["1", "2"])]
)
def test_a_list_that_became_text_is_a_list_again(value, labels):
    labelled_texts.check_cells(table(y=["a, [b]", value]), "y", True)
    assert labelled_texts.split_labels(value, "|") == labels


@pytest.mark.parametrize("value", [" ['a'\n 'b'] ", "['a' 'b']"])
def test_a_list_without_commas_that_became_text_names_its_line(value):
    with pytest.raises(
        ValueError, match=r"data\.tsv:3: column 'y': expected labels with separators, got the text of a list without"
    ):
        labelled_texts.check_cells(table(y=["a, [b]", value]), "y", True)
    labelled_texts.check_cells(table(y=["a", value]), "y", False)


def test_several_labels_come_from_text_lists_or_columns():
    wanted = [[1, 1, 0], [0, 0, 0], [0, 0, 1]]
    labels = ["x", "y", "z"]
    np.testing.assert_array_equal(labelled_texts.label_matrix(table(y=["y, x", "", ["z"]]), "y", labels, ","), wanted)
    columns = table(x=["1", 0, "0"], y=[1, "0", False], z=["false", "0", True])
    np.testing.assert_array_equal(labelled_texts.label_columns(columns, labels), wanted)
    with pytest.raises(ValueError, match=r"data\.tsv:2: column 'y': expected labels of .*, got 'w'"):
        labelled_texts.label_matrix(table(y=["x,w"]), "y", labels, ",")
    with pytest.raises(ValueError, match=r"data\.tsv:3: column 'x': expected 0 or 1, got '2'"):
        labelled_texts.label_columns(table(x=["0", "2"]), ["x"])


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("5.1", "a number from 0 to 5, got '5.1'"),
        ("-0.1", "a number from 0 to 5"),
        ("high", "a number, got 'high'"),
        ("nan", "a number from 0 to 5, got 'nan'"),
        (None, "a number"),
        pytest.param(10**400, "a number, got 1000", id="huge"),
    ],
)
def test_scores_out_of_range_name_their_line(value, said):
    np.testing.assert_allclose(labelled_texts.scores(table(s=["0", "5.0", 2]), "s", 0, 5), [0, 5, 2])
    with pytest.raises(ValueError, match=rf"data\.tsv:3: column 's': expected {said}"):
        labelled_texts.scores(table(s=["1", value]), "s", 0, 5)


def test_a_score_too_large_for_32_bits_names_its_line():
    np.testing.assert_array_equal(labelled_texts.scores(table(s=["1e38"]), "s"), np.float32([1e38]))
    with pytest.raises(ValueError, match=r"data\.tsv:3: column 's': expected a finite number, got '1e39'"):
        labelled_texts.scores(table(s=["1", "1e39"]), "s")


def test_a_truth_value_is_one_label_alone_in_a_list_and_from_numpy():
    values = [True, [True], np.True_, "true"]
    assert labelled_texts.find_labels(
        [label for value in values for label in labelled_texts.split_labels(value, ",")]
    ) == ("true",)


def test_empty_texts_are_refused_skipped_or_kept_with_a_warning():
    rows = table(text=["a", " ", "b"], pair=["c", "d", ""])
    with pytest.raises(
        ValueError, match=r"data\.tsv:3: column 'text': expected text, it is empty \(2 such in this file\)"
    ):
        labelled_texts.without_empty(rows, ["text", "pair"], "refuse", pytest.fail)
    said = []
    assert labelled_texts.without_empty(rows, ["text", "pair"], "skip", said.append).columns["text"] == ["a"]
    assert len(labelled_texts.without_empty(rows, ["text", "pair"], "keep", said.append)) == 3
    assert "left out, as is 1 more" in said[0] and "kept" in said[1]
    null = table(text=["a", None, " "])
    assert labelled_texts.without_empty(null, ["text"], "skip", said.append).columns["text"] == ["a"]
    assert labelled_texts.without_empty(null, ["text"], "keep", said.append).columns["text"] == ["a", "", " "]
    with pytest.raises(
        ValueError, match=r"data\.tsv:3: column 'text': expected text, got 'None' \(2 such in this file\)"
    ):
        labelled_texts.without_empty(null, ["text"], "refuse", pytest.fail)
    with pytest.raises(ValueError, match=r"data\.tsv:2: column 'text': expected text, got '7'"):
        labelled_texts.texts(table(text=[7]), "text")


def test_held_out_data_that_is_training_data_is_refused_unless_allowed(caplog):
    train = LabelledTexts("train.tsv", ["a", "b", "c"], ["x", "y", "z"])
    labelled_texts.check_held_out(train, LabelledTexts("dev.tsv", ["a", "b", "d"], ["x", "y", "z"]), pytest.fail)
    with pytest.raises(
        ValueError, match=r"dev\.tsv: expected held-out data, but 2 of its 2 rows are in .* train\.tsv too"
    ):
        labelled_texts.check_held_out(train, LabelledTexts("dev.tsv", ["c", "b"], ["z", "y"]), DataFiles().refuse_same)
    labelled_texts.check_held_out(
        train, LabelledTexts("dev.tsv", ["c", "b"], ["z", "y"]), DataFiles(allow_same_data=True).refuse_same
    )
    assert "dev.tsv: expected held-out data" in caplog.text


def test_parts_are_joined_in_their_order():
    first = LabelledTexts("a", ["1"], ["2"], np.array([0], np.int32))
    second = LabelledTexts("b", ["3", "4"], ["5", "6"], np.array([1, 0], np.int32))
    whole = labelled_texts.joined([TextSet("", first), TextSet("_b", second)])
    assert (whole.text, whole.text_pair, whole.targets.tolist()) == (["1", "3", "4"], ["2", "5", "6"], [0, 1, 0])
    assert labelled_texts.joined([TextSet("", first), TextSet("", LabelledTexts("c", ["7"], ["8"]))]).targets is None


def test_labels_in_two_forms_of_unicode_are_refused_and_both_shown():
    composed, decomposed = "caf\u00e9", "cafe\u0301"
    told = (
        r"labels: 'caf.+' \('cafe\\u0301'\) and 'caf.+' \('caf\\xe9'\) are the same characters in two forms of Unicode"
    )
    with pytest.raises(ValueError, match=told):
        labelled_texts.find_labels([composed, "tea", decomposed])
    assert labelled_texts.find_labels([decomposed, "tea"]) == (decomposed, "tea")
    with pytest.raises(ValueError, match=r"tags: .*two forms of Unicode"):
        label_list([composed, decomposed], "iob2")
    with pytest.raises(ValueError, match=r"config\.options\.labels: .*two forms"):
        Options(labels=(composed, decomposed))
    with pytest.raises(ValueError, match=r"data\.tsv:3.*\('caf\\xe9', another form of Unicode than 'cafe\\u0301'\)"):
        labelled_texts.label_ids(table(label=["tea", composed]), "label", [decomposed, "tea"])
