"""Entities as character spans, in the forms of annotation tools and published data: one table, by which they are read
and written.

Places count code points of the text from 0, the end exclusive (CLUENER: inclusive).
"""

import bisect
import dataclasses
import itertools
import json
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from official_bert.data.labelled.labelled_texts import UNACCEPTED
from official_bert.data.rows import Rows, Source, place
from official_bert.data.tabular.companions import annotations_of
from official_bert.data.tabular.tables import ANSWER, ANSWERS, collected, format_of_objects, json_values, unconfirmed
from official_bert.data.tagged import brat, label_studio
from official_bert.data.tagged.chunk_tags import Chunk, write_tags
from official_bert.data.tagged.spans import Reader, Record, Span, wide
from official_bert.storage.files import is_file, is_folder
from official_bert.text.tokenization import BasicTokenizer

Overlaps = Literal["refuse", "longest"]
WORD_KEYS = ("tokens", "words")  # of rows of words with tags, which are no texts
OF_FORMS = ("text", "data", "answer", "label")  # keys that have a meaning in forms


@dataclasses.dataclass(frozen=True)
class Form:
    """A form of rows: which rows have it, and how one is read and written."""

    name: str
    tool: str
    fits: Callable[[Any], bool]
    read: Reader
    write: Callable[[Any, str, Sequence[Span]], Any]
    """From the row that was read ({} if there is none), its text and its entities."""
    reader: Callable[[Sequence[Any]], Reader] | None = None  # of rows all of which tell how one is read

    def convert(self, row: Mapping[str, Any], text: str, spans: Sequence[Span]) -> Any:
        """Writes a row of another form, or of none: with all that it holds, unless that would be read as other
        entities."""
        whole = self.write(row, text, spans)
        try:
            if (form := form_of(whole)) and form.read(whole) in ((text, list(spans)), (text, None)):
                return whole
        except (LookupError, TypeError, ValueError):
            pass
        plain = {
            key: value for key, value in row.items() if isinstance(value, (str, int, float)) and key not in OF_FORMS
        }
        return self.write(plain, text, spans)


class Entities(NamedTuple):
    """Where the values of a list have start, end and type of an entity: keys of objects, or places in lists."""

    start: Any
    end: Any
    kind: Any

    def fit(self, values: Any) -> bool:
        """Returns whether values are a list of such entities; there may be none."""
        if self == TRIPLES:
            return isinstance(values, list) and all(
                isinstance(value, (list, tuple)) and len(value) >= 3 and isinstance(value[2], str) for value in values
            )
        return isinstance(values, list) and all(isinstance(value, Mapping) and {*self} <= {*value} for value in values)

    def read(self, values: Iterable[Any]) -> list[Span]:
        """Reads entities."""
        return [Span(value[self.start], value[self.end], value[self.kind], _words_of(value)) for value in values]

    def write(self, spans: Iterable[Span]) -> list[Any]:
        """Writes entities."""
        values = [[span.start, span.end, span.kind] for span in spans]
        return values if self == TRIPLES else [dict(zip(self, value)) for value in values]


TRIPLES, OBJECTS = Entities(0, 1, 2), Entities("start", "end", "label")
RELATED = Entities("start_offset", "end_offset", "label")  # doccano's, with relations


def _words_of(value: Any) -> str:
    """The words of an entity, if the file has them."""
    return value["text"] if isinstance(value, Mapping) and isinstance(value.get("text"), str) else ""


def _is_text_row(row: Any, *keys: str, text_key: str = "text") -> bool:
    return isinstance(row, Mapping) and isinstance(row.get(text_key), str) and all(key in row for key in keys)


def _text_form(
    name: str,
    tool: str,
    fits: Callable[[Any], bool],
    entities: Entities,
    keys: Sequence[str],
    text_key: str = "text",
    left_out: Sequence[str] = (),
) -> Form:
    """A form of objects with a text and a list of entities, under the first of `keys` that has such a list."""

    def key_of(row: Mapping[str, Any]) -> str:
        return next((key for key in keys if entities.fit(row.get(key))), keys[0])

    def write(row: Mapping[str, Any], text: str, spans: Sequence[Span]) -> dict[str, Any]:
        kept = {key: value for key, value in row.items() if key not in left_out}
        return kept | {text_key: text, key_of(row): entities.write(spans)}

    return Form(name, tool, fits, lambda row: (row[text_key], entities.read(row.get(key_of(row)) or [])), write)


def _read_cluener(row: Mapping[str, Any]) -> Record:
    return row["text"], [
        Span(start, end + 1, kind, words)
        for kind, names in row["label"].items()
        for words, places in names.items()
        for start, end in places
    ]


def _write_cluener(row: Mapping[str, Any], text: str, spans: Sequence[Span]) -> dict[str, Any]:
    label: dict[str, dict[str, list[list[int]]]] = {}
    for span in spans:
        label.setdefault(span.kind, {}).setdefault(span.words or text[span.start : span.end], []).append(
            [span.start, span.end - 1]
        )
    return {**row, "text": text, "label": label}


def _is_pair(row: Any) -> bool:
    return isinstance(row, (list, tuple)) and len(row) == 2 and isinstance(row[0], str) and isinstance(row[1], Mapping)


def _is_of_prodigy(row: Any) -> bool:
    """Whether a row is one of Prodigy's: one that people skipped, or in which they marked nothing, may lack spans."""
    is_answered = _is_text_row(row, ANSWER) and not {"label", "options", "accept"} & {*row}
    return _is_text_row(row, "spans") or (_is_text_row(row) and row.get(ANSWER) in ANSWERS[1:]) or is_answered


def _read_doccano_old(row: Mapping[str, Any]) -> Record:
    """Reads entities whose types are numbers; one without any, which nobody approved, is not labelled."""
    unseen = not row["annotations"] and row.get("annotation_approver", "") is None
    spans = [dataclasses.replace(span, kind=str(span.kind)) for span in RELATED.read(row["annotations"])]
    return row["text"], None if unseen else spans


def _write_doccano_old(row: Mapping[str, Any], text: str, spans: Sequence[Span]) -> dict[str, Any]:
    values = [
        value | {"label": int(kind) if (kind := value["label"]).isdecimal() else kind} for value in RELATED.write(spans)
    ]
    return {**row, "text": text, "annotations": values}


DOCCANO_KEYS = ("label", "labels", "entities")
# The form of rows is the first that fits all of them: one without entities may be in several, of which doccano stands
# before Label Studio. The name is a value of --output_format.
FORMS: Sequence[Form] = (
    Form(
        "spacy",
        'spaCy\'s (text, {"entities": ...}), in JSON lists',
        _is_pair,
        lambda row: (row[0], TRIPLES.read(row[1].get("entities", []))),
        lambda row, text, spans: [text, {**(row[1] if _is_pair(row) else {}), "entities": TRIPLES.write(spans)}],
    ),
    _text_form(
        "spacy_docs",
        "spaCy's Doc.to_json",
        lambda row: _is_text_row(row, "ents"),
        OBJECTS,
        ["ents"],
        left_out=["tokens"],
    ),
    Form(
        "label_studio",
        "Label Studio's JSON",
        label_studio.is_task,
        lambda row: label_studio.reader([row])(row),
        label_studio.write_task,
        label_studio.reader,
    ),
    _text_form("prodigy", "Prodigy", _is_of_prodigy, OBJECTS, ["spans"], left_out=[ANSWER, "tokens"]),
    Form(
        "cluener",
        "CLUENER",
        lambda row: (
            _is_text_row(row, "label")
            and isinstance(row["label"], Mapping)
            and all(
                isinstance(names, Mapping) and all(isinstance(places, list) for places in names.values())
                for names in row["label"].values()
            )
        ),
        _read_cluener,
        _write_cluener,
    ),
    _text_form(
        "doccano",
        "doccano",
        lambda row: (
            _is_text_row(row)
            and any(TRIPLES.fit(row.get(key)) and (row[key] or "relations" not in row) for key in DOCCANO_KEYS)
        ),
        TRIPLES,
        DOCCANO_KEYS,
    ),
    Form(
        "doccano_relations",
        "doccano, with relations",
        lambda row: _is_text_row(row) and RELATED.fit(row.get("entities")),
        lambda row: (row["text"], RELATED.read(row["entities"])),
        lambda row, text, spans: {
            **row,
            "text": text,
            "relations": [],
            "entities": [{"id": number, **entity} for number, entity in enumerate(RELATED.write(spans))],
        },
    ),
    Form(
        "doccano_old",
        "doccano's older export",
        lambda row: _is_text_row(row) and RELATED.fit(row.get("annotations")),
        _read_doccano_old,
        _write_doccano_old,
    ),
    Form(
        "label_studio_min",
        "Label Studio's JSON_MIN",
        label_studio.is_min_row,
        lambda row: label_studio.min_reader([row])(row),
        label_studio.write_min,
        label_studio.min_reader,
    ),
    _text_form(
        "flair",
        "flair",
        lambda row: _is_text_row(row, text_key="data") and TRIPLES.fit(row.get("label")),
        TRIPLES,
        ["label"],
        "data",
    ),
)
BY_NAME: Mapping[str, Form] = {form.name: form for form in FORMS}
LISTS = ("spacy", "label_studio", "label_studio_min")  # written as one JSON list; the others are JSON lines


def form_of(row: Any) -> Form | None:
    """Returns the form of a row; None if it is in none."""
    return next((form for form in FORMS if form.fits(row)), None)


def span_rows(source: str, encoding: str = "") -> Rows | None:
    """Returns the rows of a file of character spans, or of brat's `.ann` files; None for another file.

    Raises ValueError, naming file and line, for broken JSON.
    """
    if is_folder(source) or annotations_of(source):
        return brat.read_rows(source, annotations_of(source), encoding)
    if not is_file(source) or format_of_objects(source, encoding) != "jsonl":
        return None
    rows = collected(source, *json_values(source, encoding))
    first = rows.values[0] if len(rows.values) == 1 else None
    if (
        isinstance(first, Mapping)
        and isinstance(first.get("annotations"), list)
        and any(map(_is_pair, first["annotations"]))
    ):
        # of spaCy's annotator: null where a text was skipped
        return Rows(source, [row for row in first["annotations"] if row])
    return rows if has_spans(rows) else None


def has_spans(rows: Rows) -> bool:
    """Returns whether the first row is a text with entities, and not a list of words with tags."""
    first = rows.values[0] if rows.values else None
    words = isinstance(first, Mapping) and next((first[key] for key in WORD_KEYS if key in first), None)
    return form_of(first) is not None and not (isinstance(words, list) and all(isinstance(word, str) for word in words))


@dataclasses.dataclass
class Reading:
    """How spans became words with tags: what is refused, and what is counted."""

    overlaps: Overlaps = "refuse"
    widened: list[str] = dataclasses.field(default_factory=list)  # the places of spans that cut a word
    dropped: list[str] = dataclasses.field(default_factory=list)  # of those that a longer one overlaps
    rejected: int = 0  # rows
    unlabelled: int = 0

    def notes(self, source: Source) -> list[str]:
        """Lines for the user about what was counted."""
        places_and_words = [
            (self.widened, "cut a word and were widened to it"),
            (self.dropped, "overlapped a longer one and were ignored"),
        ]
        counts = [(self.rejected, UNACCEPTED), (self.unlabelled, "nobody labelled")]
        return [
            f"{source}: {len(places)} spans {what}, the first in {places[0]}"
            for places, what in places_and_words
            if places
        ] + [f"{source}: {count} rows that {what} left out" for count, what in counts if count]


def common_form(rows: Rows) -> Form:
    """Returns the form of rows. Raises ValueError, naming a row of each, for rows of several forms."""
    fitting = [sum(1 for _ in itertools.takewhile(form.fits, rows.values)) for form in FORMS]  # the first rows
    longest = max(fitting)
    form = FORMS[fitting.index(longest)]
    if longest < len(rows.values):
        row = rows.values[longest]
        got = (
            f"that of {other.tool}"
            if (other := form_of(row))
            else json.dumps(row, ensure_ascii=False, default=str)[:60]
        )
        raise ValueError(f"{place(rows, longest)}: expected the form of {form.tool}, as in {place(rows, 0)}, got {got}")
    return form


def records(rows: Rows) -> Iterator[tuple[int, Record | None]]:
    """Yields the number and the record of each row. Raises ValueError, naming the row, for another form than the
    others'.
    """
    form = common_form(rows)
    if any(
        isinstance(row, Mapping) and (row.get("_view_id") == "ner" or row.get("_is_binary")) and ANSWER in row
        for row in rows.values
    ):
        raise ValueError(
            f"{rows}: expected texts with all their entities, got Prodigy's answers to one entity each (binary): "
            "export what `prodigy data-to-spacy`, or `prodigy ner.silver-to-gold`, makes of them"
        )
    rejected = unconfirmed([row.get(ANSWER) if isinstance(row, Mapping) else None for row in rows.values])
    try:
        read = form.reader(rows.values) if form.reader else form.read
    except ValueError as error:
        raise ValueError(f"{rows}: {error}") from None
    except (AttributeError, LookupError, TypeError) as error:
        raise ValueError(f"{rows}: not in the form of {form.tool}: {error!r:.80}") from None
    for number, row in enumerate(rows.values):
        try:
            yield number, None if number in rejected else read(row)
        except (AttributeError, LookupError, TypeError, ValueError) as error:
            reason = str(error) if isinstance(error, ValueError) else f"{error!r:.80}"
            raise ValueError(f"{place(rows, number)}: not in the form of {form.tool}: {reason}") from None


def tags_of(text: str, spans: Sequence[Span], where: str, reading: Reading) -> tuple[list[str], list[str]]:
    """Returns the words of a text by 2018's basic split without lower-casing, by which an ideograph is a word, and
    their tags in IOB2.

    A span that cuts a word is widened, and counted. Raises ValueError, naming `where`, for a span out of range or
    without a word, and for overlapping ones unless `reading.overlaps` keeps the longest.
    """
    tokenizer = BasicTokenizer(do_lower_case=False)
    words = [(word[0][1], word[-1][2]) for word in tokenizer.tokenize_with_offsets(text)]
    for span in spans:
        if not (type(span.start) is type(span.end) is int and isinstance(span.kind, str) and span.kind):
            raise ValueError(
                f"{where}: expected start, end and type of an entity, got {[span.start, span.end, span.kind]}"
            )
    chunks = []
    for span in sorted(set(spans)):
        if not 0 <= span.start < span.end <= len(text):
            hint = (
                "; options.places: utf16 reads places that count some characters twice, as JavaScript does"
                if wide(text)
                else ""
            )
            raise ValueError(
                f"{where}: expected places from 0 to {len(text)}, the length of the text, got {span.start} to "
                f"{span.end} ({span.kind}){hint}"
            )
        if span.contradicts(text):
            hint = "; options.places: utf16 reads places as JavaScript counts" if wide(text) else ""
            raise ValueError(f"{where}: {span.contradiction(text)}{hint}")
        first = bisect.bisect_right(words, span.start, key=operator.itemgetter(1))
        end = bisect.bisect_left(words, span.end, key=operator.itemgetter(0))
        if first >= end:
            raise ValueError(
                f"{where}: expected words from {span.start} to {span.end} ({span.kind}), got "
                f"{text[span.start : span.end]!r}"
            )
        if words[first][0] < span.start or words[end - 1][1] > span.end:
            reading.widened.append(where)
        chunks.append(Chunk(span.kind, first, end))
    tags = write_tags(_apart(chunks, where, reading), len(words), "iob2")
    return [text[start:end] for start, end in words], tags


def _apart(chunks: Sequence[Chunk], where: str, reading: Reading) -> list[Chunk]:
    """Keeps entities that share no word: the longest of those that do, the first of equally long ones."""
    apart: list[Chunk] = []
    for chunk in sorted({*chunks}, key=lambda entity: (entity.start - entity.end, entity.start, entity.kind)):
        if neighbour := next(filter(chunk.overlaps, apart), None):
            if reading.overlaps == "refuse":
                raise ValueError(
                    f"{where}: entities overlap, {neighbour.kind} and {chunk.kind}, but each word has one tag; "
                    "options.overlaps=longest keeps the longest"
                )
            reading.dropped.append(where)
        else:
            apart.append(chunk)
    return sorted(apart, key=lambda entity: entity.start)
