import functools
import io
import json
from collections import Counter

import pytest
import rich.console

from official_bert.data.pretraining.yield_report import Reason, YieldReport


def small_report() -> YieldReport:
    report = YieldReport()
    report.keep(documents=2, characters=60)
    report.drop("headings", "Early history", expected=True, characters=30)
    report.drop("too short", "A stub.", documents=1, characters=10)
    return report


def test_what_came_in_is_what_went_out_and_what_was_dropped():
    report = small_report()
    assert report.balance("characters") == {"in": 100, "repeated": 0, "out": 60, "dropped": 40}
    assert report.balance("documents") == {"in": 3, "repeated": 0, "out": 2, "dropped": 1}
    report.repeat("copies", documents=1)
    report.keep(documents=1)
    assert report.balance("documents") == {"in": 3, "repeated": 1, "out": 3, "dropped": 1}


def test_shares_of_thirds_add_up_to_a_hundred():
    report = small_report()
    assert report.shares("documents") == {"out": 66.67, "too short": 33.33}
    for reason in ("a", "b", "c", "d"):
        report.drop(reason, documents=1)
    assert sum(round(100 * share) for share in report.shares("documents").values()) == 10_000


def test_headings_are_no_loss_and_more_than_a_twentieth_of_running_text_is_a_warning():
    report = small_report()
    assert report.lost_share("characters") == pytest.approx(10 / 70)
    assert report.warnings() == ["14.3% of the characters of running text were dropped: too short 10.0%"]
    report.keep(characters=130)  # 10 of 200: a twentieth, and no more
    assert report.warnings() == []


def test_parts_in_order_give_the_report_of_the_whole_with_the_first_three_examples():
    whole, parts = YieldReport(), [YieldReport() for _ in range(4)]
    for number, part in enumerate(parts):
        for report in (whole, part):
            report.keep(tokens=number)
            report.drop("long", f"example {number}", tokens=1)
            report.note("split", f"note {number}", sentences=2)
    summed = YieldReport()
    for part in parts:
        summed.add(part)
    assert summed.as_dict() == whole.as_dict()
    assert summed.dropped["long"].examples == ["example 0", "example 1", "example 2"]
    assert summed.notes["split"].amounts == {"sentences": 8}


def from_dict(values):
    """Returns the report that `as_dict` gave these values."""
    report = YieldReport()
    report.kept = Counter({unit: counts["out"] for unit, counts in values["units"].items()})
    for name, reasons in (("dropped", report.dropped), ("repeated", report.repeated), ("notes", report.notes)):
        reasons.update(
            {key: Reason(**reason | {"amounts": Counter(reason["amounts"])}) for key, reason in values[name].items()}
        )
    return report


def test_a_report_survives_json_and_a_long_example_is_cut():
    report = small_report()
    report.drop("long", "word " * 200, characters=500)
    again = from_dict(json.loads(json.dumps(report.as_dict())))
    assert again.as_dict() == report.as_dict()
    assert len(report.dropped["long"].examples[0]) == 240


def test_the_table_has_counts_shares_and_examples_even_with_brackets():
    report = small_report()
    report.drop("markup", "[/b] text", characters=1)
    out = io.StringIO()
    rich.console.Console(file=out, width=200).print(report.table())
    text = out.getvalue()
    assert "59.41 %" in text and "[/b] text" in text and "Early history" in text


def test_the_lines_name_the_largest_drops_in_the_best_unit_that_they_have():
    report = small_report()
    report.drop("markup", expected=True, characters=10)
    report.drop("duplicates", expected=True, documents=1)
    report.note("tags", tags=1234, files=2)
    for rare in (report.note, functools.partial(report.drop, expected=True)):
        rare("hardly any", documents=0)
    assert report.warnings() == ["14.3% of the characters of running text were dropped: too short 9.1%"]
    assert report.lines() == [
        "kept: 2 of 4 documents, 60 of 110 characters",
        "dropped: headings 27.27% of characters, duplicates 25.00% of documents, markup 9.09% of characters",
        "found: tags (1,234 tags, 2 files)",
    ]
    report = YieldReport()
    report.keep(tokens=979)
    report.repeat("passes", tokens=500)
    for number in range(7):
        report.drop(f"reason {number}", tokens=number)
    report.note("replaced", tokens=0)
    assert report.lines() == [
        "kept: 979 of 1,000 tokens",
        "dropped: reason 6 0.60% of tokens, reason 5 0.50%, reason 4 0.40%, "
        "reason 3 0.30%, 2 more reasons (--show_examples)",
    ]


def test_an_empty_report_has_no_warning():
    assert YieldReport().warnings() == [] and YieldReport().as_dict()["units"] == {}
