"""Constraints of fields: each error names the key, what was expected and what came."""

import dataclasses
import math
from typing import Annotated, Literal

import pytest

from official_bert import fields
from official_bert.fields import Constraint, Count, Natural, NonNegative, Positive, Probability, Rate, Share, only_with

Even = Annotated[tuple[int, ...], Constraint("even numbers", lambda values: all(value % 2 == 0 for value in values))]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Base:
    """Options of a base, which checks those of its subclasses."""

    size: Count = 1
    start: Natural = 0

    def __post_init__(self):
        fields.check_fields(self)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options(Base):
    """One field of each kind."""

    weight: NonNegative = 0.0
    scale: Positive = 1.0
    share: Share = 0.5
    dropout: Rate = 0.1
    threshold: Probability | None = None
    values: Even = ()
    kind: Literal["a", "b", "c"] = "a"
    crf: bool = False
    of_kind: int = only_with(3, "kind", "b", "c")
    of_crf: int = only_with(4, "crf")
    of_size: int = only_with(5, "values")


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"size": 0}, "config.options.size: expected at least 1, got 0"),
        ({"start": -1}, "config.options.start: expected at least 0, got -1"),
        ({"weight": math.inf}, "weight: expected at least 0, got inf"),
        ({"scale": 0.0}, "scale: expected a number above 0, got 0.0"),
        ({"scale": math.nan}, "scale: expected a number above 0, got nan"),
        ({"share": 1.1}, "share: expected a share from 0 to 1, got 1.1"),
        ({"dropout": 1.0}, "dropout: expected a rate from 0 to below 1, got 1.0"),
        ({"threshold": 7.0}, "threshold: expected a probability from 0 to 1, got 7.0"),
        ({"values": (2, 3)}, "config.options.values: expected even numbers, got [2, 3]"),
        ({"of_kind": 1}, "of_kind: expected options.kind: b or c (not a) with it, got 1 without; it would do nothing"),
        (
            {"of_crf": 1},
            "config.options.of_crf: expected options.crf: true with it, got 1 without; it would do nothing",
        ),
        ({"of_size": 1}, "of_size: expected options.values with it, got 1 without; it would do nothing"),
    ],
)
def test_an_error_names_the_key_what_was_expected_and_what_came(values, message):
    with pytest.raises(ValueError) as error:
        Options(**values)
    assert message in str(error.value)


def test_what_may_be_passes():
    Options()
    Options(size=1, start=0, weight=0.0, share=1.0, dropout=0.0, threshold=0.0, values=(2, 4))
    Options(kind="c", of_kind=1, crf=True, of_crf=1, values=(2,), of_size=1)
    Options(of_kind=3)  # its default


def test_flags_are_named_as_flags():
    with pytest.raises(ValueError, match="^--size: expected at least 1, got 0$"):
        fields.check_fields(dataclasses.make_dataclass("Flags", [("size", Count, 0)])(), "--")
