"""Accounts for text on its way through a tool: the input, the output, and the dropped text with the reasons.

A tool calls `keep`, `drop`, `repeat` and `note` while it works. Amounts are given by unit (`documents=1,
characters=90`); a tool may use any units. The input is kept + dropped - repeated, so the account of each unit always
adds up.
"""

import dataclasses
import sys
from collections import Counter
from collections.abc import Iterable, Mapping

import rich.console
import rich.markup
import rich.table
from absl import flags

from official_bert.storage.files import write_json

EXAMPLES = 3  # shown of each reason
EXAMPLE_LENGTH = 240  # characters of an example, the rest is cut
SCREEN_WIDTH = 120  # if the output is not a terminal
MOST_LOST = 0.05  # a larger share lost of any unit of `WARNED_UNITS` is a warning
MOST_REASONS = 4  # in the printed line
SMALL = 0.001  # a smaller share of a unit is in the table and the file, not in the printed lines
REASONS = ("dropped", "repeated", "notes")  # fields of a report
WARNED_UNITS = ("characters", "tokens")
MEASURES = (*WARNED_UNITS, "words", "sentences", "documents")  # units for the share of a reason, in order of preference


@dataclasses.dataclass
class Reason:
    """One reason why text is dropped, repeated or noted.

    A drop is `expected` if the text was not running text (headings, lists) or if the user asked to remove it
    (duplicates, filters); text lost for other reasons counts towards the warning.
    """

    amounts: Counter[str] = dataclasses.field(default_factory=Counter)  # by unit
    examples: list[str] = dataclasses.field(default_factory=list)
    expected: bool = False

    def add(self, amounts: Mapping[str, int], examples: Iterable[str]) -> None:
        """Adds amounts to those of the same unit and keeps the first examples."""
        self.amounts.update(amounts)
        if len(self.examples) < EXAMPLES:
            squeezed = filter(None, (" ".join(example[: 4 * EXAMPLE_LENGTH].split()) for example in examples))
            cut = (text if len(text) <= EXAMPLE_LENGTH else text[: EXAMPLE_LENGTH - 1] + "…" for text in squeezed)
            self.examples = list(dict.fromkeys([*self.examples, *cut]))[:EXAMPLES]


@dataclasses.dataclass
class YieldReport:
    """Counts kept, dropped and repeated text by unit and reason. Reports of parts, added in order, give the report of
    the whole.
    """

    kept: Counter[str] = dataclasses.field(default_factory=Counter)
    dropped: dict[str, Reason] = dataclasses.field(default_factory=dict)
    repeated: dict[str, Reason] = dataclasses.field(default_factory=dict)
    notes: dict[str, Reason] = dataclasses.field(default_factory=dict)

    def keep(self, **amounts: int) -> None:
        """Counts text in the output."""
        self.kept.update(amounts)

    def drop(self, reason: str, example: str = "", *, expected: bool = False, **amounts: int) -> None:
        """Counts input text that is not in the output; `expected` as in `Reason`."""
        self.dropped.setdefault(reason, Reason(expected=expected)).add(amounts, [example])

    def repeat(self, reason: str, example: str = "", **amounts: int) -> None:
        """Counts extra copies: text that is in the output (or was dropped) more often than in the input."""
        self.repeated.setdefault(reason, Reason()).add(amounts, [example])

    def note(self, event: str, example: str = "", **amounts: int) -> None:
        """Counts something that happened to text without removing it, such as replaced bytes."""
        self.notes.setdefault(event, Reason()).add(amounts, [example])

    def add(self, other: "YieldReport") -> None:
        """Adds the account of the next part of the text."""
        self.kept.update(other.kept)
        for name in REASONS:
            for key, reason in getattr(other, name).items():
                getattr(self, name).setdefault(key, Reason(expected=reason.expected)).add(
                    reason.amounts, reason.examples
                )

    def units(self) -> list[str]:
        """Returns the units counted, in the order in which they were first kept or dropped."""
        return list(dict.fromkeys([*self.kept, *(unit for reason in self.dropped.values() for unit in reason.amounts)]))

    def balance(self, unit: str) -> dict[str, int]:
        """Returns `in`, `repeated`, `out` and `dropped` of a unit; in + repeated = out + dropped."""
        dropped, repeated = (
            sum(reason.amounts[unit] for reason in reasons.values()) for reasons in (self.dropped, self.repeated)
        )
        return {
            "in": self.kept[unit] + dropped - repeated,
            "repeated": repeated,
            "out": self.kept[unit],
            "dropped": dropped,
        }

    def _losses(self, unit: str) -> dict[str, int]:
        """Returns the amounts of the unexpected drops in a unit, by reason."""
        return {
            name: reason.amounts[unit]
            for name, reason in self.dropped.items()
            if not reason.expected and reason.amounts[unit]
        }

    def lost_share(self, unit: str) -> float:
        """Returns the share of unexpected drops in a unit, without the expected drops."""
        lost = sum(self._losses(unit).values())
        return lost / max(1, lost + self.kept[unit])

    def warnings(self) -> list[str]:
        """Returns a line for each unit of `WARNED_UNITS` that lost more than MOST_LOST, with the main reasons."""
        return [self._warning(unit) for unit in WARNED_UNITS if self.lost_share(unit) > MOST_LOST]

    def _warning(self, unit: str) -> str:
        total = self.balance(unit)["in"] + self.balance(unit)["repeated"]
        worst = Counter(self._losses(unit)).most_common(EXAMPLES)
        return f"{self.lost_share(unit):.1%} of the {unit} of running text were dropped: " + ", ".join(
            f"{name} {lost / total:.1%}" for name, lost in worst
        )

    def shares(self, unit: str) -> dict[str, float]:
        """Returns the percentages of `out` and of each reason for dropping, in hundredths that add up to 100."""
        amounts = {"out": self.kept[unit]} | {
            name: reason.amounts[unit] for name, reason in self.dropped.items() if reason.amounts[unit]
        }
        total = max(1, sum(amounts.values()))
        hundredths = {name: 10_000 * amount // total for name, amount in amounts.items()}
        # the largest remainders are rounded up
        short = 10_000 * sum(amounts.values()) // total - sum(hundredths.values())
        for name in sorted(amounts, key=lambda name: -(10_000 * amounts[name] % total))[:short]:
            hundredths[name] += 1
        return {name: value / 100 for name, value in hundredths.items()}

    def as_dict(self) -> dict:
        """Returns the report for JSON: `units` with counts and percentages, then reasons with amounts and examples."""
        return {
            "units": {unit: self.balance(unit) | {"percent": self.shares(unit)} for unit in self.units()},
            **{name: {key: vars(reason) for key, reason in getattr(self, name).items()} for name in REASONS},
            "warnings": self.warnings(),
        }

    def lines(self) -> list[str]:
        """Returns the report in short: the kept amounts; the largest drops that no warning names; the notes.

        Shares below `SMALL` are left out.
        """
        totals = {unit: balance["in"] + balance["repeated"] for unit in self.units() if (balance := self.balance(unit))}
        kept = ", ".join(
            f"all {total:,} {unit}" if self.kept[unit] == total else f"{self.kept[unit]:,} of {total:,} {unit}"
            for unit, total in totals.items()
        )
        warned = bool(self.warnings())
        drops = sorted(
            (
                (share, unit, name)
                for name, reason in self.dropped.items()
                if (reason.expected or not warned)
                and (unit := next(filter(reason.amounts.get, MEASURES), ""))
                and (share := reason.amounts[unit] / totals[unit]) >= SMALL
            ),
            reverse=True,
        )
        shares = ", ".join(
            f"{name} {share:.2%}" + f" of {unit}" * (number == 0 or unit != drops[number - 1][1])
            for number, (share, unit, name) in enumerate(drops[:MOST_REASONS])
        )
        more = f", {len(drops) - MOST_REASONS} more reasons (--show_examples)" * (len(drops) > MOST_REASONS)
        notes = ", ".join(
            f"{name} ({', '.join(f'{amount:,} {unit}' for unit, amount in reason.amounts.items())})"
            for name, reason in self.notes.items()
            if any(amount >= SMALL * totals.get(unit, 0) for unit, amount in reason.amounts.items())
        )
        return [f"kept: {kept}", *[f"dropped: {shares}{more}"] * bool(drops), *[f"found: {notes}"] * bool(notes)]

    def table(self) -> rich.table.Table:
        """Returns the report for a terminal: a column for each unit, then examples; rows for input, output and each
        reason.
        """
        units = self.units()
        table = rich.table.Table("", *(rich.table.Column(unit, justify="right") for unit in units), "examples")
        shares = {unit: self.shares(unit) for unit in units}

        def add_row(name: str, amounts: Mapping[str, int], column: str = "", examples: Iterable[str] = ()) -> None:
            cells = [_cell(amounts.get(unit, 0), shares[unit].get(column)) for unit in units]
            table.add_row(rich.markup.escape(name), *cells, rich.markup.escape("\n".join(examples)))

        add_row("in", {unit: self.balance(unit)["in"] for unit in units})
        for name, reason in self.repeated.items():
            add_row(f"+ {name}", reason.amounts, examples=reason.examples)
        add_row("out", self.kept, "out")
        for name, reason in self.dropped.items():
            add_row(f"- {name}", reason.amounts, name, reason.examples)
        for name, reason in self.notes.items():
            others = "".join(f", {amount:,} {unit}" for unit, amount in reason.amounts.items() if unit not in units)
            add_row(f"({name}{others})", reason.amounts, examples=reason.examples)
        return table


def _cell(amount: int, percent: float | None) -> str:
    """Returns a count with its share: `1,234  56.78 %`; nothing for none."""
    if not amount and not percent:
        return ""
    return f"{amount:,}" + ("" if percent is None else f" {percent:6.2f} %")


def define_report() -> None:
    """Defines --report_file and --show_examples."""
    flags.DEFINE_string("report_file", "", "Where to write the report as JSON, with examples of dropped text.")
    flags.DEFINE_bool("show_examples", False, "Print all counts in a table, with examples of the dropped text.")


def present(report: YieldReport, report_file: str = "", show_examples: bool = False, **facts: object) -> None:
    """Prints the report (with `show_examples` as a table) and its warnings, and writes it to `report_file` as JSON
    under "yield", beside other `facts`.
    """
    if show_examples:
        screen = rich.console.Console()
        (screen if screen.is_terminal else rich.console.Console(width=SCREEN_WIDTH)).print(report.table())
    else:
        print("\n".join(report.lines()))
    for warning in report.warnings():
        print(f"warning: {warning}", file=sys.stderr)
    if report_file:
        write_json(report_file, facts | {"yield": report.as_dict()}, indent=1, ensure_ascii=False)
