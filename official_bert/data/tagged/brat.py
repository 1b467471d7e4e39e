"""Documents of brat: `NAME.txt`, and `NAME.ann` with a line for each entity, by its places in the whole text.

A row is a line of the text, or several that an entity joins; its places count from the row's beginning.
"""

import contextlib
import dataclasses
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from official_bert.data.rows import Rows
from official_bert.data.tabular.companions import ANNOTATIONS, TEXT, text_of
from official_bert.data.tabular.encodings import text_lines
from official_bert.data.tagged.spans import Span
from official_bert.storage.files import written_folder, written_together

Places = tuple[int, int, str]  # start, end, type
FORM = "brat"  # the name of this form of files
FILE, START = "file", "start"  # keys of a row: the annotations that it comes from, and where it begins in the text


@dataclasses.dataclass(frozen=True)
class Document:
    """A text with its entities."""

    name: str  # without ending
    text: str
    entities: Sequence[Places]


def read_rows(path: str, names: Sequence[str], encoding: str = "") -> Rows:
    """Returns the rows of the documents with these files of annotations, in doccano's form with the keys `file` and
    `start`.

    Raises ValueError for a missing file, a bad line, places beyond the text, and words that are not those of their
    places.
    """
    if not names:
        raise ValueError(f"{path}: expected files of brat, NAME{TEXT} and NAME{ANNOTATIONS}, got none")
    rows, lines = [], []
    for name in names:
        text = read_document_text(name, encoding)
        entities = [
            _entity(line.rstrip("\n"), text, f"{name}:{number}")
            for number, line in enumerate(text_lines(name, encoding, "file of annotations"), 1)
            if line.startswith("T")
        ]
        if beyond := [start for start, _, _ in entities if not 0 <= start < max(len(text), 1)]:
            raise ValueError(f"{name}: expected places within the {len(text)} characters of the text, got {beyond[0]}")
        for start, end, line in _rows_of(text, entities):
            inside = [(first, last, kind) for first, last, kind in entities if start <= first < max(end, start + 1)]
            if text[start:end].strip() or inside:  # an entity may hold the line end behind it
                rows.append(
                    {
                        "text": text[start:end],
                        "label": [
                            [first - start, (end if last == end + 1 else last) - start, kind]
                            for first, last, kind in inside
                        ],
                        FILE: name,
                        START: start,
                    }
                )
                lines.append(line)
    return Rows(names[0] if len(names) == 1 else path, rows, lines if len(names) == 1 else ())


def is_row(row: Any) -> bool:
    """Returns whether a row is one of `read_rows`."""
    return isinstance(row, Mapping) and FILE in row and START in row


def read_document_text(name: str, encoding: str = "") -> str:
    """Returns the text that a file of annotations is about."""
    return "".join(text_lines(text_of(name), encoding, "text beside the annotations"))


def _rows_of(text: str, entities: Sequence[Places]) -> Iterator[tuple[int, int, int]]:
    """Yields start, end and number of the first line of each row: lines that an entity joins are one row."""
    joined = {
        place for first, last, _ in entities for place in range(first, min(last, len(text)) - 1) if text[place] == "\n"
    }
    start, first_line, line = 0, 1, 1
    for place, character in enumerate(text + "\n"):
        if character == "\n":
            line += 1
            if place not in joined:
                yield start, place, first_line
                start, first_line = place + 1, line


def _entity(line: str, text: str, where: str) -> Places:
    """Returns the entity of line `T1<tab>Type 0 5<tab>words`; of several pieces, it goes from the first to the last."""
    try:
        _, places, *words = line.rstrip("\r").split("\t")
        kind, _, numbers = places.partition(" ")
        pieces = [(int(first), int(last)) for first, last in (piece.split(" ") for piece in numbers.split(";"))]
    except ValueError:
        raise ValueError(f"{where}: expected T1, a tab, a type with start and end, got {line[:60]!r}") from None
    start, end = pieces[0][0], pieces[-1][1]
    span = Span(start, end, kind, " ".join(words))
    if 0 <= start < len(text) and span.contradicts(text, " ".join(text[first:last] for first, last in pieces)):
        raise ValueError(f"{where}: {span.contradiction(text)}")
    return start, end, kind


def answered_documents(
    rows: Sequence[Mapping[str, Any]], entities: Sequence[Sequence[Places]], name: str, encoding: str = ""
) -> list[Document]:
    """Returns the documents of rows with entities: those that the rows come from, or one, `name`, with a line for each
    text.
    """
    if not all(map(is_row, rows)):
        text, moved = "", []
        for row, spans in zip(rows, entities):
            moved += [(start + len(text), end + len(text), kind) for start, end, kind in spans]
            text += row["text"] + "\n"
        return [Document(name, text, moved)]
    by_file: dict[str, list[Places]] = {}
    for row, spans in zip(rows, entities):
        by_file.setdefault(row[FILE], []).extend(
            (start + row[START], end + row[START], kind) for start, end, kind in spans
        )
    return [
        Document(os.path.basename(file).removesuffix(ANNOTATIONS), read_document_text(file, encoding), places)
        for file, places in by_file.items()
    ]


def files_written(path: str) -> list[str]:
    """Returns the two files of a document that is written to `path`, NAME.ann or NAME.txt; [] if that is a folder."""
    stem = next((path.removesuffix(end) for end in (ANNOTATIONS, TEXT) if path.endswith(end)), "")
    return [stem + TEXT, stem + ANNOTATIONS] if stem else []


def write_documents(path: str, documents: Sequence[Document]) -> None:
    """Writes a document to NAME.ann with NAME.txt beside it, or several into a new folder.

    Raises ValueError for several documents and no folder.
    """
    files = files_written(path)
    if files and len(documents) > 1:
        raise ValueError(f"{path}: expected the name of a new folder for {len(documents)} documents of brat")
    with contextlib.nullcontext("") if files else written_folder(path.rstrip("/")) as folder:
        for document in documents:
            with written_together(files or files_written(os.path.join(folder, document.name + ANNOTATIONS))) as (
                text,
                annotations,
            ):
                text.write(document.text)
                annotations.writelines(_lines_of(document))


def _lines_of(document: Document) -> Iterator[str]:
    """Yields a line for each entity; one over several lines of the text is in several pieces, as brat wants it."""
    for number, (start, end, kind) in enumerate(document.entities, 1):
        pieces, first = [], start
        for part in document.text[start:end].split("\n"):
            if part:
                pieces.append(f"{first} {first + len(part)}")
            first += len(part) + 1
        words = " ".join(document.text[start:end].split("\n"))
        yield f"T{number}\t{kind} {';'.join(pieces)}\t{words}\n"
