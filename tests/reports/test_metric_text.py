"""Metrics as text: shares in percent with its sign, everything else as a number; files and Python have 0 to 1."""

import math

import pytest

from official_bert.reports import metric_text
from official_bert.reports.page import as_lines
from official_bert.reports.sections import Section


@pytest.mark.parametrize(
    ("name", "value", "wanted"),
    [
        ("accuracy", 0.892, "89.20 %"),
        ("accuracy_mm", 1.0, "100.00 %"),
        ("macro_f1", 0.5, "50.00 %"),
        ("exact_match", 0.005618, "0.56 %"),
        ("best_f1", 0.5, "50.00 %"),
        ("f1_PER", 0.25, "25.00 %"),
        ("masked_lm_accuracy", 0.33, "33.00 %"),
        ("ndcg_at_10", 0.4, "40.00 %"),
        ("recall_at_1", 0.1, "10.00 %"),
        ("F1", 0.5, "50.00 %"),
        ("exact match", 0.5, "50.00 %"),
        ("best_f1_threshold", -5.0, "-5.0000"),
        ("threshold_recall", 0.5, "0.5000"),
        ("loss", 2.5, "2.5000"),
        ("matthews", -0.25, "-0.2500"),
        ("mlm_perplexity", 58.78, "58.7800"),
        ("f1", math.nan, "undefined"),
        ("spearman", math.nan, "undefined"),
        ("step", 4.0, "4"),
    ],
)
def test_shares_are_in_percent_with_the_sign_and_other_metrics_are_numbers(name, value, wanted):
    assert metric_text.shown(name, value) == wanted


def test_differences_of_shares_are_points():
    assert metric_text.shown_difference("accuracy", 0.0125) == "+1.25 points"
    assert metric_text.shown_difference("pearson", -0.0125) == "-0.0125"


def test_the_tables_of_a_report_show_shares_in_percent_and_keep_their_values():
    section = Section(
        name="classes",
        title="Classes",
        values={"a": {"f1": 0.5}},
        on_screen=True,
        header=("label", "F1", "support", "mean"),
        rows=[["a", 0.5, 3, 0.25], ["b", None, 0, math.nan]],
    )
    assert [line.split() for line in as_lines([section])[2:]] == [
        ["a", "50.00", "%", "3", "0.2500"],
        ["b", "–", "0", "undefined"],
    ]
    assert section.values == {"a": {"f1": 0.5}}
