"""Detects the delimiter of a text table, and whether its cells are quoted, from its first lines."""

import re
from collections.abc import Collection, Sequence

from official_bert.data.tabular.formats import escapes_quotes, first_cells

COMMON = (",", ";", "\t", "|", "^", "~")
QUOTED = re.compile('"([^"]|"")*"')
USUAL = {"csv": ",", "tsv": "\t"}  # by format


def likely_dialect(
    lines: Sequence[str], form: str, columns: Collection[str], may_quote: bool = False
) -> tuple[str, str]:
    """Returns the format, `csv` or `tsv`, and the delimiter that read the first lines of a table best.

    The first line should name the `columns`; if none are given, or none are named in CSV, `clevercsv` tells the
    delimiter by the shape of the rows. The usual dialect of a `form` wins a tie, and TSV is read as CSV if only
    quotation marks make its rows equally long, CSV as TSV if only that makes sense of them. TSV that `may_quote` is
    read as CSV if all cells that begin with a quotation mark are in such marks, and some have doubled ones.
    """
    cells = [cell for line in lines for cell in line.rstrip("\r\n").split("\t") if cell.startswith('"')]
    if may_quote and form == "tsv" and all(map(QUOTED.fullmatch, cells)) and any('""' in cell[1:-1] for cell in cells):
        return "csv", "\t"
    others = [mark for mark in COMMON if mark != USUAL[form]]
    delimiters = [USUAL[form], *others] if columns else [_measured(lines, form)]
    dialects = [(form, USUAL[form])] if USUAL[form] in delimiters else []
    dialects += [("csv", delimiter) for delimiter in delimiters] + [("tsv", delimiter) for delimiter in delimiters]

    def fit(dialect: tuple[str, str]) -> tuple[int, bool]:
        rows, whole = _first_rows(lines, *dialect)
        if dialect[0] == "tsv" != form and not (len(rows) > 1 and len(rows[0]) > 1):
            return 0, False
        named = len({*columns} & {*rows[0]}) if rows else 0
        regular = whole and len({*map(len, rows[:-1] or rows)}) == 1  # the last one may be cut
        return named, regular and (named > 0 or not columns)

    best = max(dialects, key=fit)
    return best if not columns or form == "tsv" or fit(best)[0] else likely_dialect(lines, form, ())


def _first_rows(lines: Sequence[str], form: str, delimiter: str) -> tuple[Sequence[Sequence[str]], bool]:
    """Returns the rows of the first lines of a table that have anything in them, and whether none of them is broken."""
    if form == "tsv":
        return [row for line in lines if any(row := line.rstrip("\r\n").split(delimiter))], True
    if escapes_quotes(lines, delimiter):
        lines = [line.replace('\\"', '""') for line in lines]
    rows, whole = first_cells(lines, delimiter)
    return list(filter(any, rows)), whole


def _measured(lines: Sequence[str], form: str) -> str:
    """The delimiter of a table by the shape of its rows, or that of its format if no shape is regular."""
    from clevercsv.detect import Detector

    dialect = Detector().detect("".join(lines).replace("\0", ""), delimiters=[*COMMON])
    return dialect.delimiter if dialect and dialect.delimiter else USUAL[form]
