"""Lines of words in columns (CoNLL 2003 and similar files): their separator, names of columns, comments, sentences.

All lines of a file decide how they are divided. Files of other forms are told by their first lines, and refused.
"""

import collections
import csv
import dataclasses
import re
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from official_bert.data.tabular.encodings import text_lines
from official_bert.data.tabular.tables import spelled
from official_bert.data.tagged.chunk_tags import OUTSIDE, has_prefix, has_suffix, of_scheme
from official_bert.storage.suffixes import suffix_of
from official_bert.typed_values import and_others

FILE = "file of words and tags"
DOCUMENT_START = "-DOCSTART-"
SPACES = " \t\r\n"  # others, such as a no-break space, belong to words
# Of Universal Dependencies: comments, ranges of words (1-2) and empty nodes (1.1) are no words.
CONLL_U, NEW_DOCUMENT, NO_WORD = ".conllu", "# newdoc", re.compile(r"#|\d+[-.]\d")
UNIVERSAL_COMMENT = re.compile(r"# ?(sent_id|text|newdoc|newpar|global\.columns)\b")
FIRST_UNIVERSAL_WORD, UNIVERSAL_COLUMNS = re.compile(r"1(-\d+)?\t"), 10
LANGUAGE = re.compile(r"([a-z]{2,3}(-[a-z-]+)?|simple):(?=.)")
MULTICONER = re.compile(r"# id \S+\s+domain=")  # the comment before a sentence, with as many columns as a word
BEGINNING = 20  # lines that tell the form of a file
# Forms that are no words with their tags: the beginning of one of their first lines, and the way to convert them.
OTHER_FORMS = {
    "CoNLL-2012": (
        re.compile(r"#begin document|\S+\s+\d+\s+\d+\s+\S+\s+\S+\s+\S*\*"),
        "write the brackets of its entities, (PERSON* to *), as tags of words, B-PERSON and I-PERSON",
    ),
    "PubTator": (
        re.compile(r"\w+\|[at]\|"),
        'write JSON lines, {"text": title, a space and the abstract, "label": [[start, end, type]]}, with the '
        "same places",
    ),
    "WebAnno TSV": (re.compile("#FORMAT=WebAnno"), "export it from INCEpTION as CoNLL 2002 or CoNLL 2003"),
    "XML": (re.compile(r"<\?xml|<!DOCTYPE"), "write words with tags, or texts with entities as character spans"),
}
# Names of columns, without their marks and digits: a first line with a word and a tag of these is no word. A sure name
# is enough.
SURE_WORD_NAMES = {"word", "words", "token", "tokens"}
SURE_TAG_NAMES = {
    "tag",
    "tags",
    "nertag",
    "nertags",
    "netag",
    "biotag",
    "iobtag",
    "postag",
    "label",
    "labels",
}
WORD_NAMES = SURE_WORD_NAMES | {"form", "text"}
TAG_NAMES = SURE_TAG_NAMES | {
    "ner",
    "ne",
    "entity",
    "bio",
    "iob",
    "class",
    "pos",
    "upos",
    "xpos",
    "chunk",
}
SENTENCE_NAMES = {"sentence", "sentenceid", "sentenceidx", "sentencenumber", "sentenceno", "sent", "sentid", "sentidx"}


class Line(NamedTuple):
    """A line with its number, from 1, and its columns; numbers of its sentence and its document."""

    number: int
    text: str
    cells: Sequence[str]
    sentence: int = 0
    document: int = 0


@dataclasses.dataclass(frozen=True)
class ColumnFile:
    """The lines of a file that are words, and where words and tags stand in them."""

    path: str
    lines: Sequence[Line]
    word: int
    tag: int
    width: int  # columns of most lines
    universal: bool  # CoNLL-U
    notes: Sequence[str]  # lines about what was left out


def read_columns(path: str, word: int, tag: int, separator: str, encoding: str) -> ColumnFile:
    """Reads the lines of words of a file, divided into sentences: by blank lines, or by a column that numbers them.

    `word` and `tag` are numbers of columns from 0, or backwards from -1; names of columns replace 0 and -1. Comments
    and these names are left out. Raises ValueError, naming the file, for another form.
    """
    texts = [(number, line.rstrip("\r\n")) for number, line in enumerate(text_lines(path, encoding, FILE), 1)]
    beginning = [text for _, text in texts if text.strip(SPACES)][:BEGINNING]
    _refuse_other_forms(path, beginning)
    if universal := _is_universal(path, beginning):
        texts = _universal_words(path, texts, word, tag)
    no_words = (DOCUMENT_START, "#")
    words = [text for _, text in texts if text.strip(SPACES) and not text.startswith(no_words)] or beginning
    divide = divider(separator, words, path if suffix_of(path) == ".csv" else "")
    lines: Sequence[Line] = [Line(number, text, divide(text)) for number, text in texts]
    widths = collections.Counter(map(len, map(divide, words)))
    width, sentence = widths.most_common(1)[0][0] if widths else 0, None
    if (named := _named_columns(lines)) and len(named.names) == width:
        word, tag, sentence = word or named.word, named.tag if tag == -1 else tag, named.sentence
    _refuse_whole_sentences(
        path, [line.cells for line in lines if len(line.cells) == width > max(word, tag)], word, tag
    )
    notes: list[str] = []
    lines = _in_sentences(_without_names(path, lines, word, tag, named, notes), sentence)
    if not universal:
        lines = _without_language(_without_comments(path, lines, tag, width, notes), word, notes)
    return ColumnFile(path, lines, word, tag, width, universal, notes)


def _refuse_other_forms(path: str, beginning: Sequence[str]) -> None:
    """Raises ValueError, with the way to convert the file, if a first line is one of `OTHER_FORMS`."""
    for name, (begins, way) in OTHER_FORMS.items():
        if any(map(begins.match, beginning)):
            raise ValueError(f"{path}: expected lines of words with their tags, got {name}: {way}")


def _refuse_whole_sentences(path: str, rows: Sequence[Sequence[str]], word: int, tag: int) -> None:
    """Raises ValueError if the cells of a row are a sentence and as many tags of chunks."""
    for cells in rows:
        tags = cells[tag].split()
        are_tags = all(tag == OUTSIDE or has_prefix(tag) for tag in tags)
        if " " in cells[tag] and are_tags and len(cells[word].split()) == len(tags):
            raise ValueError(
                f"{path}: expected lines of words with their tags, got whole sentences in cells: write a word and its "
                "tag a line, and a blank line behind each sentence"
            )


def _is_universal(path: str, beginning: Sequence[str]) -> bool:
    """Whether a file is CoNLL-U: by its name, or by words with numbers behind its comments or in its ten columns."""
    first = next((text for text in beginning if not text.startswith("#")), "")
    numbered = bool(FIRST_UNIVERSAL_WORD.match(first))
    return suffix_of(path) == CONLL_U or (
        numbered and (first.count("\t") == UNIVERSAL_COLUMNS - 1 or any(map(UNIVERSAL_COMMENT.match, beginning)))
    )


def _universal_words(path: str, texts: Sequence[tuple[int, str]], word: int, tag: int) -> list[tuple[int, str]]:
    """Keeps the words of CoNLL-U, and the beginnings of its documents, as other files mark them."""
    if word == 0 or tag == -1:
        raise ValueError(
            f"{path}: expected options.word_column=1 and options.tag_column=3 (or another one) for CoNLL-U, got "
            f"{word} and {tag}"
        )
    return [
        (number, DOCUMENT_START if text.startswith(NEW_DOCUMENT) else text)
        for number, text in texts
        if text.startswith(NEW_DOCUMENT) or not NO_WORD.match(text)
    ]


def _without_language(lines: Sequence[Line], word: int, notes: list[str]) -> Sequence[Line]:
    """Leaves out WikiAnn's language in front of each word: `en:Rome`."""
    words = [line.cells[word] for line in lines if word < len(line.cells)]
    begins = {match[0] if (match := LANGUAGE.match(cell)) else "" for cell in words}
    if len(begins) != 1 or not (begin := begins.pop()):
        return lines
    notes.append(f"{begin} in front of every word, left out")
    return [
        line._replace(
            cells=[cell.removeprefix(begin) if place == word else cell for place, cell in enumerate(line.cells)]
        )
        for line in lines
    ]


def divider(separator: str, lines: Sequence[str], table: str = "") -> Callable[[str], Sequence[str]]:
    """Returns the function that divides a line into columns: at the separator that is given, or one that lines tell.

    A file of CSV (`table`) is divided as such if its first line then names its columns. Tabs divide lines all of which
    have one. Raises ValueError, naming the table, for commas without names of columns.
    """
    if separator:
        return lambda text: text.split(spelled(separator))
    for delimiter in ",;" if table and lines else "":
        if _named_columns([Line(1, lines[0], _cells_of_csv(lines[0], delimiter))]):
            return lambda text: _cells_of_csv(text, delimiter)
    if table and lines and "\t" not in lines[0] and {*",;"} & {*lines[0]}:
        raise ValueError(
            f"{table}: expected columns named word (or token) and tag (or label), got {lines[0][:60]!r}; "
            f"options.separator={',' if ',' in lines[0] else ';'} reads columns by their numbers"
        )
    if all("\t" in text for text in lines):
        widths = [{len(_divided_at(tabs, text)) for text in lines} for tabs in ("\t", "\t+")]
        tabs = "\t+" if len(widths[0]) > 1 and len(widths[1]) == 1 else "\t"
        return lambda text: _divided_at(tabs, text)
    gap = re.compile(f"[{SPACES}]+")
    return lambda text: gap.split(text.strip(SPACES))


def _cells_of_csv(text: str, delimiter: str) -> Sequence[str]:
    return next(csv.reader([text], delimiter=delimiter), [])


def _divided_at(tabs: str, text: str) -> Sequence[str]:
    return re.split(tabs, text.rstrip(SPACES))


def _name_of(cell: str) -> str:
    """A name of a column in letters alone."""
    return re.sub(r"[\W\d_]", "", cell.casefold())


class Named(NamedTuple):
    """Names of columns, and the places of words, of tags and of the sentences' numbers among them."""

    line: int
    names: Sequence[str]
    word: int
    tag: int  # that of the last column and one more if none is named
    sentence: int | None


def _named_columns(lines: Sequence[Line]) -> Named | None:
    """Returns the columns that the first line names: words with tags or with sentences; None if it does not."""
    first = next((line for line in lines if line.text.strip(SPACES) and not line.text.startswith(DOCUMENT_START)), None)
    names = [*map(_name_of, first.cells)] if first else []
    words, tags, sentences = (
        [place for place, name in enumerate(names) if name in known]
        for known in (WORD_NAMES, TAG_NAMES, SENTENCE_NAMES)
    )
    if first is None or not words or not (tags or sentences):
        return None
    return Named(first.number, names, words[0], tags[-1] if tags else len(names), sentences[0] if sentences else None)


def _without_names(
    path: str, lines: Sequence[Line], word: int, tag: int, named: Named | None, notes: list[str]
) -> Sequence[Line]:
    """Leaves out lines that name the columns, wherever they stand, unless words have the same tag.

    One sure name is enough in the first line, if its tag is of no scheme.
    """
    tagged = [line for line in lines if has_column(line.cells, tag) and has_column(line.cells, word)]
    headers = {
        line.number: line.cells[tag]
        for line in tagged
        if _name_of(line.cells[word]) in WORD_NAMES and _name_of(line.cells[tag]) in TAG_NAMES
    }
    first = tagged[0] if tagged else None
    if (
        first
        and not of_scheme(first.cells[tag], ())
        and {*map(_name_of, (first.cells[word], first.cells[tag]))} & (SURE_WORD_NAMES | SURE_TAG_NAMES)
    ):
        headers[first.number] = first.cells[tag]
    elif named and named.tag == len(named.names):
        headers[named.line] = ""
    if not headers or any(line.cells[tag] in headers.values() for line in tagged if line.number not in headers):
        return lines
    notes.append(f"{path}:{min(headers)}: names of columns, left out{and_others(len(headers) - 1)}")
    return [line for line in lines if line.number not in headers]


def _in_sentences(lines: Sequence[Line], column: int | None) -> Sequence[Line]:
    """Returns the lines with words, numbered by sentences: `column` numbers these, in each line or the first ones, or
    other lines stand between them.
    """
    words: list[Line] = []
    sentence, document, current = 0, 0, ""
    for line, text, cells, _, _ in lines:
        begins_document = text.startswith(DOCUMENT_START)
        is_word = bool("".join(cells).strip(SPACES)) and not begins_document
        number = cells[column].strip() if is_word and column is not None and column < len(cells) else ""
        sentence += not is_word or number not in ("", current)
        document += begins_document
        current = number or current
        if is_word:
            words.append(Line(line, text, cells, sentence, document))
    return words


def _without_comments(path: str, lines: Sequence[Line], tag: int, width: int, notes: list[str]) -> Sequence[Line]:
    """Leaves out comments, and sentences that consist of them."""
    words = [line for line in lines if not line.text.startswith("#")]
    tags = {line.cells[tag].strip(SPACES) for line in words if has_column(line.cells, tag)}
    widths: dict[int, set[int]] = {}  # by sentence
    for line in words:
        widths.setdefault(line.sentence, set()).add(len(line.cells))
    kept: list[Line] = []
    comments = []
    for line in lines:
        is_first = not kept or kept[-1].sentence != line.sentence
        before = is_first and (line.text.startswith("##") or MULTICONER.match(line.text))
        odd = before or len(line.cells) not in widths.get(line.sentence, {width})
        if line.text.startswith("#") and odd and not of_scheme(line.cells[-1].strip(SPACES), tags):
            comments.append(line.number)
        else:
            kept.append(line)
    if comments:
        notes.append(f"{path}: {len(comments)} comment lines left out, the first in line {comments[0]}")
    return kept


def has_column(cells: Sequence[str], tag: int) -> bool:
    """Returns whether a line has a column `tag` beside its word."""
    return len(cells) > 1 and -len(cells) <= tag < len(cells)


def is_tagged(lines: Iterable[str], tag_column: int = -1, separator: str = "", labels: Sequence[str] = ()) -> bool:
    """Returns whether lines are words with tags: several lines of equally many columns, each with a chunk tag or one of
    `labels`.
    """
    widths = []
    for line in lines:
        if line.strip(SPACES) and not line.startswith(DOCUMENT_START):
            cells = divider(separator, [line])(line)
            tag = cells[tag_column].strip(SPACES) if has_column(cells, tag_column) else ""
            if not (tag in (OUTSIDE, *labels) or has_prefix(tag) or has_suffix(tag)):
                return False
            widths.append(len(cells))
    return len(widths) > 1 and len(set(widths)) == 1
