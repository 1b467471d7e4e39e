"""Words with tags in columns (CoNLL 2003 and similar files), the schemes of chunk tags, and legal sequences of tags."""

import dataclasses
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Literal

import numpy as np

from official_bert.data.labelled_texts import check_forms
from official_bert.data.tables import Rows, Source, place, spelled
from official_bert.files import read_lines, written_whole

Scheme = Literal["iob1", "iob2", "iobes", "plain"]  # plain: each word's tag stands for itself, as a part of speech does
FILE = "file of words and tags"
OUTSIDE = "O"
DOCUMENT_START = "-DOCSTART-"
WORD_KEYS, TAG_KEYS = ("tokens", "words"), ("ner_tags", "tags")  # of rows
SPACES = " \t\r\n"  # others, such as a no-break space, belong to words
# Of Universal Dependencies: comments, ranges of words (1-2) and empty nodes (1.1) are no words.
CONLL_U, NEW_DOCUMENT, NO_WORD = ".conllu", "# newdoc", re.compile(r"#|\d+[-.]\d")
NO_TAG = "_"  # of CoNLL-U: the column is not specified
# B begins a chunk, I continues it, E ends it, S is a chunk of one word; L and U are BILOU's names of E and S.
PREFIXES = {"B": "B", "I": "I", "E": "E", "L": "E", "S": "S", "U": "S"}


@dataclasses.dataclass(frozen=True)
class Columns:
    """The columns of a file's lines, counted from 0, or backwards from -1."""

    word: int = 0
    tag: int = -1
    separator: str = ""  # any run of spaces and tabs
    plain: bool = False  # tags of any form
    names: tuple[str, ...] = ()  # of tags that rows give as numbers

    def split(self, line: str) -> list[str]:
        """Splits a line, without its end, into columns."""
        return line.split(spelled(self.separator)) if self.separator else re.split(f"[{SPACES}]+", line.strip(SPACES))


@dataclasses.dataclass(frozen=True)
class Sentence:
    """Words, their tags (none if they were not read), the line of the first word, and the document's number (0: before any -DOCSTART-)."""

    words: tuple[str, ...]
    tags: tuple[str, ...]
    line: int  # of rows in memory: the row, from 0
    document: int


@dataclasses.dataclass(frozen=True)
class Chunk:
    """A run of words of one type, the end excluded."""

    kind: str
    start: int
    end: int


def read_sentences(path: Source, columns: Columns | None = None, with_tags: bool = True) -> list[Sentence]:
    """Reads the sentences of a file, separated by blank lines; a line that begins with -DOCSTART- begins a document.

    A BOM and CRLF are accepted. Of CoNLL-U (`.conllu`), comments, ranges of words and empty nodes are no words, and `# newdoc` begins a
    document. Rows in memory are sentences: `tokens` (or `words`) with `ner_tags` (or `tags`).

    Raises ValueError if the file is missing, not UTF-8 or has no sentence, and, naming the line, for a missing column or a tag that is
    no chunk tag.
    """
    if isinstance(path, Rows):
        return [_sentence(path, number, with_tags, columns or Columns()) for number in range(len(path.values))]
    columns = columns or Columns()
    sentences: list[Sentence] = []
    words: list[str] = []
    tags: list[str] = []
    first, document = 1, 0
    for number, line in [*_lines(path, columns), (0, "")]:
        if line.strip(SPACES) and not line.startswith(DOCUMENT_START):
            cells = columns.split(line)
            words.append(_cell(cells, columns.word, "word", f"{path}:{number}"))
            if with_tags:
                tag = _cell(cells, columns.tag, "tag", f"{path}:{number}")
                if (columns.word - columns.tag) % len(cells) == 0:
                    raise ValueError(f"{path}:{number}: expected words and tags in two columns, got {columns.word} and {columns.tag}, "
                                     f"which are one of the line's {len(cells)}: {tag[:80]!r}")
                if tag == NO_TAG and path.endswith(CONLL_U):
                    raise ValueError(f"{path}:{number}: expected a tag in column {columns.tag}, got {NO_TAG!r}, with which CoNLL-U leaves "
                                     "it open")
                tags.append(_checked_tag(tag, f"{path}:{number}", columns.plain))
            continue
        if words:
            sentences.append(Sentence(tuple(words), tuple(tags), first, document))
            words, tags = [], []
        document += line.startswith(DOCUMENT_START)
        first = number + 1
    if not sentences:
        raise ValueError(f"{path}: no sentence in this file")
    return sentences


def _lines(path: str, columns: Columns) -> Iterator[tuple[int, str]]:
    """Yields the lines that are words, ends of sentences or starts of documents, with their numbers."""
    universal = path.endswith(CONLL_U)
    if universal and (columns.word == 0 or columns.tag == -1):
        raise ValueError(f"{path}: expected options.word_column=1 and options.tag_column=3 (or another one) for CoNLL-U, got "
                         f"{columns.word} and {columns.tag}")
    for number, line in enumerate(read_lines(path, FILE), 1):
        if universal and line.startswith(NEW_DOCUMENT):
            yield number, DOCUMENT_START
        elif not (universal and NO_WORD.match(line)):
            yield number, line


def _sentence(rows: Rows, number: int, with_tags: bool, columns: Columns) -> Sentence:
    """Converts a row to a sentence."""
    where, row = place(rows, number), rows.values[number]
    words, tags = (next((row[key] for key in keys if key in row), None) for keys in (WORD_KEYS, TAG_KEYS))
    if not isinstance(words, Sequence) or isinstance(words, str) or not words or not all(isinstance(word, str) and word for word in words):
        raise ValueError(f"{where}: expected a list of words under {' or '.join(WORD_KEYS)}, got {str(words)[:60]}")
    if not with_tags:
        return Sentence(tuple(words), (), number, 0)
    if not isinstance(tags, Sequence) or isinstance(tags, str) or len(tags) != len(words):
        raise ValueError(f"{where}: expected {len(words)} tags under {' or '.join(TAG_KEYS)}, got {str(tags)[:60]}")
    return Sentence(tuple(words), tuple(_checked_tag(_named(tag, where, columns.names), where, columns.plain) for tag in tags), number, 0)


def _named(tag: Any, where: str, names: Sequence[str]) -> str:
    """Returns a row's tag, or the name of a tag that is given as a number, as the `datasets` library stores it."""
    if isinstance(tag, str) and tag:
        return tag
    if type(tag) is not int and not isinstance(tag, np.integer):
        raise ValueError(f"{where}: expected tags that are texts or whole numbers, got {tag!r}")
    if not names:
        raise ValueError(f"{where}: expected options.labels, the names of the tags from 0 on, beside tags that are numbers, got {tag}")
    if not 0 <= tag < len(names):
        raise ValueError(f"{where}: expected the number of one of the {len(names)} tags of options.labels, from 0, got {tag}")
    return names[int(tag)]


def has_tags(path: Source, columns: Columns) -> bool:
    """Whether the first line with a word also has a column for its tag, or the first row its tags; of CoNLL-U, any line a tag."""
    if isinstance(path, Rows):
        return any(key in path.values[0] for key in TAG_KEYS)
    lines = (line for _, line in _lines(path, columns) if line.strip(SPACES) and not line.startswith(DOCUMENT_START))
    rows = map(columns.split, lines)
    if path.endswith(CONLL_U):
        return any(_has_column(cells, columns.tag) and cells[columns.tag].strip(SPACES) != NO_TAG for cells in rows)
    return _has_column(next(rows, []), columns.tag)


def _has_column(cells: Sequence[str], tag: int) -> bool:
    """Whether a line has a column `tag` beside its word."""
    return len(cells) > 1 and -len(cells) <= tag < len(cells)


def is_tagged(lines: Iterable[str], columns: Columns, labels: Sequence[str] = ()) -> bool:
    """Whether lines are words with tags: several lines of as many columns, each with one of `labels`, or a chunk tag, as its tag."""
    widths = []
    for line in lines:
        if line.strip(SPACES) and not line.startswith(DOCUMENT_START):
            cells = columns.split(line)
            if not _has_column(cells, columns.tag) or not ((tag := cells[columns.tag].strip(SPACES)) in labels or _is_chunk_tag(tag)):
                return False
            widths.append(len(cells))
    return len(widths) > 1 and len(set(widths)) == 1


def _cell(cells: Sequence[str], column: int, name: str, where: str) -> str:
    """Returns one column of a line; a line of a single column has no tag."""
    if not -len(cells) <= column < len(cells) or (name == "tag" and len(cells) < 2):
        raise ValueError(f"{where}: column {column} ({name}) is missing, the line has {len(cells)}: {' '.join(cells)[:80]!r}")
    if not (cell := cells[column].strip(SPACES)):
        raise ValueError(f"{where}: column {column} ({name}) is empty: {' '.join(cells)[:80]!r}")
    return cell


def _checked_tag(tag: str, where: str, plain: bool) -> str:
    if not (plain or _is_chunk_tag(tag)):
        raise ValueError(f"{where}: expected a tag such as O, B-PER or I-PER, got {tag!r}")
    return tag


def _is_chunk_tag(tag: str) -> bool:
    prefix, dash, kind = tag.partition("-")
    return tag == OUTSIDE or bool(prefix in PREFIXES and dash and kind)


def write_columns(path: str, sentences: Iterable[Sentence], predicted: Iterable[Sequence[str]], separator: str = "") -> None:
    """Writes words, gold tags if there are any, and predicted tags for conlleval. Documents keep their -DOCSTART-.

    A word or a tag of a row may hold line ends, tabs or the separator (by default also spaces): each is written as `_`, so that a word
    stays a line, which has as many columns when it is read again.
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
            cells = [sentence.words, sentence.tags, tags] if sentence.tags else [sentence.words, tags]
            file.writelines(separator.join(no_cell.sub("_", cell) for cell in row) + "\n" for row in zip(*cells, strict=True))
            file.write("\n")


def read_chunks(tags: Sequence[str]) -> list[Chunk]:
    """Reads the chunks of a sentence's tags in any scheme, legal or not, as conlleval does.

    A chunk begins at B and S, at I and E after O or another type, and after E and S.
    """
    chunks: list[Chunk] = []
    begin, kind, ended = 0, "", True
    for index, tag in enumerate([*tags, OUTSIDE]):
        letter, _, this = tag.partition("-")
        prefix = PREFIXES.get(letter, OUTSIDE)
        continues = prefix in "IE" and not ended and this == kind
        if kind and not continues:
            chunks.append(Chunk(kind, begin, index))
            kind = ""
        if prefix != OUTSIDE and not continues:
            begin, kind = index, this
        ended = prefix in "ESO"
    return chunks


def write_tags(chunks: Iterable[Chunk], length: int, scheme: Scheme) -> list[str]:
    """Returns the tags of a sentence with these chunks (IOB1 has B only between two neighbours of one type)."""
    tags = [OUTSIDE] * length
    before: Chunk | None = None
    for chunk in chunks:
        size = chunk.end - chunk.start
        letters = ["B"] + ["I"] * (size - 1)
        if scheme == "iob1" and not (before and before.end == chunk.start and before.kind == chunk.kind):
            letters[0] = "I"
        if scheme == "iobes":
            letters = ["S"] if size == 1 else [*letters[:-1], "E"]
        tags[chunk.start:chunk.end] = [f"{letter}-{chunk.kind}" for letter in letters]
        before = chunk
    return tags


def convert_tags(tags: Sequence[str], scheme: Scheme) -> list[str]:
    """Converts tags to another scheme with the same chunks."""
    return list(tags) if scheme == "plain" else write_tags(read_chunks(tags), len(tags), scheme)


def label_list(kinds: Iterable[str], scheme: Scheme) -> list[str]:
    """Returns O and then every tag of the scheme for the sorted types; plain tags are their own types.

    Raises ValueError for types that look alike, see `check_forms`.
    """
    kinds = set(kinds)
    check_forms(kinds, "tags")
    if scheme == "plain":
        return sorted(kinds)
    letters = {"iob1": "BI", "iob2": "BI", "iobes": "BIES"}[scheme]
    return [OUTSIDE, *(f"{letter}-{kind}" for kind in sorted(kinds) for letter in letters)]


def legal_transitions(labels: Sequence[str], scheme: Scheme) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """bool [T,T] (from the row's tag to the column's), [T] (may begin a sentence), [T] (may end one)."""
    between = np.array([[_may_follow(before, after, scheme) for after in labels] for before in labels])
    start = np.array([_may_follow(OUTSIDE, label, scheme) for label in labels])
    end = np.array([_may_follow(label, OUTSIDE, scheme) for label in labels])
    return between, start, end


def _may_follow(before: str, after: str, scheme: Scheme) -> bool:
    if scheme == "plain":
        return True
    letter, _, kind = before.partition("-")
    this, _, this_kind = after.partition("-")
    if scheme == "iob1":  # B only between two chunks of one type
        return this != "B" or kind == this_kind
    if scheme == "iob2":
        return this != "I" or kind == this_kind
    inside = letter in ("B", "I")  # a chunk is open
    return this_kind == kind and this in ("I", "E") if inside else this not in ("I", "E")


def chunk_scores(gold: Iterable[Sequence[str]], predicted: Iterable[Sequence[str]]) -> dict[str, float]:
    """`precision`, `recall`, `f1` of whole chunks in percent, as conlleval counts them, `f1_TYPE` of each type, `tag_accuracy`.

    Both are sentences of tags, in any schemes.
    """
    counts: dict[str, np.ndarray] = {}  # by type: right, predicted, gold
    same = total = 0
    for tags, found in zip(gold, predicted, strict=True):
        wanted, given = set(read_chunks(tags)), set(read_chunks(found))
        for column, chunks in enumerate((wanted & given, given, wanted)):
            for chunk in chunks:
                counts.setdefault(chunk.kind, np.zeros(3, int))[column] += 1
        same += sum(one == other for one, other in zip(tags, found, strict=True))
        total += len(tags)
    right, given_total, gold_total = sum(counts.values(), np.zeros(3, int))
    scores = {"precision": _percent(right, given_total), "recall": _percent(right, gold_total),
              "f1": _percent(2 * right, given_total + gold_total), "tag_accuracy": _percent(same, total)}
    return scores | {f"f1_{kind}": _percent(2 * part[0], part[1] + part[2]) for kind, part in sorted(counts.items())}


def plain_scores(gold: Iterable[Sequence[str]], predicted: Iterable[Sequence[str]]) -> dict[str, float]:
    """`tag_accuracy` and `macro_f1` (the mean over the tags in gold or predicted) of plain tags, in percent."""
    counts: dict[str, np.ndarray] = {}  # by tag: right, predicted, gold
    for tags, found in zip(gold, predicted, strict=True):
        for one, other in zip(tags, found, strict=True):
            counts.setdefault(one, np.zeros(3, int))[2] += 1
            counts.setdefault(other, np.zeros(3, int))[1] += 1
            counts[one][0] += one == other
    total = sum(counts.values(), np.zeros(3, int))
    f1 = [_percent(2 * right, given + wanted) for right, given, wanted in counts.values()]
    return {"tag_accuracy": _percent(total[0], total[2]), "macro_f1": sum(f1) / max(len(f1), 1)}


def read_to_tag(path: Source, columns: Columns, warn: Callable[[str], None]) -> list[Sentence]:
    """Reads sentences to tag: with their gold tags, if the tag column has such for each word, else the words alone."""
    if not has_tags(path, columns):
        return read_sentences(path, columns, with_tags=False)
    try:
        return read_sentences(path, columns)
    except ValueError as error:
        sentences = read_sentences(path, columns, with_tags=False)
        warn(f"{error}; this file is read without gold tags")
        return sentences


def _percent(part: int, whole: int) -> float:
    return 100.0 * float(part) / max(float(whole), 1.0)
