"""Cleaned documents, and their form as JSON values, from which an interrupted run reads them (`work_folder`)."""

import dataclasses
from collections import Counter
from typing import Any

import numpy as np

from official_bert.data.pretraining.yield_report import REASONS, Reason, YieldReport
from official_bert.data.raw_text.deduplication import PERMUTATIONS, Fingerprint

UNITS = ("sentences", "characters", "words")


@dataclasses.dataclass
class Cleaned:
    """A document's paragraphs as lists of sentences, with their amounts and the data for finding duplicates."""

    language: str
    paragraphs: list[list[str]]
    amounts: list[dict[str, int]]
    fingerprint: Fingerprint

    def total(self) -> dict[str, int]:
        """Returns the amounts of all paragraphs together."""
        return {"documents": 1} | {unit: sum(amounts[unit] for amounts in self.amounts) for unit in UNITS}


# documents, the account of the dropped ones, bytes that were read for them
CleanedPiece = tuple[list[Cleaned], YieldReport, int]
# The forms of JSON values: a type, a list of one form, a mapping to one form, or a list of a form for each place.
AMOUNTS = {"": int}
DOCUMENT_FORM = (str, [[str]], [AMOUNTS], [int], int, [int])
PIECE_FORM = ([DOCUMENT_FORM], (AMOUNTS, *[{"": (AMOUNTS, [str], bool)}] * len(REASONS)), int)


def to_data(piece: CleanedPiece) -> list[Any]:
    """Returns a piece as JSON values."""
    documents, report, read = piece
    reasons = [{name: [*vars(reason).values()] for name, reason in getattr(report, kind).items()} for kind in REASONS]
    return [
        [
            [
                document.language,
                document.paragraphs,
                document.amounts,
                document.fingerprint.paragraphs.tolist(),
                document.fingerprint.document,
                document.fingerprint.signature.tolist(),
            ]
            for document in documents
        ],
        [report.kept, *reasons],
        read,
    ]


def from_data(values: Any) -> CleanedPiece:
    """Returns the piece that `to_data` turned into JSON values. Raises ValueError for values of another form."""
    if not _fits(values, PIECE_FORM):
        raise ValueError("these are no cleaned documents")
    documents, (kept, *reasons), read = values
    report = YieldReport(
        Counter(kept),
        *({name: Reason(Counter(amounts), *facts) for name, (amounts, *facts) in kind.items()} for kind in reasons),
    )
    return [_document(*document) for document in documents], report, read


def _fits(value: Any, form: Any) -> bool:
    """Returns whether a JSON value has a form."""
    if isinstance(form, tuple):
        return type(value) is list and len(value) == len(form) and all(map(_fits, value, form))
    if isinstance(form, list):
        return type(value) is list and all(_fits(item, form[0]) for item in value)
    if isinstance(form, dict):
        return type(value) is dict and all(_fits(item, form[""]) for item in value.values())
    return type(value) is form


def _document(
    language: str,
    paragraphs: list[list[str]],
    amounts: list[dict[str, int]],
    hashes: list[int],
    hash_of_all: int,
    signature: list[int],
) -> Cleaned:
    same = len(paragraphs) == len(amounts) == len(hashes) and len(signature) in (0, PERMUTATIONS)
    if not (paragraphs and all(paragraphs) and same and all({*UNITS} <= {*units} for units in amounts)):
        raise ValueError("these are no cleaned documents")
    return Cleaned(
        language, paragraphs, amounts, Fingerprint(_array(hashes, np.uint64), hash_of_all, _array(signature, np.uint32))
    )


def _array(numbers: list[int], kind: type[np.unsignedinteger]) -> np.ndarray:
    if not all(0 <= number <= np.iinfo(kind).max for number in numbers):
        raise ValueError("these are no cleaned documents")
    return np.array(numbers, kind)
