"""Accounts for text on its way through a tool: the input, the output, and the dropped text with the reasons.

A tool calls `keep`, `drop`, `repeat` and `note` while it works. Amounts are given by unit (`documents=1, characters=90`);
a tool may use any units. The input is kept + dropped - repeated, so the account of each unit always adds up.
"""

import dataclasses
import json
import math
import sys
from collections.abc import Iterable

import rich.console
import rich.markup
import rich.table

from official_bert.files import written_whole

EXAMPLES = 3  # shown of each reason
EXAMPLE_LENGTH = 240  # characters of an example, the rest is cut
SCREEN_WIDTH = 160  # if the output is not a terminal
MOST_LOST = 0.05  # a larger share lost of any unit of `WARNED_UNITS` is a warning
WARNED_UNITS = ("characters", "tokens")


@dataclasses.dataclass
class Reason:
    """One reason why text is dropped, repeated or noted.

    A drop is `expected` if the text was not running text (headings, lists) or if the user asked to remove it (duplicates,
    filters); text lost for other reasons counts towards the warning.
    """
    amounts: dict[str, int] = dataclasses.field(default_factory=dict)
    examples: list[str] = dataclasses.field(default_factory=list)
    expected: bool = False

    def add(self, amounts: dict[str, int], examples: Iterable[str]) -> None:
        """Adds amounts to those of the same unit and keeps the first examples."""
        for unit, amount in amounts.items():
            self.amounts[unit] = self.amounts.get(unit, 0) + amount
        if len(self.examples) < EXAMPLES:
            squeezed = (" ".join(example[:4 * EXAMPLE_LENGTH].split()) for example in examples)
            cut = (text if len(text) <= EXAMPLE_LENGTH else text[:EXAMPLE_LENGTH - 1] + "…"
                   for text in squeezed if text)
            self.examples = list(dict.fromkeys([*self.examples, *cut]))[:EXAMPLES]


class YieldReport:
    """Counts kept, dropped and repeated text by unit and reason. Reports of parts, added in order, give the report of the whole."""

    def __init__(self) -> None:
        self.kept: dict[str, int] = {}
        self.dropped: dict[str, Reason] = {}
        self.repeated: dict[str, Reason] = {}
        self.notes: dict[str, Reason] = {}

    def keep(self, **amounts: int) -> None:
        """Counts text that went out."""
        for unit, amount in amounts.items():
            self.kept[unit] = self.kept.get(unit, 0) + amount

    def drop(self, reason: str, example: str = "", *, expected: bool = False, **amounts: int) -> None:
        """Counts input text that is not in the output; `expected` as in `Reason`."""
        self.dropped.setdefault(reason, Reason(expected=expected)).add(amounts, [example])

    def repeat(self, reason: str, example: str = "", **amounts: int) -> None:
        """Counts copies: text that is in the output (or was dropped) more often than in the input."""
        self.repeated.setdefault(reason, Reason()).add(amounts, [example])

    def note(self, event: str, example: str = "", **amounts: int) -> None:
        """Counts something that happened to text without removing it, such as replaced bytes."""
        self.notes.setdefault(event, Reason()).add(amounts, [example])

    def add(self, other: "YieldReport") -> None:
        """Adds the account of the next part of the text."""
        self.keep(**other.kept)
        for mine, theirs in zip((self.dropped, self.repeated, self.notes), (other.dropped, other.repeated, other.notes)):
            for name, reason in theirs.items():
                mine.setdefault(name, Reason(expected=reason.expected)).add(reason.amounts, reason.examples)

    def units(self) -> list[str]:
        """Returns the units counted, in the order in which they were first kept or dropped."""
        return list(dict.fromkeys([*self.kept, *(unit for reason in self.dropped.values() for unit in reason.amounts)]))

    def balance(self, unit: str) -> dict[str, int]:
        """Returns `in`, `repeated`, `out` and `dropped` of a unit; in + repeated = out + dropped."""
        out, dropped, repeated = (self.kept.get(unit, 0), *(sum(reason.amounts.get(unit, 0) for reason in reasons.values())
                                                            for reasons in (self.dropped, self.repeated)))
        return {"in": out + dropped - repeated, "repeated": repeated, "out": out, "dropped": dropped}

    def lost_share(self, unit: str) -> float:
        """Returns the share of unexpected drops in a unit, without the expected drops."""
        lost = sum(reason.amounts.get(unit, 0) for reason in self.dropped.values() if not reason.expected)
        return lost / max(1, lost + self.kept.get(unit, 0))

    def warnings(self) -> list[str]:
        """Returns a line for each unit of `WARNED_UNITS` that lost more than MOST_LOST, with the main reasons."""
        return [self._warning(unit) for unit in WARNED_UNITS if self.lost_share(unit) > MOST_LOST]

    def _warning(self, unit: str) -> str:
        total = self.balance(unit)["in"] + self.balance(unit)["repeated"]
        lost = {name: reason.amounts[unit] / total for name, reason in self.dropped.items()
                if not reason.expected and reason.amounts.get(unit)}
        worst = sorted(lost, key=lambda name: -lost[name])[:EXAMPLES]
        return (f"{self.lost_share(unit):.1%} of the {unit} of running text were dropped: "
                + ", ".join(f"{name} {lost[name]:.1%}" for name in worst))

    def shares(self, unit: str) -> dict[str, float]:
        """Returns the percentages of `out` and of each reason for dropping, in hundredths that add up to 100."""
        amounts = {"out": self.kept.get(unit, 0)} | {name: reason.amounts[unit] for name, reason in self.dropped.items()
                                                  if reason.amounts.get(unit)}
        total = sum(amounts.values())
        if not total:
            return dict.fromkeys(amounts, 0.0)
        exact = {name: 10_000 * count / total for name, count in amounts.items()}
        hundredths = {name: math.floor(value) for name, value in exact.items()}
        short = 10_000 - sum(hundredths.values())  # the largest remainders are rounded up
        for name in sorted(exact, key=lambda name: hundredths[name] - exact[name])[:short]:
            hundredths[name] += 1
        return {name: value / 100 for name, value in hundredths.items()}

    def as_dict(self) -> dict:
        """Returns the report for JSON: `units` with counts and percentages, then reasons with amounts and examples."""
        return {"units": {unit: self.balance(unit) | {"percent": self.shares(unit)} for unit in self.units()}} | {
            name: {key: dataclasses.asdict(reason) for key, reason in reasons.items()} for name, reasons in (
                ("dropped", self.dropped), ("repeated", self.repeated), ("notes", self.notes))} | {
            "warnings": self.warnings()}

    def table(self) -> rich.table.Table:
        """Returns the report for a terminal: a column for each unit; rows for input, output and each reason."""
        units = self.units()
        table = rich.table.Table("", *units, "examples")
        for column in table.columns[1:-1]:
            column.justify = "right"
        shares = {unit: self.shares(unit) for unit in units}

        def add_row(name: str, amounts: dict[str, int], column: str | None, examples: Iterable[str] = ()) -> None:
            cells = [_cell(amounts.get(unit, 0), shares[unit].get(column) if column else None) for unit in units]
            table.add_row(rich.markup.escape(name), *cells, rich.markup.escape("\n".join(examples)))
        add_row("in", {unit: self.balance(unit)["in"] for unit in units}, None)
        for name, reason in self.repeated.items():
            add_row(f"+ {name}", reason.amounts, None, reason.examples)
        add_row("out", self.kept, "out")
        for name, reason in self.dropped.items():
            add_row(f"- {name}", reason.amounts, name, reason.examples)
        for name, reason in self.notes.items():
            others = "".join(f", {amount:,} {unit}" for unit, amount in reason.amounts.items() if unit not in units)
            add_row(f"({name}{others})", reason.amounts, None, reason.examples)
        return table


def _cell(amount: int, percent: float | None) -> str:
    """Returns a count with its share: `1,234  56.78 %`; nothing for none."""
    if not amount and not percent:
        return ""
    return f"{amount:,}" + ("" if percent is None else f" {percent:6.2f} %")


def present(report: YieldReport, report_file: str = "", **facts: object) -> None:
    """Prints the report and its warnings, and writes it to `report_file` as JSON under "yield", beside other `facts`."""
    screen = rich.console.Console()
    (screen if screen.is_terminal else rich.console.Console(width=SCREEN_WIDTH)).print(report.table())
    for warning in report.warnings():
        print(f"warning: {warning}", file=sys.stderr)
    if report_file:
        with written_whole(report_file) as file:
            json.dump(facts | {"yield": report.as_dict()}, file, indent=1, ensure_ascii=False)
