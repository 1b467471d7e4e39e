"""Entities as character spans, and their places in units of UTF-16, as JavaScript counts."""

import dataclasses
import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal

Unit = Literal["characters", "utf16"]  # of places: code points, or the units of JavaScript's texts


@dataclasses.dataclass(frozen=True, order=True)
class Span:
    """An entity of a text; its places count code points from 0, the end exclusive."""

    start: int
    end: int
    kind: str
    words: str = dataclasses.field(default="", compare=False)  # as the file has them, if it does

    def contradicts(self, text: str, pieces: str = "") -> bool:
        """Returns whether the file has other words than stand at the places, or in its pieces, but for white space."""

        def squeezed(words: str) -> str:
            return "".join(words.replace(r"\n", " ").split())  # Label Studio spells a line end so

        return bool(self.words) and squeezed(self.words) != squeezed(pieces or text[self.start : self.end])

    def contradiction(self, text: str) -> str:
        """Describes the words that are expected and those that stand at the places."""
        return (
            f"expected {self.words!r:.60} from {self.start} to {self.end} ({self.kind}), as the file says, got "
            f"{text[self.start : self.end]!r:.60}"
        )


Record = tuple[str, list[Span] | None]  # a text with its entities; None: nobody labelled it
Reader = Callable[[Any], Record | None]  # of a row; None: people rejected it


def wide(text: str) -> bool:
    """Returns whether a text has characters that are two units of UTF-16, such as emojis."""
    return any(character > "\uffff" for character in text)


def _units(text: str) -> list[int]:
    """The place in UTF-16 units of each character of a text, and of its end."""
    return list(itertools.accumulate((1 + (character > "\uffff") for character in text), initial=0))


def of_utf16(text: str, spans: Sequence[Span], where: str) -> list[Span]:
    """Returns entities whose places count UTF-16 units with places that count characters. Others raise ValueError."""
    units = _units(text)
    places = {unit: place for place, unit in enumerate(units)}
    for wrong in spans:
        if all(type(place) is int and place in places for place in (wrong.start, wrong.end)):
            continue
        raise ValueError(
            f"{where}: expected places between characters, from 0 to {units[-1]} units of UTF-16, got {wrong.start} to "
            f"{wrong.end} ({wrong.kind})"
        )
    return [dataclasses.replace(span, start=places[span.start], end=places[span.end]) for span in spans]


def in_utf16(text: str, spans: Iterable[Span]) -> list[Span]:
    """Returns entities with places that count UTF-16 units."""
    units = _units(text)
    return [Span(units[span.start], units[span.end], span.kind, text[span.start : span.end]) for span in spans]
