"""Removes Project Gutenberg's preface and licence from a book, by the marks that its files have around the text."""

import itertools
import re
from collections.abc import Iterable, Iterator

from official_bert.data.pretraining.yield_report import YieldReport

_MARK = re.compile(r"\s*\*\*\*\s*(START|END) OF (?:THE|THIS) PROJECT GUTENBERG E(?:BOOK|TEXT)\b", re.IGNORECASE)
_LINES_OF_A_MARK = 5  # a long title is wrapped; *** ends it
_PREFACE = 400  # lines in which the first mark is looked for
LICENCE = "Project Gutenberg's licence"


def without_licence(lines: Iterable[str], report: YieldReport) -> Iterator[str]:
    """Gives the lines between the marks START and END of each book, all lines if there are no marks; the report counts the others.

    Of a file with one mark alone, what lies before START or behind END is left out.
    """
    lines = iter(lines)
    preface = list(itertools.islice(lines, _PREFACE))
    first = next((first_mark[1].upper() for line in preface if (first_mark := _MARK.match(line))), "END")
    inside, left_of_mark = first == "END", 0
    for line in itertools.chain(preface, lines):
        mark = _MARK.match(line)
        if mark:
            inside, left_of_mark = mark[1].upper() == "START", _LINES_OF_A_MARK
        if mark or left_of_mark or not inside:
            report.drop(LICENCE, "" if mark else line, expected=True, characters=len("".join(line.split())))
            ended = not line.strip() or line.rstrip().endswith("***")
            left_of_mark = 0 if ended else max(0, left_of_mark - 1)
        else:
            yield line
