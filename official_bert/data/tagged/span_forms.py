"""Entities as character spans, in the forms of annotation tools and published data: one table, by which they are read
and written.

Places count code points of the text from 0, the end exclusive (CLUENER: inclusive).
"""

import dataclasses
import itertools
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from official_bert.data.tables import Rows, Source, collected, format_of_objects, json_values, place
from official_bert.data.tabular.companions import annotations_of
from official_bert.data.tagged import brat
from official_bert.data.tagged.chunk_tags import Chunk, write_tags
from official_bert.files import is_file, is_folder
from official_bert.text.tokenization import BasicTokenizer

Overlaps = Literal["refuse", "longest"]
Unit = Literal["characters", "utf16"]  # of places: code points, or the units of JavaScript's texts
OF_FORMS = ("text", "data", "answer", "label")  # keys that have a meaning in forms


@dataclasses.dataclass(frozen=True, order=True)
class Span:
    """An entity of a text."""

    start: int
    end: int
    kind: str
    words: str = dataclasses.field(default="", compare=False)  # as the file has them, if it does


Record = tuple[str, list[Span]]  # a text with its entities


@dataclasses.dataclass(frozen=True)
class Form:
    """A form of rows: which rows have it, and how one is read and written; `read` gives None for a row that people
    rejected.
    """

    name: str
    tool: str
    fits: Callable[[Any], bool]
    read: Callable[[Any], Record | None]
    # from the row that was read ({} if there is none), its text and its entities
    write: Callable[[Any, str, Sequence[Span]], Any]

    def convert(self, row: Mapping[str, Any], text: str, spans: Sequence[Span]) -> Any:
        """Writes a row of another form, or of none: with all that it holds, unless that would be read as other
        entities.
        """
        whole = self.write(row, text, spans)
        try:
            if (form := form_of(whole)) and form.read(whole) == (text, list(spans)):
                return whole
        except (LookupError, TypeError, ValueError, StopIteration):
            pass
        return self.write(
            {key: value
             for key, value in row.items() if isinstance(value, (str, int, float)) and key not in OF_FORMS}, text,
            spans)


class Entities(NamedTuple):
    """Where the values of a list have start, end and type of an entity: keys of objects, or places in lists."""

    start: Any
    end: Any
    kind: Any

    def fit(self, values: Any) -> bool:
        """Whether values are a list of such entities; there may be none."""
        if self == TRIPLES:
            return isinstance(values, list) and all(
                isinstance(value, (list, tuple)) and len(value) >= 3 and isinstance(value[2], str) for value in values)
        return isinstance(values, list) and all(isinstance(value, Mapping) and {*self} <= {*value} for value in values)

    def read(self, values: Iterable[Any]) -> list[Span]:
        """Reads entities; those of Label Studio may have several types each."""
        if self == LABEL_STUDIO:
            return [
                Span(value["start"], value["end"], kind, str(value.get("text") or "")) for value in values
                for kind in value["labels"]
            ]
        return [Span(value[self.start], value[self.end], value[self.kind]) for value in values]

    def write(self, text: str, spans: Iterable[Span]) -> list[Any]:
        """Writes entities of a text."""
        if self == LABEL_STUDIO:
            return [{
                "start": span.start, "end": span.end, "text": span.words or text[span.start:span.end],
                "labels": [span.kind]
            } for span in spans]
        values = [[span.start, span.end, span.kind] for span in spans]
        return values if self == TRIPLES else [dict(zip(self, value)) for value in values]


TRIPLES, OBJECTS, LABEL_STUDIO = Entities(0, 1, 2), Entities("start", "end",
                                                             "label"), Entities("start", "end", "labels")
RELATED = Entities("start_offset", "end_offset", "label")  # doccano's, with relations


def _is_text_row(row: Any, *keys: str, text_key: str = "text") -> bool:
    return isinstance(row, Mapping) and isinstance(row.get(text_key), str) and all(key in row for key in keys)


def _text_form(name: str, tool: str, fits: Callable[[Any], bool], entities: Entities, keys: Sequence[str] = (),
               text_key: str = "text", left_out: Sequence[str] = ()) -> Form:
    """A form of objects with a text and a list of entities: under the first of `keys` (none: of any) that has such a
    list.
    """
    def key_of(row: Mapping[str, Any]) -> str:
        return keys[0] if len(keys) == 1 else next((key for key in keys or row if entities.fit(row.get(key))), "label")

    def write(row: Mapping[str, Any], text: str, spans: Sequence[Span]) -> dict[str, Any]:
        kept = {key: value for key, value in row.items() if key not in left_out}
        return kept | {text_key: text, key_of(row): entities.write(text, spans)}
    return Form(name, tool, fits, lambda row: (row[text_key], entities.read(row[key_of(row)])), write)


def _read_label_studio(task: Mapping[str, Any]) -> Record | None:
    everybody = task.get("annotations") or task.get("completions") or []
    annotations = [annotation for annotation in everybody if not annotation.get("was_cancelled")]
    if everybody and not annotations:
        return None  # a person skipped it
    results = (annotations or task.get("predictions") or [{}])[0].get("result", [])
    values = [result["value"] for result in results if result.get("type", "labels") == "labels"]
    return task["data"][_label_studio_key(task["data"])], LABEL_STUDIO.read(values)


def _label_studio_key(data: Mapping[str, Any]) -> str:
    return "text" if "text" in data else next(key for key, value in data.items() if isinstance(value, str))


def _write_label_studio(task: Mapping[str, Any], text: str, spans: Sequence[Span]) -> dict[str, Any]:
    data = stored_data if isinstance(stored_data := task.get("data"), Mapping) and stored_data else {"text": text}
    results = [{
        "id": f"e{number}", "from_name": "label", "to_name": _label_studio_key(data), "type": "labels", "value": value
    } for number, value in enumerate(LABEL_STUDIO.write(text, spans))]
    kept = {key: value for key, value in task.items() if key not in ("annotations", "completions", "predictions")}
    return kept | {"data": data, "predictions": [{"result": results}]}


def _read_cluener(row: Mapping[str, Any]) -> Record:
    return row["text"], [Span(start, end + 1, kind) for kind, names in row["label"].items() for places in names.values()
                         for start, end in places]


def _write_cluener(row: Mapping[str, Any], text: str, spans: Sequence[Span]) -> dict[str, Any]:
    label: dict[str, dict[str, list[list[int]]]] = {}
    for span in spans:
        label.setdefault(span.kind, {}).setdefault(span.words or text[span.start:span.end],
                                                   []).append([span.start, span.end - 1])
    return {**row, "text": text, "label": label}


def _is_pair(row: Any) -> bool:
    return isinstance(row, (list, tuple)) and len(row) == 2 and isinstance(row[0], str) and isinstance(row[1], Mapping)


PRODIGY = _text_form("prodigy", "Prodigy", lambda row: _is_text_row(row, "spans"), OBJECTS, ["spans"],
                     left_out=["answer", "tokens"])
DOCCANO_KEYS = ("label", "labels", "entities")
# The form of rows is the first that fits all of them: one without entities may be in several, of which doccano stands
# before Label Studio. The name is a value of --output_format.
FORMS: Sequence[Form] = (
    Form(
        "spacy", "spaCy's (text, {\"entities\": ...}), in JSON lists", _is_pair, lambda row:
        (row[0], TRIPLES.read(row[1].get("entities", []))),
        lambda row, text, spans: [text, {**(row[1] if _is_pair(row) else {}), "entities": TRIPLES.write(text, spans)}]),
    _text_form("spacy_docs", "spaCy's Doc.to_json", lambda row: _is_text_row(row, "ents"), OBJECTS, ["ents"],
               left_out=["tokens"]),
    Form(
        "label_studio", "Label Studio's JSON", lambda row: isinstance(row, Mapping) and isinstance(
            row.get("data"), Mapping) and any(isinstance(value, str) for value in row["data"].values()),
        _read_label_studio, _write_label_studio),
    dataclasses.replace(PRODIGY, read=lambda row: PRODIGY.read(row)
                        if row.get("answer", "accept") == "accept" else None),
    Form(
        "cluener", "CLUENER", lambda row: _is_text_row(row, "label") and isinstance(row["label"], Mapping) and all(
            isinstance(names, Mapping) and all(isinstance(places, list) for places in names.values())
            for names in row["label"].values()), _read_cluener, _write_cluener),
    _text_form(
        "doccano", "doccano", lambda row: _is_text_row(row) and any(
            TRIPLES.fit(row.get(key)) and (row[key] or "relations" not in row) for key in DOCCANO_KEYS), TRIPLES,
        DOCCANO_KEYS),
    Form(
        "doccano_relations", "doccano, with relations",
        lambda row: _is_text_row(row) and RELATED.fit(row.get("entities")), lambda row:
        (row["text"], RELATED.read(row["entities"])), lambda row, text, spans: {
            **row, "text": text, "relations": [],
            "entities": [{"id": number, **entity} for number, entity in enumerate(RELATED.write(text, spans))]
        }),
    _text_form("label_studio_min", "Label Studio's JSON_MIN",
               lambda row: _is_text_row(row) and any(map(LABEL_STUDIO.fit, row.values())), LABEL_STUDIO),
    _text_form("flair", "flair", lambda row: _is_text_row(row, text_key="data") and TRIPLES.fit(row.get("label")),
               TRIPLES, ["label"], "data"),
)
BY_NAME: Mapping[str, Form] = {form.name: form for form in FORMS}
LISTS = ("spacy", "label_studio", "label_studio_min")  # written as one JSON list; the others are JSON lines


def form_of(row: Any) -> Form | None:
    """Returns the form of a row; None if it is in none."""
    return next((form for form in FORMS if form.fits(row)), None)


def span_rows(source: Source, encoding: str = "") -> Rows | None:
    """Returns the rows of a file of character spans, of rows in memory, or of brat's `.ann` files; None for other data.

    Raises ValueError, naming file and line, for broken JSON.
    """
    if isinstance(source, Rows):
        return source if _has_spans(source) else None
    if is_folder(source) or annotations_of(source):
        return brat.read_rows(source, annotations_of(source), encoding)
    if not is_file(source) or format_of_objects(source, encoding) != "jsonl":
        return None
    rows = collected(source, *json_values(source, encoding))
    first = rows.values[0] if len(rows.values) == 1 else None
    if isinstance(first, Mapping) and isinstance(first.get("annotations"), list) and any(
            map(_is_pair, first["annotations"])):
        # of spaCy's annotator: null where a text was skipped
        return Rows(source, [row for row in first["annotations"] if row])
    return rows if _has_spans(rows) else None


def _has_spans(rows: Rows) -> bool:
    """Whether the first row is a text with entities, and not a list of words with tags."""
    if not rows.values or (first := rows.values[0]) is None:
        return False
    words = isinstance(first, Mapping) and next((first[key] for key in ("tokens", "words") if key in first), None)
    return form_of(first) is not None and not (isinstance(words, list) and all(isinstance(word, str) for word in words))


@dataclasses.dataclass
class Reading:
    """How spans became words with tags: what is refused, and what is counted."""

    overlaps: Overlaps = "refuse"
    widened: list[str] = dataclasses.field(default_factory=list)  # the places of spans that cut a word
    differing: list[str] = dataclasses.field(default_factory=list)  # of those whose words in the file are others
    dropped: list[str] = dataclasses.field(default_factory=list)  # of those that a longer one overlaps
    rejected: int = 0  # rows

    def notes(self, source: Source) -> list[str]:
        """Lines for the user about what was counted."""
        hint = ("have other words in the file than stand at their places (options.places: utf16 reads those of "
                "JavaScript)")
        places_and_words = [(self.differing, hint), (self.widened, "cut a word and were widened to it"),
                (self.dropped, "overlapped a longer one and were left out")]
        lines = [
            f"{source}: {len(places)} spans {what}, the first in {places[0]}" for places, what in places_and_words
            if places
        ]
        return lines + ([f"{source}: {self.rejected} rows that people rejected or skipped left out"]
                        if self.rejected else [])


def common_form(rows: Rows) -> Form:
    """Returns the form of rows. Raises ValueError, naming a row of each, for rows of several forms."""
    longest, form = 0, FORMS[0]
    for candidate in FORMS:
        fitting = next((number for number, row in enumerate(rows.values) if not candidate.fits(row)), len(rows.values))
        if fitting > longest:
            longest, form = fitting, candidate
    if longest < len(rows.values):
        row = rows.values[longest]
        got = f"that of {other.tool}" if (other := form_of(row)) else json.dumps(row, ensure_ascii=False,
                                                                                 default=str)[:60]
        raise ValueError(f"{place(rows, longest)}: expected the form of {form.tool}, as in {place(rows, 0)}, got {got}")
    return form


def records(rows: Rows) -> Iterator[tuple[int, Record | None]]:
    """Yields the number and the record of each row. Raises ValueError, naming the row, for another form than the
    others'.
    """
    form = common_form(rows)
    for number, row in enumerate(rows.values):
        try:
            yield number, form.read(row)
        except (LookupError, TypeError, ValueError, StopIteration) as error:
            raise ValueError(f"{place(rows, number)}: not in the form of {form.tool}: {error!r:.80}") from None


def to_words(text: str, spans: Sequence[Span], where: str, reading: Reading) -> tuple[list[str], list[Chunk]]:
    """Returns the words of a text by 2018's basic split without lower-casing, and its entities as runs of words.

    A span that cuts a word is widened, and counted. Raises ValueError, naming `where`, for a span out of range or
    without a word, and for overlapping ones unless `reading.overlaps` keeps the longest.
    """
    words = split_words(text)
    chunks = []
    for span in sorted(set(spans)):
        if not all(type(value) is int
                   for value in (span.start, span.end)) or not isinstance(span.kind, str) or not span.kind:
            raise ValueError(
                f"{where}: expected start, end and type of an entity, got {[span.start, span.end, span.kind]}")
        if not 0 <= span.start < span.end <= len(text):
            hint = "; options.places: utf16 reads places that count some characters twice, as JavaScript does" if wide(
                text) else ""
            raise ValueError(
                f"{where}: expected places from 0 to {len(text)}, the length of the text, got {span.start} to "
                f"{span.end} "
                f"({span.kind}){hint}")
        if span.words and span.words.split() != text[span.start:span.end].split():
            reading.differing.append(where)
        inside = [number for number, (start, end) in enumerate(words) if start < span.end and span.start < end]
        if not inside:
            raise ValueError(
                f"{where}: expected words from {span.start} to {span.end} ({span.kind}), got "
                f"{text[span.start:span.end]!r}"
            )
        if words[inside[0]][0] < span.start or words[inside[-1]][1] > span.end:
            reading.widened.append(where)
        chunks.append(Chunk(span.kind, inside[0], inside[-1] + 1))
    return [text[start:end] for start, end in words], _apart(chunks, where, reading)


def _apart(chunks: Sequence[Chunk], where: str, reading: Reading) -> list[Chunk]:
    """Keeps entities that share no word: the longest of those that do, the first of equally long ones."""
    apart: list[Chunk] = []
    for chunk in sorted({*chunks}, key=lambda entity: (entity.start - entity.end, entity.start, entity.kind)):
        if neighbour := next((entity for entity in apart if entity.start < chunk.end and chunk.start < entity.end),
                             None):
            if reading.overlaps == "refuse":
                raise ValueError(
                    f"{where}: entities overlap, {neighbour.kind} and {chunk.kind}, and each word has one tag; "
                    "options.overlaps=longest keeps the longest")
            reading.dropped.append(where)
        else:
            apart.append(chunk)
    return sorted(apart, key=lambda entity: entity.start)


def wide(text: str) -> bool:
    """Whether a text has characters that are two units of UTF-16, such as emojis."""
    return any(character > "\uffff" for character in text)


def _units(text: str) -> list[int]:
    """The place in UTF-16 units of each character of a text, and of its end."""
    return list(itertools.accumulate((1 + (character > "\uffff") for character in text), initial=0))


def of_utf16(text: str, spans: Sequence[Span], where: str) -> list[Span]:
    """Returns entities whose places count UTF-16 units with places that count characters. Raises ValueError for others.
    """
    units = _units(text)
    places = {unit: place for place, unit in enumerate(units)}
    for wrong in spans:
        if all(type(place) is int and place in places for place in (wrong.start, wrong.end)):
            continue
        raise ValueError(
            f"{where}: expected places between characters, from 0 to {units[-1]} units of UTF-16, got {wrong.start} to "
            f"{wrong.end} ({wrong.kind})")
    return [dataclasses.replace(span, start=places[span.start], end=places[span.end]) for span in spans]


def in_utf16(text: str, spans: Iterable[Span]) -> list[Span]:
    """Returns entities with places that count UTF-16 units."""
    units = _units(text)
    return [Span(units[span.start], units[span.end], span.kind, text[span.start:span.end]) for span in spans]


def split_words(text: str) -> list[tuple[int, int]]:
    """Returns start and end of the words of a text by 2018's basic split without lower-casing: an ideograph is a word.
    """
    return [(word[0][1], word[-1][2]) for word in BasicTokenizer(do_lower_case=False).tokenize_with_offsets(text)]


def tags_of(text: str, spans: Sequence[Span], where: str, reading: Reading) -> tuple[list[str], list[str]]:
    """Returns the words of a text and their tags, in IOB2."""
    words, chunks = to_words(text, spans, where, reading)
    return words, write_tags(chunks, len(words), "iob2")
