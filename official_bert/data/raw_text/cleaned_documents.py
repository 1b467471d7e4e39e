"""Cleaned documents, and their form as JSON values, in which a stopped run finds them again (`data/long_work/journal`)."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from official_bert.data.pretraining.yield_report import Reason, YieldReport
from official_bert.data.raw_text.deduplication import PERMUTATIONS, Fingerprint

UNITS = ("sentences", "characters", "words")
REASONS = ("dropped", "repeated", "notes")  # of a YieldReport
WRONG_SHAPE = (ValueError, TypeError, KeyError, AttributeError, OverflowError)


@dataclasses.dataclass
class Cleaned:
    """A document's paragraphs as sentences, with the amounts of each and the data for the search for duplicates."""
    language: str
    paragraphs: list[list[str]]
    amounts: list[dict[str, int]]
    fingerprint: Fingerprint

    def total(self) -> dict[str, int]:
        """Returns the amounts of the whole document."""
        return {"documents": 1} | {unit: sum(amounts[unit] for amounts in self.amounts) for unit in UNITS}


CleanedPiece = tuple[list[Cleaned], YieldReport, int]  # documents, the account of the dropped ones, bytes that were read for them


def to_data(piece: CleanedPiece) -> list[Any]:
    """Returns a piece as JSON values."""
    documents, report, read = piece
    return [[[document.language, document.paragraphs, document.amounts, *_numbers(document.fingerprint)] for document in documents],
            {"kept": report.kept} | {name: {reason: dataclasses.asdict(facts) for reason, facts in getattr(report, name).items()}
                                     for name in REASONS}, read]


def from_data(values: Any) -> CleanedPiece:
    """Returns the piece that `to_data` turned into JSON values. Raises ValueError for values that it never gives."""
    try:
        documents, report, read = values
        _require(type(read) is int)
        return [_document(*document) for document in documents], _report(report), read
    except WRONG_SHAPE:
        raise ValueError("these are no cleaned documents") from None


def _require(is_as_written: Any) -> None:
    if not is_as_written:
        raise ValueError


def _numbers(fingerprint: Fingerprint) -> list[Any]:
    signature = fingerprint.signature
    return [fingerprint.paragraphs.tolist(), fingerprint.document, None if signature is None else signature.tolist()]


def _document(language: str, paragraphs: Sequence[Sequence[str]], amounts: Sequence[Mapping[str, int]], hashes: Sequence[int],
              hash_of_all: int, signature: Sequence[int] | None) -> Cleaned:
    _require(type(language) is str and type(hash_of_all) is int and paragraphs and len(paragraphs) == len(amounts) == len(hashes))
    _require(all(type(part) is list and part and all(type(sentence) is str for sentence in part) for part in paragraphs))
    _require(signature is None or len(signature) == PERMUTATIONS)
    fingerprint = Fingerprint(_array(hashes, np.uint64), hash_of_all, None if signature is None else _array(signature, np.uint32))
    return Cleaned(language, [list(part) for part in paragraphs], [_amounts(part, UNITS) for part in amounts], fingerprint)


def _array(numbers: Sequence[int], kind: type[np.unsignedinteger]) -> np.ndarray:
    _require(all(type(number) is int and 0 <= number <= np.iinfo(kind).max for number in numbers))
    return np.array(numbers, kind)


def _report(values: Mapping[str, Any]) -> YieldReport:
    report = YieldReport()
    report.kept = _amounts(values["kept"])
    for name in REASONS:
        for reason, facts in values[name].items():
            _require(all(type(example) is str for example in facts["examples"]) and type(facts["expected"]) is bool)
            getattr(report, name)[reason] = Reason(_amounts(facts["amounts"]), list(facts["examples"]), facts["expected"])
    return report


def _amounts(values: Mapping[str, Any], units: Sequence[str] = ()) -> dict[str, int]:
    _require(all(type(value) is int for value in values.values()) and set(units) <= set(values))
    return dict(values)
