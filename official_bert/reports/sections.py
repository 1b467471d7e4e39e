"""A report on an evaluation: sections with values, a table and pictures."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

Shares = Sequence[tuple[str, float]]  # words with what each adds to an answer: for it above 0, against it below
Cell = str | int | float | Shares | None


@dataclasses.dataclass(frozen=True)
class Picture:
    """An SVG image and its description for people who do not see it."""

    svg: str
    description: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class Section:
    """A part of a report. `name` is its key in the JSON file, `values` are its content there: plain types only."""

    name: str
    title: str
    values: Any
    note: str = ""  # how to read it
    header: Sequence[str] = ()
    rows: Sequence[Sequence[Cell]] = ()
    pictures: Sequence[Picture] = ()
    on_screen: bool = False  # whether its table is printed too
    mistakes: Sequence["Mistake"] = ()  # with their whole texts, the worst first


@dataclasses.dataclass(frozen=True)
class Mistake:
    """A row that was answered wrongly: the texts, what was wanted, what came, and how wrong that is (a probability, a
    distance).
    """

    texts: Sequence[str]
    right: str
    got: str
    by: float  # a number of things is an int, and has no decimals


def table_section(*, values: Any, header: Sequence[str], **parts: Any) -> Section:
    """Returns a section whose table shows its values: each key with its value or values, or the values of each row."""
    if isinstance(values, Mapping):
        rows = [[key, *(row.values() if isinstance(row, Mapping) else [row])] for key, row in values.items()]
    else:
        rows = [list(row.values()) for row in values]
    return Section(values=values, header=header, rows=rows, **parts)


MOST_MISTAKES, MOST_CHARACTERS = 20, 600  # shown


def mistakes_section(
    mistakes: Sequence[Mistake], by: str, name: str = "mistakes", title: str = "The most confident mistakes"
) -> Section:
    """The worst mistakes, in this order; `by` names the number that orders them."""
    worst = sorted(mistakes, key=lambda mistake: -mistake.by)[:MOST_MISTAKES]
    values = [
        {"texts": list(map(shortened, mistake.texts)), "wanted": mistake.right, "got": mistake.got, "by": mistake.by}
        for mistake in worst
    ]
    rows: list[list[Cell]] = [
        ["\n".join(map(shortened, mistake.texts)), mistake.right, mistake.got, mistake.by] for mistake in worst
    ]
    return Section(
        name=name,
        title=title,
        values=values,
        header=("text", "wanted", "got", by),
        rows=rows,
        note=f"In all: {len(mistakes)}" + (f"; shown: {len(worst)}" if len(mistakes) > len(worst) else ""),
        mistakes=worst,
    )


def shortened(text: str) -> str:
    """Returns a text that is not longer than the report shows; what is left out is replaced by an ellipsis."""
    return text if len(text) <= MOST_CHARACTERS else text[:MOST_CHARACTERS] + " …"
