"""Writes a report: JSON, one HTML page that needs nothing else, and lines for the screen."""

import base64
import html
import itertools
import json
import math
import os
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from official_bert.reports import metric_text
from official_bert.reports.sections import Cell, Picture, Section
from official_bert.storage.files import written_whole

JSON_FILE, PAGE_FILE, MARKDOWN_FILE = "report.json", "report.html", "report.md"
UNPRINTABLE = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff]")  # controls, and halves of characters
MOST_ON_SCREEN = 30  # rows of a table
LONGEST_CELL, LONGEST_WORD = 24, 16  # characters of a narrow column's cells, and of their words
STYLE = """
:root { color-scheme: light dark; }
body { font: 16px/1.5 system-ui, sans-serif; margin: 0 auto; max-width: 60rem; padding: 1rem; }
div { overflow-x: auto; }
table { border-collapse: collapse; font-size: 0.9rem; }
td, th { border-bottom: 1px solid #8888; padding: 0.2rem 0.6rem; text-align: left; vertical-align: top; }
td { max-width: 40rem; overflow-wrap: break-word; white-space: pre-wrap; }
td.long { min-width: 7rem; overflow-wrap: anywhere; }
@media (max-width: 30rem) { body { padding: 0.6rem; } td, th { padding: 0.2rem 0.3rem; } }
img { background: white; height: auto; max-width: 100%; }
"""


def write_report(
    title: str, sections: Sequence[Section], folder: str, markdown: bool = False, evaluation: str = ""
) -> list[str]:
    """Writes the files whole into a folder and returns their paths; `markdown`: that form as well, with its pictures
    beside it.

    Those of an `evaluation` with a name of its own are `report.NAME.html` and `report.NAME.json`.
    """
    files = {JSON_FILE: as_json(title, sections), PAGE_FILE: as_page(title, sections)} | (
        as_markdown(title, sections) if markdown else {}
    )
    written = []
    for name, text in files.items():
        stem, ending = os.path.splitext(name)
        written.append(os.path.join(folder, f"{stem}.{evaluation}{ending}" if evaluation else name))
        with written_whole(written[-1]) as file:
            file.write(text)
    return written


def as_json(title: str, sections: Sequence[Section]) -> str:
    """Returns the values of the sections by name; numbers that are not finite are null."""
    values = {"title": title} | {section.name: section.values for section in sections}
    return json.dumps(_plain(values), ensure_ascii=False, allow_nan=False, indent=1) + "\n"


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {_clean(str(key)): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, str):
        return _clean(value)
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _clean(text: str) -> str:
    """A text that every file and page can hold."""
    return UNPRINTABLE.sub("\N{REPLACEMENT CHARACTER}", text)


def as_page(title: str, sections: Sequence[Section]) -> str:
    """Returns the page: no script, no network; every text of the data is escaped, every picture is an image."""

    def embedded(_: str, picture: Picture) -> str:
        return f"data:image/svg+xml;base64,{base64.b64encode(_clean(picture.svg).encode()).decode()}"

    return "\n".join(
        [
            '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            '<meta http-equiv="Content-Security-Policy" content="default-src \'none\'; img-src data:; style-src '
            "'unsafe-inline'\">",
            f"<title>{_escaped(title)}</title>\n<style>{STYLE}</style>\n</head>\n<body>",
            *_body(title, sections, embedded),
            "</body>\n</html>\n",
        ]
    )


def as_markdown(title: str, sections: Sequence[Section]) -> dict[str, str]:
    """Returns the page for sites that show Markdown, and its pictures: text by file name.

    It is HTML without empty lines, which Markdown leaves as it is: the data may hold any of its signs.
    """
    pictures: dict[str, str] = {}

    def beside(name: str, picture: Picture) -> str:
        pictures[name] = _clean(picture.svg)
        return name

    lines = "\n".join(_body(title, sections, beside)).splitlines()
    return {MARKDOWN_FILE: "\n".join(filter(str.strip, lines)) + "\n"} | pictures


def _body(title: str, sections: Sequence[Section], source: Callable[[str, Picture], str]) -> Iterator[str]:
    """The sections in HTML; `source` gives the address of a picture, which it may store under a name."""
    yield f"<h1>{_escaped(title)}</h1>"
    for section in sections:
        yield f"<section>\n<h2>{_escaped(section.title)}</h2>"
        if section.note:
            yield f"<p>{_escaped(section.note)}</p>"
        if section.rows:
            heads = "".join(f"<th>{_escaped(head)}</th>" for head in section.header)
            rows = "\n".join(
                "<tr>" + "".join(map(_as_cell, shown_row(section, row), row)) + "</tr>" for row in section.rows
            )
            yield f"<div><table>\n<tr>{heads}</tr>\n{rows}\n</table></div>"
        for number, picture in enumerate(section.pictures, 1):
            address = source(f"{section.name}_{number}.svg", picture)
            yield f'<p><img alt="{_escaped(picture.description)}" src="{address}"></p>'
        yield "</section>"


def _as_cell(text: str, cell: Cell) -> str:
    """A cell of a table. Words are broken only if no telephone has room for them, such as addresses, and texts get some
    width. Words with shares are blue if they speak for an answer, orange if against it, the stronger the more.
    """
    if isinstance(cell, list):
        most = max(abs(share) for _, share in cell) or 1.0
        shades = ((word, share, "0,110,255" if share > 0 else "255,110,0", abs(share) / most) for word, share in cell)
        mark = '<mark style="background:rgba({2},{3:.2f});color:inherit" title="{1:+.3f}">{0}</mark>'
        return f"<td>{' '.join(mark.format(_escaped(word), *shade) for word, *shade in shades)}</td>"
    long = ' class="long"' if len(text) > LONGEST_CELL or any(len(word) > LONGEST_WORD for word in text.split()) else ""
    return f'<td{long} dir="auto">{_escaped(text)}</td>'


def _escaped(text: str) -> str:
    return html.escape(_clean(text))


def shown_row(section: Section, row: Sequence[Cell]) -> list[str]:
    """Returns the cells of a row as text: numbers with four decimals, but in percent under headings of shares of right
    answers.
    """
    heads = itertools.chain(section.header, itertools.repeat(""))
    return [
        "–" if cell is None else metric_text.shown(head, cell) if isinstance(cell, float) else str(cell)
        for head, cell in zip(heads, row)
    ]


def as_lines(sections: Sequence[Section]) -> list[str]:
    """Returns the tables for the screen."""
    lines = []
    for section in sections:
        if not section.on_screen:
            continue
        rows = [
            [" ".join(_clean(text).split()) for text in shown_row(section, row)]
            for row in section.rows[:MOST_ON_SCREEN]
        ]
        table = [list(section.header), *rows]
        widths = [max(len(row[column]) for row in table) for column in range(len(section.header))]
        lines.append(f"{section.title}:" + (f" {section.note}" if section.note else ""))
        lines += ["  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip() for row in table]
        if len(section.rows) > MOST_ON_SCREEN:
            lines.append(f"  ... and {len(section.rows) - MOST_ON_SCREEN} more, in {PAGE_FILE}")
    return lines
