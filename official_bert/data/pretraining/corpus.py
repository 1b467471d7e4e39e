"""Raw text to documents of paragraphs: WikiExtractor folders, JSON lines, plain text, hard-wrapped books, and what is
laid out already with a blank line between documents.

What is kept is running text, as in the paper (3.1: "we extract only the text passages and ignore lists, tables, and
headers"): a paragraph counts as such when it ends as a sentence does, or is long.
"""

import itertools
import json
import re
from collections.abc import Iterable, Iterator
from typing import Literal

import sentencex

from official_bert.files import BadText, read_lines

Format = Literal["auto", "wikiextractor", "jsonl", "text", "book", "documents"]
FORMATS = ("auto", "wikiextractor", "jsonl", "text", "book", "documents")
SAMPLE_LINES = 400  # by which the format of a file is told

# Ends of sentences in the scripts that have one, and what may close after them.
_SENTENCE_END = re.compile(r"[.!?…。！？．｡।॥؟۔։።᙮:;]['\"”’»›)\]}＂」』】）\s]*$")
_LIST_MARK = re.compile(r"^\s*([*#•·▪◦‣–—-]\s|\(?\d{1,3}[.)]\s|\|)")
_LETTERS = re.compile(r"[^\W\d_]")
LONG_PARAGRAPH = 200  # characters: so long a paragraph is running text, however it ends (Thai has no full stop)
SHORTEST_WIKIPEDIA_PARAGRAPH = 8  # words: below it stand headings, to which WikiExtractor gives a full stop
MOST_CHARACTERS = 1 << 24  # of one document: a file of any size is read in bounded memory
SHORTEST_PARAGRAPH = 10  # characters: what is left of a list or a caption


def detect_format(lines: Iterable[str]) -> Format:
    """The format of a file by its first lines: hard-wrapped books end most lines in the middle of a sentence."""
    sample = [line for line in lines if line.strip()]
    if not sample:
        return "text"
    if sample[0].startswith("<doc "):
        return "wikiextractor"
    if sample[0].lstrip().startswith("{"):
        return "jsonl"
    ends = sum(bool(_SENTENCE_END.search(line)) for line in sample) / len(sample)
    lengths = sorted(map(len, sample))
    wrapped = len(sample) >= 10 and lengths[len(sample) // 2] >= 40 and lengths[len(sample) * 95 // 100] <= 100
    return "book" if wrapped and ends < 0.6 else "text"


def read_documents(path: str, form: Format = "auto", on_bad_text: BadText = "error",
                   text_key: str = "text") -> Iterator[list[str]]:
    """The documents of one file, each as its paragraphs in order.

    A WikiExtractor article and a JSON line are a document each; so is a whole file of plain text or a book (cut where
    it grows beyond some megabytes), and what stands between blank lines in the format `documents`.
    Raises ValueError naming file and line for a JSON line that is none or lacks `text_key`.
    """
    lines = read_lines(path, on_bad_text=on_bad_text)
    if form == "auto":
        form = detect_format(line for line in itertools.islice(read_lines(path, on_bad_text=on_bad_text), SAMPLE_LINES))
    if form == "wikiextractor":
        yield from _read_wikiextractor(lines)
    elif form == "jsonl":
        yield from _read_json_lines(lines, path, text_key)
    elif form == "documents":
        yield from _read_blocks(lines)
    else:
        yield from _in_pieces(map(" ".join, _read_blocks(lines)) if form == "book" else lines)


def _read_wikiextractor(lines: Iterable[str]) -> Iterator[list[str]]:
    """Articles between `<doc ...>` and `</doc>`, without titles and headings."""
    document: list[str] = []
    title = False
    for line in lines:
        if line.startswith("<doc "):
            document, title = [], True
        elif line.startswith("</doc>"):
            yield document
        elif title:
            title = not line.strip()
        elif len(line.split()) >= SHORTEST_WIKIPEDIA_PARAGRAPH:
            document.append(line)


def _read_json_lines(lines: Iterable[str], path: str, text_key: str) -> Iterator[list[str]]:
    """One document a line, its paragraphs separated by line breaks in the value of `text_key`."""
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except json.JSONDecodeError as error:
            raise ValueError(f"{path}:{number}: not valid JSON: {error}") from None
        if not isinstance(row, dict) or not isinstance(row.get(text_key), str):
            keys = sorted(row) if isinstance(row, dict) else type(row).__name__
            raise ValueError(f"{path}:{number}: expected an object with a string {text_key!r}, got {keys}")
        yield row[text_key].splitlines()


def _read_blocks(lines: Iterable[str]) -> Iterator[list[str]]:
    """The lines between blank lines: a hard-wrapped paragraph, or a document."""
    block: list[str] = []
    for line in lines:
        if line.strip():
            block.append(line.strip())
        elif block:
            yield block
            block = []
    if block:
        yield block


def _in_pieces(paragraphs: Iterable[str]) -> Iterator[list[str]]:
    """One document, in parts of some megabytes where it is that long."""
    piece: list[str] = []
    size = 0
    for paragraph in paragraphs:
        piece.append(paragraph)
        size += len(paragraph)
        if size >= MOST_CHARACTERS:
            yield piece
            piece, size = [], 0
    yield piece


def is_running_text(paragraph: str) -> bool:
    """Whether a paragraph is a text passage, and not a heading, a list's item, a table row or a caption."""
    text = paragraph.strip()
    if len(text) < SHORTEST_PARAGRAPH or _LIST_MARK.match(text) or text.startswith("<"):
        return False
    letters = len(_LETTERS.findall(text))
    return letters * 2 >= len(text.replace(" ", "")) and (
        bool(_SENTENCE_END.search(text)) or len(text) >= LONG_PARAGRAPH)


def split_sentences(paragraph: str, language: str = "en") -> list[str]:
    """The sentences of a paragraph, white space squeezed, by the rules of `language` (a Wikipedia language code)."""
    squeezed = " ".join(paragraph.split())
    return [sentence for part in sentencex.segment(language, squeezed) if (sentence := part.strip())]


def clean_document(paragraphs: Iterable[str], language: str = "en", shortest: int = 3,
                   keep_everything: bool = False) -> list[str]:
    """The sentences of a document's running text; none where fewer than `shortest` remain.

    `keep_everything` takes headings and list items as they are, for text that is clean already.
    """
    sentences = [sentence for paragraph in paragraphs
                 if paragraph.strip() and (keep_everything or is_running_text(paragraph))
                 for sentence in split_sentences(paragraph, language)]
    return sentences if len(sentences) >= shortest else []
