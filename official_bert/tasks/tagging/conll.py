"""Words with tags in columns (CoNLL 2003 and similar files), or in rows."""

import dataclasses
import itertools
import operator
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from official_bert.data.rows import Rows, Source, place
from official_bert.data.tabular.tables import ANSWER, rows_of, spelled, unconfirmed
from official_bert.data.tagged import brat
from official_bert.data.tagged.chunk_tags import (
    HINT,
    NOT_LABELLED,
    OUTSIDE,
    check_tags,
    has_prefix,
    with_prefixes,
    with_types,
)
from official_bert.data.tagged.column_files import (
    DOCUMENT_START,
    SPACES,
    ColumnFile,
    has_column,
    read_columns,
)
from official_bert.data.tagged.span_forms import WORD_KEYS, Reading, has_spans, records, span_rows, tags_of
from official_bert.data.tagged.spans import of_utf16
from official_bert.storage.files import written_whole
from official_bert.tasks.tagging.options import Options
from official_bert.typed_values import and_others

TAG_KEYS = ("ner_tags", "tags")  # of rows
NO_TAG = "_"  # of CoNLL-U: the column is not specified
NO_NUMBER = -100  # of a row's tag: the word is not labelled


@dataclasses.dataclass(frozen=True)
class Sentence:
    """Words, their tags (none if they were not read), the line of the first word, and the document's number (0: before
    any -DOCSTART-).
    """

    words: tuple[str, ...]
    tags: tuple[str, ...]
    line: int  # of rows in memory: the row, from 0
    document: int
    lines: tuple[int, ...] = ()  # of each word; of rows in memory: none


Found = tuple[Sentence, str]  # with what is wrong if it has no words, or a blank one


@dataclasses.dataclass(frozen=True)
class SentenceFile:
    """The sentences of a file, or of rows in its place."""

    source: Source
    sentences: Sequence[Sentence]
    notes: Sequence[str] = ()  # lines about what was left out

    def rows(self, keep: np.ndarray) -> "SentenceFile":
        """Returns only the sentences with these numbers."""
        return dataclasses.replace(self, sentences=[self.sentences[number] for number in keep])


def opened(source: Source | ColumnFile, options: Options) -> Rows | ColumnFile:
    """Returns the rows of a file, or else its lines of words in columns."""
    if isinstance(source, (Rows, ColumnFile)):
        return source
    rows = span_rows(source, options.encoding) or rows_of(source, options.encoding)
    if isinstance(rows, Rows):
        return rows
    return read_columns(source, options.word_column, options.tag_column, options.separator, options.encoding)


def read_sentences(file: Source | ColumnFile, options: Options | None = None, with_tags: bool = True) -> SentenceFile:
    """Reads the sentences of a file: lines of words in columns (`data/tagged/column_files.py`), or texts with entities
    as character spans (`data/tagged/span_forms.py`).

    A BOM and CRLF are accepted. Rows in memory, of JSON and of Parquet are sentences: `tokens` (or `words`) with
    `ner_tags` (or `tags`), of which -100 is no label. The scheme of the tags is decided by all of them.

    Raises ValueError if the file is missing, not UTF-8, of another form or has no sentence, and, naming the line, for
    another number of columns, a tag that is no chunk tag, tags of several schemes, and, unless `options.empty_text`
    says otherwise, for a sentence without words or a blank word.
    """
    options = options or Options()
    file, reading, notes = opened(file, options), Reading(options.overlaps), list[str]()
    source: Source
    if isinstance(file, ColumnFile):
        source, found = file.path, _of_lines(file, with_tags, options.empty_text != "refuse")
        notes += file.notes
    else:
        source, found = file, (_of_spans if has_spans(file) else _of_rows)(file, with_tags, options, reading)
    every = list(found)
    sentences = [sentence for sentence, wrong in every if not wrong or options.empty_text == "keep"]
    blank = [wrong for _, wrong in every if wrong]
    notes += reading.notes(source)
    if options.scheme != "plain":
        sentences = _in_one_spelling(source, sentences, [sentence for sentence, _ in every])
    if not sentences:
        raise ValueError("; ".join([f"{source}: no sentence in this file", *notes]))
    if blank:
        notes.append(
            f"{blank[0]}; {'left out' if options.empty_text == 'skip' else 'kept'}{and_others(len(blank) - 1)}"
        )
    return SentenceFile(source, sentences, notes)


def _in_one_spelling(source: Source, sentences: list[Sentence], every: Iterable[Sentence]) -> list[Sentence]:
    """Spells PER-B as B-PER if all tags are written so, and letters alone with the type that they continue.

    Raises ValueError, naming the place, for tags of no scheme or of several in `every` sentence.
    """
    first: dict[str, str] = {}  # the place of each tag's first word
    for sentence in every:
        for number, tag in enumerate(sentence.tags):
            if tag not in first:
                first[tag] = tag_place(source, sentence, number)
    if prefixed := with_prefixes(first):
        first = {prefixed[tag]: where for tag, where in first.items()}
        sentences = [
            dataclasses.replace(sentence, tags=tuple(map(prefixed.__getitem__, sentence.tags)))
            for sentence in sentences
        ]
    check_tags(first)
    if any(map(has_prefix, first)) and any(len(tag) == 1 and tag != OUTSIDE for tag in first):
        sentences = [_spelled_out(source, sentence) for sentence in sentences]
    return sentences


def _of_spans(rows: Rows, with_tags: bool, options: Options, reading: Reading) -> Iterator[Found]:
    """Yields texts with entities as character spans, each text as a sentence."""
    in_utf16 = options.places == "utf16"
    if in_utf16 and any(map(brat.is_row, rows.values)):
        raise ValueError(
            f"{rows}: config.options.places: utf16: expected none beside files of brat, which count characters"
        )
    for number, record in records(rows):
        if record is None:
            reading.rejected += 1
            continue
        where, (text, spans) = place(rows, number), record
        if spans is None and with_tags:
            reading.unlabelled += 1
            continue
        spans = of_utf16(text, spans or [], where) if in_utf16 else spans or []
        words, tags = tags_of(text, spans if with_tags else (), where, reading)
        if not words and options.empty_text == "refuse":
            raise ValueError(
                f"{where}: expected text, got {text[:60]!r}; options.empty_text=skip or keep reads rows without words"
            )
        wrong = "" if words else f"{where}: expected words, got {text[:60]!r}"
        yield Sentence(tuple(words), tuple(tags) if with_tags else (), number, 0), wrong


def _of_rows(rows: Rows, with_tags: bool, options: Options, reading: Reading) -> Iterator[Found]:
    """Yields rows of words with their tags."""
    rejected = unconfirmed([row.get(ANSWER) for row in rows.values]) if with_tags else set()
    reading.rejected = len(rejected)
    for number, row in enumerate(rows.values):
        if number in rejected:
            continue
        where = place(rows, number)
        words: Any
        tags: Any
        words, tags = (next((row[key] for key in keys if key in row), None) for keys in (WORD_KEYS, TAG_KEYS))
        wrong = _check_words(words, where, options.empty_text == "refuse")
        if not with_tags or (wrong and options.empty_text == "skip"):
            tags = []
        elif not _is_list(tags) or len(tags) != len(words):
            raise ValueError(f"{where}: expected {len(words)} tags under {' or '.join(TAG_KEYS)}, got {str(tags)[:60]}")
        yield Sentence(tuple(words), tuple(_named(tag, where, options.labels) for tag in tags), number, 0), wrong


def _check_words(words: Any, where: str, refuses: bool) -> str:
    """Returns what is wrong with the words of a row if there are none or blank ones, unless it `refuses` them."""
    are_texts = _is_list(words) and all(isinstance(word, str) for word in words)
    if not are_texts or (refuses and not (words and all(words))):
        is_empty = isinstance(words, list) and refuses
        hint = "; options.empty_text=skip or keep reads rows without words" if is_empty else ""
        raise ValueError(
            f"{where}: expected a list of words under {' or '.join(WORD_KEYS)}, got {str(words)[:60]}{hint}"
        )
    has_words = refuses or (words and all(map(str.strip, words)))
    return "" if has_words else f"{where}: expected words, got {str(words)[:60]}"


def _is_list(values: Any) -> bool:
    return isinstance(values, Sequence) and not isinstance(values, str)


def _of_lines(file: ColumnFile, with_tags: bool, may_be_blank: bool) -> Iterator[Found]:
    """Yields the lines of each sentence."""
    for _, group in itertools.groupby(file.lines, operator.attrgetter("sentence")):
        lines = list(group)
        words, tags = [], []
        for number, _, cells, _, _ in lines:
            where = f"{file.path}:{number}"
            words.append(_cell(cells, file.word, "word", where, may_be_blank))
            if with_tags:
                tags.append(_tag_of(cells, file, where))
            if len(cells) > file.width or (with_tags and len(cells) < file.width):
                raise ValueError(
                    f"{where}: expected {file.width} columns, as in most lines, got {len(cells)}: "
                    f"{' '.join(cells)[:80]!r}"
                )
        numbers = tuple(line.number for line in lines)
        all_filled = all(word.strip(SPACES) for word in words)
        wrong = "" if all_filled else f"{file.path}:{numbers[0]}: expected words, got a blank one"
        yield Sentence(tuple(words), tuple(tags), numbers[0], lines[0].document, numbers), wrong


def _tag_of(cells: Sequence[str], file: ColumnFile, where: str) -> str:
    """Returns the tag of a line. Raises ValueError, naming the line, if it has none."""
    tag = _cell(cells, file.tag, "tag", where)
    if (file.word - file.tag) % len(cells) == 0:
        raise ValueError(
            f"{where}: expected words and tags in two columns, got {file.word} and {file.tag}, "
            f"which are one of the line's {len(cells)}: {tag[:80]!r}"
        )
    if tag == NO_TAG and file.universal:
        raise ValueError(
            f"{where}: expected a tag in column {file.tag}, got {NO_TAG!r}, with which CoNLL-U leaves it open"
        )
    return tag


def _spelled_out(path: Source, sentence: Sentence) -> Sentence:
    """Gives letters alone beside tags with types the type that they continue. Raises ValueError, naming the line, for
    one without.
    """
    tags = with_types(sentence.tags)
    if None in tags:
        number = tags.index(None)
        raise ValueError(
            f"{tag_place(path, sentence, number)}: expected a tag with a type, as others here, or a letter that "
            f"continues an entity, got {sentence.tags[number]!r}"
        )
    return dataclasses.replace(sentence, tags=tuple(map(str, tags)))


def tag_place(path: Source, sentence: Sentence, number: int) -> str:
    """Returns the place of a word of a sentence, for messages."""
    return place(path, sentence.lines[number] if sentence.lines else sentence.line)


def _named(tag: Any, where: str, names: Sequence[str]) -> str:
    """Returns a row's tag, or the name of a tag that is given as a number, as the `datasets` library stores it."""
    if isinstance(tag, str) and tag:
        return tag
    if type(tag) is not bool and tag == NO_NUMBER:
        return NOT_LABELLED
    if type(tag) is not int and not isinstance(tag, np.integer):
        raise ValueError(f"{where}: expected tags that are texts or whole numbers, got {tag!r}")
    if not names:
        raise ValueError(
            f"{where}: expected options.labels, the names of the tags from 0 on, beside tags that are numbers, got "
            f"{tag}"
        )
    if not 0 <= tag < len(names):
        raise ValueError(
            f"{where}: expected the number of one of the {len(names)} tags of options.labels, from 0, got {tag}"
        )
    return names[int(tag)]


def has_tags(file: Rows | ColumnFile) -> bool:
    """Returns whether a file has tags.

    The first line with a word has a column for its tag, or the first row has its tags. In CoNLL-U, any line has a tag.
    Of texts, one has entities, and people labelled all.
    """
    if isinstance(file, ColumnFile):
        rows = (line.cells for line in file.lines)
        if file.universal:
            return any(has_column(cells, file.tag) and cells[file.tag].strip(SPACES) != NO_TAG for cells in rows)
        return has_column(next(rows, []), file.tag)
    if has_spans(file):
        labelled = [record[1] for _, record in records(file) if record]
        return any(labelled) and None not in labelled
    return any(key in file.values[0] for key in TAG_KEYS)


def _cell(cells: Sequence[str], column: int, name: str, where: str, may_be_blank: bool = False) -> str:
    """Returns one column of a line, as it is if it is blank and may be so; a line of a single column has no tag."""
    if not -len(cells) <= column < len(cells) or (name == "tag" and len(cells) < 2):
        raise ValueError(
            f"{where}: column {column} ({name}) is missing, the line has {len(cells)}: {' '.join(cells)[:80]!r}"
        )
    if not (cell := cells[column].strip(SPACES)) and not may_be_blank:
        raise ValueError(f"{where}: column {column} ({name}) is empty: {' '.join(cells)[:80]!r}")
    return cell or cells[column]


def write_columns(
    path: str, sentences: Iterable[Sentence], predicted: Iterable[Sequence[str]], separator: str = ""
) -> None:
    """Writes words, gold tags if there are any, and predicted tags for conlleval. Documents keep their -DOCSTART-.

    A word or a tag of a row may hold line ends, tabs or the separator (by default also spaces): each is written as `_`,
    so that a word stays a line, which has as many columns when it is read again.
    """
    separator = spelled(separator)
    no_cell = re.compile(f"[\r\n\t]|{re.escape(separator)}" if separator else f"[{SPACES}]")
    separator = separator or "\t"
    with written_whole(path) as file:
        before = 0
        for sentence, tags in zip(sentences, predicted, strict=True):
            if sentence.document != before:
                file.write(f"{separator.join([DOCUMENT_START] + [OUTSIDE] * (1 + bool(sentence.tags)))}\n\n")
            before = sentence.document
            gold = [tag or str(NO_NUMBER) for tag in sentence.tags]
            cells = [sentence.words, gold, tags] if gold else [sentence.words, tags]
            file.writelines(
                separator.join(no_cell.sub("_", cell) for cell in row) + "\n" for row in zip(*cells, strict=True)
            )
            file.write("\n")


def read_to_tag(source: Source, options: Options, warn: Callable[[str], None]) -> SentenceFile:
    """Reads sentences to tag: with their gold tags, if the tag column has such for each word, else the words alone."""
    file = opened(source, options)
    if not has_tags(file):
        return read_sentences(file, options, with_tags=False)
    try:
        return read_sentences(file, options)
    except ValueError as error:
        sentences = read_sentences(file, options, with_tags=False)
        warn(f"{str(error).removesuffix(HINT)}; this file is read without gold tags")
        return sentences
