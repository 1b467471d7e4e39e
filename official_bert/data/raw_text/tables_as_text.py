"""Recognises tables and tagged words in lines, whose columns would be taken for sentences."""

import csv
import re
from collections.abc import Sequence

from official_bert.data.raw_text.running_text import ends_as_a_sentence

LEAST_ROWS = 3
LONGEST_NAME = 60  # characters of a column's name
WORKBOOKS = (".xlsx", ".xlsm", ".xls", ".ods")
_TABLE_NAME = re.compile(r"\.(?:csv|tsv|tab)(?:\.\w+)?", re.IGNORECASE)  # at the end; packed or not
_CONLL_U = re.compile(r"\d+(?:[-.]\d+)?\t(?:[^\t]*\t){8}[^\t]*")
_TAGGED = re.compile(r"\S+(?:[ \t]+\S+)*[ \t]+(?:O|[BIESLU]-\S+)")


def foreign_form(path: str, lines: Sequence[str]) -> str:
    """Returns the kind of table that a file's first lines show, and the tool that reads it; "" if they are text."""
    if path.lower().endswith(WORKBOOKS):
        return f"a workbook; {_with_pandas('read_excel', path)}"
    rows = [line for line in lines if line.strip() and not line.startswith(("#", "-DOCSTART-"))]
    if rows and all(map(_CONLL_U.fullmatch, rows)):
        return (
            "CoNLL-U, a word a line; run_finetuning --task=ner reads it, and sed -n 's/^# text = //p' gives its "
            "sentences"
        )
    if len(rows) < LEAST_ROWS:
        return ""
    if all(map(_TAGGED.fullmatch, rows)):
        return "tagged words, one a line; run_finetuning --task=ner reads them"
    for delimiter in "\t,;|":
        if columns := _columns(rows, delimiter, bool(_TABLE_NAME.search(path[-10:]))):
            option = "" if delimiter == "," else f", sep={delimiter!r}"
            return f"a table of {columns} columns; {_with_pandas('read_csv', path, option)}"
    return ""


def _columns(rows: Sequence[str], delimiter: str, is_named: bool) -> int:
    """Returns the number of columns of a table with this delimiter; 0 if the lines are none.

    In a text, a comma is followed by a space, and the first line is a sentence, unless the file `is_named` as a table;
    a tab may begin each paragraph.
    """
    if not (any('"' in row for row in rows) or all(delimiter in row for row in rows)):
        return 0
    try:
        names, *table = csv.reader(
            (f"{row}\n" for row in rows),
            delimiter=delimiter,  # most TSV has no quotes
            quoting=csv.QUOTE_NONE if delimiter == "\t" else csv.QUOTE_MINIMAL,
        )
    except csv.Error:
        return 0
    if (
        delimiter != "\t"
        and not is_named
        and any(name != name.strip() or len(name) > LONGEST_NAME or ends_as_a_sentence(name) for name in names)
    ):
        return 0
    complete = table[:-1] if len(table) > 1 else table  # the last row may be cut
    if any(len(row) != len(names) for row in complete):
        return 0
    filled = sum(any(cell.strip() for cell in column) for column in zip(names, *complete))
    return filled if filled > 1 else 0


def _with_pandas(reader: str, path: str, option: str = "") -> str:
    return (
        f"python -c \"import pandas; pandas.{reader}({path!r}{option}).to_json('rows.jsonl', orient='records', "
        'lines=True, force_ascii=False)" makes JSON lines of it, which --text_key reads'
    )
