"""Reads raw text as documents and splits them into sentences. Formats: WikiExtractor folders, JSON lines, tables, plain
text, hard-wrapped books, and text that has a blank line between documents already.
"""

import dataclasses
import html
import itertools
import re
from collections.abc import Iterable, Iterator
from typing import Literal, get_args

from official_bert import json_values
from official_bert.data.pretraining.yield_report import YieldReport
from official_bert.data.raw_text import containers, running_text
from official_bert.data.raw_text.pdf_text import COUNTING, WordRepair
from official_bert.data.raw_text.quality import QualityLimits
from official_bert.data.raw_text.scripts import WordCounter
from official_bert.data.raw_text.sentence_splitting import split_sentences
from official_bert.data.raw_text.tables_as_text import foreign_form
from official_bert.data.tabular.encodings import other_encoding
from official_bert.storage.files import open_bytes

Format = Literal["auto", "wikiextractor", "jsonl", "table", "text", "book", "documents"]
RAW = (
    (rb"(\xef\xbb\xbf)?\s*<doc [^>]*>", "WikiExtractor's output"),
    (rb'(\xef\xbb\xbf)?\s*\{\s*"[^"]{1,100}"\s*:', "JSON lines"),
    (rb"\x1f\x8b|BZh[1-9]1AY|\xfd7zXZ\0|\x28\xb5\x2f\xfd", "a compressed file"),
    (rb"PAR1|ARROW1", "a table"),
)
DUMPS = (
    (rb'(\xef\xbb\xbf)?\s*\[\s*\{\s*"', "a JSON array; jq -c '.[]' makes JSON lines of it"),
    (rb"%PDF-", "a PDF; pdftotext makes text of it, whose divided words --pdf_text joins"),
    (
        rb"(\xef\xbb\xbf)?\s*(<\?xml[^>]*>\s*)?<mediawiki\b",
        "an XML dump of MediaWiki; WikiExtractor makes articles of it",
    ),
)
NO_TEXT = ((rb"PK\x03\x04", "a zip archive"), (rb"\xff\xfe|\xfe\xff", "UTF-16"), *DUMPS)
HEAD = 1 << 12  # bytes that tell it
DUMP_LINES = 5
NOT_UTF8 = "not valid UTF-8"
FORMATS = get_args(Format)
SAMPLE_LINES = 400  # read to detect the format of a file
MOST_CHARACTERS = 1 << 24  # of one document: a file of any size is read in bounded memory
TITLES, UNENDED = "titles of articles", "an article without its end (</doc>)"
SURROGATE = "a lone surrogate, which is not a character"
_LICENCE_MARK = re.compile(r"\s*\*\*\*\s*(START|END) OF (?:THE|THIS) PROJECT GUTENBERG E(?:BOOK|TEXT)\b", re.IGNORECASE)
_LINES_OF_A_MARK = 5  # a long title is wrapped; *** ends it
_PREFACE = 400  # lines in which the first mark is looked for
LICENCE = "Project Gutenberg's licence"
# With a semicolon: html.unescape alone would read "&copy=" in an address as a sign too.
_ENTITY = re.compile(r"&(?:#\d{1,7}|#[xX][0-9a-fA-F]{1,6}|[A-Za-z]\w{1,31});")
_NAMES = (
    "abbr|bdi|bdo|big|blockquote|caption|categorytree|ce|cite|center|chem|code|dd|del|dfn|dl|dt|em|font|gallery"
    "|graph|h[1-6]|hiero|"
    "imagemap|includeonly|indicator|inputbox|ins|kbd|mapframe|maplink|math|noinclude|nowiki|ol|onlyinclude|phonos"
    "|poem|pre|rb|ref|"
    "references|rp|rt|rtc|ruby|samp|score|section|small|source|span|strike|strong|sub|sup|syntaxhighlight|templatedata|"
    "templatestyles|timeline|tt|ul|var|wbr"
)
_BREAKS = "br|div|hr|li|p|table|td|th|tr"  # words on both sides of these are two
_COMMENT = re.compile("<!--.*?-->")  # it may hold anything
# Names of one letter only without attributes: "x <b and b> c" is mathematics.
_TAG = re.compile(rf"</?(?:{_NAMES})(?:\s[^<>]*)?/?>|</?[abiqsu]\s*/?>", re.IGNORECASE)
_BREAK = re.compile(rf"</?(?:{_BREAKS})(?:\s[^<>]*)?/?>", re.IGNORECASE)
ENTITIES, TAGS = "entities of HTML replaced by their characters", "left-over tags removed"


@dataclasses.dataclass
class Document:
    """A document's paragraphs in order, with its title if it is an article; `headings`: some paragraphs may be
    headings.
    """

    paragraphs: list[str]
    title: str = ""
    headings: bool = False


def detect_format(lines: Iterable[str]) -> Format:
    """Returns the format of a file, detected from its first lines; in hard-wrapped books, most lines end in
    mid-sentence.
    """
    sample = [line for line in lines if line.strip()]
    if not sample:
        return "text"
    if sample[0].startswith("<doc "):
        return "wikiextractor"
    if sample[0].lstrip().startswith("{"):
        return "jsonl"
    ends = sum(map(running_text.ends_as_a_sentence, sample)) / len(sample)
    lengths = sorted(map(len, sample))
    wrapped = len(sample) >= 10 and lengths[len(sample) // 2] >= 40 and lengths[len(sample) * 95 // 100] <= 100
    return "book" if wrapped and ends < 0.6 else "text"


def check_prepared(path: str, head: bytes) -> None:
    """Raises ValueError if a file that begins with `head` is no plain text, or is raw text with markup."""
    if content := _first_match(RAW, head):
        raise ValueError(
            f"{path}: expected text with a sentence on each line, got {content}; tools/prepare_corpus.py makes such "
            f"text"
        )
    if content := _first_match(NO_TEXT, head):
        raise ValueError(f"{path}: expected text in UTF-8 with a sentence on each line, got {content}")
    if content := foreign_form(path, head.decode("utf-8", "replace").splitlines()):
        raise ValueError(f"{path}: expected text with a sentence on each line, got {content}")


def _first_match(patterns: Iterable[tuple[bytes, str]], head: bytes) -> str:
    """Returns the kind of content whose pattern a file's first bytes match, "" for none."""
    return next((name for pattern, name in patterns if re.match(pattern, head)), "")


def check_prepared_files(paths: Iterable[str]) -> None:
    """Raises ValueError for the first of several files that is not prepared text."""
    for path in paths:
        with open_bytes(path) as file:
            check_prepared(path, file.read(HEAD))


def open_lines(path: str, form: Format, bad: containers.BadText) -> tuple[Format, Iterable[str]]:
    """Returns the format of a file, in `auto` by its first lines, and its lines; () for a table.

    Raises ValueError for dumps and tables that would be taken for lines of text.
    """
    if form == "table" or (form == "auto" and containers.kind_of(path) in ("parquet", "arrow")):
        return "table", ()
    lines = containers.read_text_lines(path, bad)
    if form != "auto":
        return form, lines
    sample = list(itertools.islice(lines, SAMPLE_LINES))
    if not bad.encoding and any("\0" in line for line in sample):
        raise ValueError(f"{path}: {NOT_UTF8}: zero bytes")
    head = "\n".join(line[:HEAD] for line in sample[:DUMP_LINES]).encode("utf-8", "surrogatepass")
    form = detect_format(sample)
    if content := _first_match(DUMPS, head) or (form in ("text", "book") and foreign_form(path, sample)):
        raise ValueError(f"{path}: expected a format of --format, got {content}")
    return form, itertools.chain(sample, lines)


def read_documents(
    path: str, form: Format = "auto", text_key: str = "text", bad: containers.BadText | None = None
) -> Iterator[Document]:
    """Yields the documents of one file.

    Each WikiExtractor article, JSON line and table row is a document. So is a whole file of plain text or a book (cut
    after some megabytes) and, in the format `documents`, the text between two blank lines. `bad.report` counts entities
    and tags in articles, and Project Gutenberg's licence around books, both of which are removed. Raises ValueError
    naming file and line for text that cannot be read, if `bad` says so (its default), and, in the format `auto`, for
    dumps and tables that are none of the formats.
    """
    bad = bad or containers.BadText()
    try:
        yield from _read(path, form, text_key, bad)
    except ValueError as error:
        if bad.encoding or NOT_UTF8 not in str(error) or path == containers.STANDARD_INPUT:
            raise
        if dump := _first_match(DUMPS, containers.read_head(path, HEAD)):
            raise ValueError(f"{path}: expected a format of --format, got {dump}") from None
        raise ValueError(f"{error}{other_encoding(path)}") from None


def _read(path: str, form: Format, text_key: str, bad: containers.BadText) -> Iterator[Document]:
    """Gives the documents of one file, as `read_documents` does."""
    if form == "auto" and (workbook := foreign_form(path, ())):
        raise ValueError(f"{path}: expected a format of --format, got {workbook}")
    form, lines = open_lines(path, form, bad)
    if form == "table":
        yield from (Document(_lines_of(text, bad)) for text in containers.read_text_column(path, text_key, bad) if text)
    elif form == "wikiextractor":
        yield from _read_wikiextractor(lines, path, bad)
    elif form == "jsonl":
        yield from map(Document, _read_json_lines(lines, path, text_key, bad))
    else:
        text = without_licence(lines, bad.report)
        if form == "book":
            text = map(" ".join, _read_blocks(text))
        yield from map(Document, _read_blocks(text) if form == "documents" else _in_pieces(text))


def _lines_of(text: str, bad: containers.BadText) -> list[str]:
    return list(without_licence(text.splitlines(), bad.report))


def _read_wikiextractor(lines: Iterable[str], path: str, bad: containers.BadText) -> Iterator[Document]:
    """Gives the articles between `<doc ...>` and `</doc>`."""
    article: list[str] | None = None
    title, begin = "", 0
    for number, line in enumerate(itertools.chain(lines, [None]), 1):
        if (line is None or line.startswith("<doc ")) and article is not None:
            if bad.replace(f"{path}:{begin}", UNENDED):
                yield _make_article(article, title)
            else:
                bad.skip(f"{path}:{begin}", UNENDED, documents=1, characters=sum(map(_count_characters, article)))
            article = None
        if line is None:
            return
        if line.startswith("<doc "):
            # not one expression for both: it would read a line of many titles again for each
            named = re.match(r'(.*?)"(?:\s|>|$)', line.partition('title="')[2])
            article, title, begin = [], html.unescape(named[1]) if named else "", number
        elif line.startswith("</doc>") and article is not None:
            yield _make_article(article, title)
            article = None
        elif article is not None:
            article.append(without_markup(line, bad.report))
        elif line.strip():
            bad.report.drop("text outside of articles", line, characters=_count_characters(line))


def _make_article(lines: list[str], title: str) -> Document:
    """Returns an article; its first line is its title if the header says so, or if a blank line follows."""
    first = lines[0].strip() if lines else ""
    if first and (
        first == title.strip() or (not "".join(lines[1:2]).strip() and not running_text.ends_as_a_sentence(first))
    ):
        return Document(lines[1:], first, headings=True)
    return Document(lines, "", headings=True)


def _read_json_lines(lines: Iterable[str], path: str, text_key: str, bad: containers.BadText) -> Iterator[list[str]]:
    """Gives one document a line, its paragraphs separated by line breaks in the value of `text_key`."""
    for number, line in enumerate(lines, 1):
        if line.strip():
            text, problem = _text_of_row(line, text_key, bad.report)
            repaired = text if text.isascii() else text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
            if repaired != text and not bad.replace(f"{path}:{number}", SURROGATE):
                problem = SURROGATE
            if problem:
                bad.skip(f"{path}:{number}", problem, documents=1, characters=_count_characters(repaired or line))
            else:
                yield _lines_of(repaired, bad)


def _text_of_row(line: str, text_key: str, report: YieldReport) -> tuple[str, str]:
    """Returns the text of a JSON line, without markup if WikiExtractor wrote it, and ""; or "" and the problem with the
    line.
    """
    try:
        row = json_values.decode(line)
    except RecursionError:
        return "", "not valid JSON: nested too deeply"
    except ValueError as error:  # also for a number of 5,000 digits
        return "", f"not valid JSON: {error}"
    if not isinstance(row, dict) or not isinstance(row.get(text_key), str):
        got = str(sorted(row)) if isinstance(row, dict) else type(row).__name__
        if isinstance(row, dict) and text_key in row:
            got += f", {text_key!r} being {type(row[text_key]).__name__}"
        return "", f"expected an object with a string {text_key!r}, got {got}"
    if {"revid", "url", "title"} <= set(row):  # WikiExtractor's --json
        return "\n".join(without_markup(part, report) for part in row[text_key].split("\n")), ""
    return row[text_key], ""


def without_licence(lines: Iterable[str], report: YieldReport) -> Iterator[str]:
    """Yields the lines between the marks START and END of each book, all lines if there are no marks; the report counts
    the others.

    If a file has only one mark, the lines before START or after END are left out.
    """
    lines = iter(lines)
    preface = list(itertools.islice(lines, _PREFACE))
    first = next((first_mark[1].upper() for line in preface if (first_mark := _LICENCE_MARK.match(line))), "END")
    inside, left_of_mark = first == "END", 0
    for line in itertools.chain(preface, lines):
        mark = _LICENCE_MARK.match(line)
        if mark:
            inside, left_of_mark = mark[1].upper() == "START", _LINES_OF_A_MARK
        if mark or left_of_mark or not inside:
            report.drop(LICENCE, "" if mark else line, expected=True, characters=_count_characters(line))
            ended = not line.strip() or line.rstrip().endswith("***")
            left_of_mark = 0 if ended else max(0, left_of_mark - 1)
        else:
            yield line


def without_markup(line: str, report: YieldReport) -> str:
    """Returns a line of an article as readers see it: entities are replaced once, then tags removed; the report counts
    both.
    """
    text = line
    if "&" in line and (entities := sum(html.unescape(entity) != entity for entity in _ENTITY.findall(line))):
        report.note(ENTITIES, line, entities=entities)
        text = _ENTITY.sub(lambda entity: html.unescape(entity.group()), line)
    if "<" not in text:
        return text
    end = text.rfind("-->") + len("-->")  # behind it, each <!-- would be searched for an end in vain
    cleaned, comments = _COMMENT.subn("", text[:end])
    cleaned, tags = _TAG.subn("", cleaned + text[end:])
    cleaned, breaks = _BREAK.subn(" ", cleaned)
    if total := comments + tags + breaks:
        report.note(TAGS, text, tags=total)
    return cleaned


def _read_blocks(lines: Iterable[str]) -> Iterator[list[str]]:
    """Gives the lines between blank lines: a hard-wrapped paragraph, or a document."""
    for has_text, block in itertools.groupby(map(str.strip, lines), bool):
        if has_text:
            yield list(block)


def _in_pieces(paragraphs: Iterable[str]) -> Iterator[list[str]]:
    """Gives one document, in parts of some megabytes if it is that long."""
    piece: list[str] = []
    size = 0
    for paragraph in paragraphs:
        piece.append(paragraph)
        size += len(paragraph)
        if size >= MOST_CHARACTERS:
            yield piece
            piece, size = [], 0
    if piece:
        yield piece


def _count_characters(text: str) -> int:
    """Returns the number of characters without white space, which cleaning does not change."""
    return len("".join(text.split()))


class Cleaner:
    """Splits documents into sentences and reports the text that is left out.

    Drops documents with fewer than `shortest` sentences of running text, and those outside the `limits`.
    `keep_everything` keeps titles, headings and list items, for text that is already clean. `repair` sees the words of
    PDFs. Raises ValueError for an unknown language.
    """

    def __init__(
        self,
        language: str = "en",
        shortest: int = 3,
        keep_everything: bool = False,
        limits: QualityLimits | None = None,
        repair: WordRepair = COUNTING,
    ):
        self.language, self.shortest, self.keep_everything = language, shortest, keep_everything
        self.limits = limits or QualityLimits()
        self._repair = repair
        self._filters = {headings: running_text.ParagraphFilter(headings) for headings in (False, True)}
        self._count_words = WordCounter()

    def clean_paragraphs(self, document: Document, report: YieldReport) -> list[list[str]]:
        """Returns the sentences of each paragraph of a document, none if it is dropped; counts only dropped text in
        `report`.
        """
        kept = self._running_text(document, report)
        paragraphs = [split_sentences(text, self.language) for text in kept]
        if not paragraphs:
            report.drop(
                "documents without running text", document.title or next(iter(document.paragraphs), ""), documents=1
            )
            return []
        sentences = list(itertools.chain.from_iterable(paragraphs))
        if is_short := len(sentences) < self.shortest:
            reason = f"documents of fewer than {self.shortest} sentences"
        else:
            words = sum(map(self._count_words, sentences)) if self.limits.min_words else 0
            reason = self.limits.reason_to_drop(sentences, words, self.language)
        if reason:
            report.drop(reason, sentences[0], expected=not is_short, **self.amounts(paragraphs))
        return [] if reason else paragraphs

    def amounts(self, paragraphs: list[list[str]]) -> dict[str, int]:
        """Returns the amounts of a document, or of paragraphs of one, for the report."""
        sentences = list(itertools.chain.from_iterable(paragraphs))
        text = " ".join(sentences)  # the only white space in it are these spaces and those within the sentences
        return {
            "documents": 1,
            "sentences": len(sentences),
            "characters": len(text) - text.count(" "),
            "words": self._count_words(text),
        }

    def _running_text(self, document: Document, report: YieldReport) -> list[str]:
        """Returns the paragraphs that are running text; counts the others."""
        paragraphs = self._repair(document.paragraphs, report)
        if document.title and self.keep_everything:
            paragraphs = [document.title, *paragraphs]
        elif document.title:
            report.drop(TITLES, document.title, expected=True, **self._amounts_of_text(document.title))
        texts = []
        for paragraph in paragraphs:
            if text := " ".join(paragraph.split()):
                reason = "" if self.keep_everything else self._filters[document.headings].reason_to_drop(text)
                if reason:
                    expected = reason in running_text.NOT_RUNNING_TEXT
                    report.drop(reason, text, expected=expected, **self._amounts_of_text(text))
                else:
                    texts.append(text)
        return texts

    def _amounts_of_text(self, text: str) -> dict[str, int]:
        return {"characters": _count_characters(text), "words": self._count_words(text)}
