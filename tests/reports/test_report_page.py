"""The page and the JSON file of a report: nothing of the data is taken for markup, formulas or numbers, whatever is in
it.
"""

import base64
import datetime
import html.parser
import json
import re
from xml.etree import ElementTree

import numpy as np
import pytest
from made_finetuning import make_config

from official_bert.reports import model_card, page, pictures, run_sections
from official_bert.reports.sections import MOST_MISTAKES, Mistake, Section, mistakes_section

HOSTILE = [
    "<script>alert(1)</script>",
    '" onload="alert(1)',
    "</text></svg><script>x</script>",
    "$x^2",
    "$\\frac{",
    "a\x00b\x1b[31m",
    "half \ud800 a character",
    "日本語",
    "עברית",
    "",
    "long " * 100,
    "-->",
    "]]>",
    "&amp;",
]


class Tags(html.parser.HTMLParser):
    """Collects the names of a page's tags, their attributes, and its text."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.attributes, self.text = [], [], ""
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += [(tag, *pair) for pair in attrs]

    def handle_data(self, data):
        self.text += data


@pytest.fixture(scope="module")
def sections():
    matrix = np.eye(len(HOSTILE), dtype=int)
    curve = (np.array([0.0, 1.0]), np.array([0.0, 1.0]))
    return [
        Section(
            name="hostile",
            title=HOSTILE[0],
            note=HOSTILE[2],
            values={text: text for text in HOSTILE},
            on_screen=True,
            header=(HOSTILE[0], "value"),
            rows=[[text, float("nan")] for text in HOSTILE],
            pictures=[
                pictures.confusion_picture(matrix, HOSTILE),
                pictures.roc_picture(dict.fromkeys(HOSTILE[:9], curve)),
                pictures.bars_picture({text: {"x": 1.0} for text in HOSTILE}, "up", HOSTILE[1]),
            ],
        ),
        mistakes_section(
            [Mistake([text], text, text, number / 100) for number, text in enumerate(HOSTILE * 3)], "probability"
        ),
    ]


def test_nothing_of_the_data_is_markup(sections, tmp_path):
    paths = page.write_report(HOSTILE[0], sections, str(tmp_path))
    assert [path.rpartition("/")[2] for path in paths] == ["report.json", "report.html"]
    text = (tmp_path / "report.html").read_text(encoding="utf-8")
    found = Tags(text)
    assert set(found.tags) == {
        "html",
        "head",
        "meta",
        "title",
        "style",
        "body",
        "h1",
        "h2",
        "section",
        "p",
        "div",
        "table",
        "tr",
        "th",
        "td",
        "img",
    }
    assert {name for tag, name, _ in found.attributes if tag == "img"} == {"alt", "src"}
    assert not re.search(r"https?://", text) and "width=device-width" in text and "default-src 'none'" in text
    assert "<script>alert(1)</script>" in found.text and "日本語" in found.text  # as text
    images = [value for tag, name, value in found.attributes if (tag, name) == ("img", "src")]
    assert len(images) == 3
    for image in images:
        assert image.startswith("data:image/svg+xml;base64,")
        svg = base64.b64decode(image.partition(",")[2]).decode()
        names = {element.tag.rpartition("}")[2] for element in ElementTree.fromstring(svg).iter()}
        assert "script" not in names and "text" in names
    assert "$x^2" in base64.b64decode(images[0].partition(",")[2]).decode()  # not read as a formula


def test_the_markdown_page_is_html_without_empty_lines_beside_its_pictures(sections, tmp_path):
    paths = page.write_report(HOSTILE[0], sections, str(tmp_path), markdown=True)
    text = (tmp_path / "report.md").read_text(encoding="utf-8")
    assert all(line.strip() for line in text.splitlines())  # an empty line would make the rest Markdown
    found, whole = Tags(text), Tags((tmp_path / "report.html").read_text(encoding="utf-8"))
    assert "".join(whole.text.split()).endswith("".join(found.text.split()))
    assert set(found.tags) == {"h1", "h2", "section", "p", "div", "table", "tr", "th", "td", "img"}
    images = [value for tag, name, value in found.attributes if (tag, name) == ("img", "src")]
    assert images == ["hostile_1.svg", "hostile_2.svg", "hostile_3.svg"]
    assert {path.rpartition("/")[2] for path in paths} == {"report.json", "report.html", "report.md", *images}
    embedded = [value for tag, name, value in whole.attributes if (tag, name) == ("img", "src")]
    for name, address in zip(images, embedded, strict=True):
        assert (tmp_path / name).read_bytes() == base64.b64decode(address.partition(",")[2])


def test_the_json_file_is_strict_and_the_screen_has_no_controls(sections):
    values = json.loads(page.as_json("title", sections), parse_constant=lambda name: pytest.fail(name))
    assert (
        values["title"] == "title"
        and values["hostile"]["日本語"] == "日本語"
        and "half \ufffd a character" in values["hostile"]
    )
    assert json.loads(page.as_json("t", [Section(name="x", title="x", values=[float("nan"), float("inf"), 1.5])]))[
        "x"
    ] == [None, None, 1.5]
    assert len(values["mistakes"]) == MOST_MISTAKES and values["mistakes"][0]["by"] == 0.41
    lines = page.as_lines(sections)
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f]", "".join(lines)) and len(lines) == 2 + len(HOSTILE)


def test_the_same_numbers_give_the_same_page():
    curve = {"loss": {1: 2.0, 2: 1.0}}
    one, other = (pictures.lines_picture(curve, "step", "loss", "loss") for _ in range(2))
    assert one == other


def test_curves_mark_the_chosen_checkpoint_with_its_value():
    points = {17: 0.21, 51: 0.027, 68: 0.03}
    best, last = (pictures.curves_picture({"held-out loss": points}, "loss", "loss", step).svg for step in (51, None))
    assert "held-out loss: 0.027 at step 51" in best and "chosen checkpoint: step 51" in best
    assert "held-out loss: 0.03 at step 68" in last and "chosen checkpoint" not in last


def test_curves_come_from_the_log_and_later_lines_count(tmp_path):
    log = tmp_path / "log.jsonl"
    log.write_text(
        '{"step": 2, "train/loss": 3.0}\n{"step": 1, "train/loss": 4.0}\nbroken\n{"step": 2, "train/loss": 2.5}\n'
        '{"step": 2, "eval/f1": 0.5, "eval/loss": null}\n{"step": 0, "best_checkpoint": "by f1"}\n'
    )
    section = run_sections.curves_section(str(log))
    assert section.values == {"train/loss": {1: 4.0, 2: 2.5}, "eval/f1": {2: 0.5}} and len(section.pictures) == 2
    assert run_sections.curves_section(str(tmp_path / "none.jsonl")) is None
    with open(log, "a") as file:  # evaluations on other data are no points of the same line
        file.write(
            '{"step": 2, "changed_data": "another eval file"}\n{"step": 3, "eval/f1": 0.1}\n{"step": 3, "train/loss": '
            "2.0}\n"
        )
    assert run_sections.read_curves(str(log)) == {"train/loss": {1: 4.0, 2: 2.5, 3: 2.0}, "eval/f1": {3: 0.1}}


def test_only_cells_that_no_telephone_can_hold_are_broken_within_words():
    rows = [["good", "a text of more than twenty-four characters"], ["0.7567", "https://example.org/an/address"]]
    text = page.as_page("t", [Section(name="a", title="A", values=None, header=("label", "text"), rows=rows)])
    cells = re.findall(r"<td( class=\"long\")? dir=\"auto\">([^<]*)</td>", text)
    assert [bool(long) for long, _ in cells] == [False, True, False, True]
    assert re.findall(r"([^{}\n]*) \{[^{}]*overflow-wrap: (\w+)(?:-word)?;", page.STYLE) == [
        ("td", "break"),
        ("td.long", "anywhere"),
    ]
    assert re.search(r"td\.long \{ min-width: \d+rem", page.STYLE)


def test_a_page_says_what_was_measured_with_which_settings_and_when():
    config = make_config("classification", options={"text_column": "review", "max_seq_length": 32})
    data = [("training", "data/a.csv,data/b.csv", 1200), ("evaluation", "dev.csv", None)]
    about = dict(model_card.about_section(config, "bert", data, "best/ckpt-4").rows)
    assert about == about | {
        "task": "classification",
        "weights": "best/ckpt-4",
        "begun with": "bert",
        "evaluation data": "dev.csv",
        "training data": "a.csv, b.csv, 1,200 rows",
        "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d"),
    }
    assert "begun with" not in dict(model_card.about_section(config, None, data, "elsewhere").rows)
    settings = dict(
        model_card.settings_section(config, {"text_column": "", "max_seq_length": 32, "doc_stride": 64}).rows
    )
    assert settings["options.text_column"] == "review" and "options.max_seq_length" not in settings
    assert "optimizer.learning_rate" in settings and "options.doc_stride" not in settings
