"""Measures how well sentences are found in text without line breaks, by the known ends of its paragraphs.

    python benchmarks/sentence_splitting.py novels/*.txt wiki/wiki_00

Each file's running text is split paragraph by paragraph, and again as one line. A row has the number of sentences of
both, the longest sentence of the one line, and three shares: paragraphs whose end is found in the one line, sentence
ends within paragraphs that are found there, and found ends that are right. The second group is sentencex alone.
"""

import sys
from collections.abc import Callable

import rich.console
import rich.table
import sentencex

from official_bert.data.raw_text import documents, running_text
from official_bert.data.raw_text.sentence_splitting import split_sentences


def library_alone(text: str) -> list[str]:
    """Returns the sentences of sentencex."""
    return [sentence.strip() for sentence in sentencex.segment("en", text)]


def ends(sentences: list[str]) -> set[int]:
    """Returns the number of characters, without white space, before each end."""
    places, seen = set(), 0
    for sentence in sentences:
        seen += len(sentence.replace(" ", ""))
        places.add(seen)
    return places


def running_paragraphs(path: str) -> list[str]:
    """Returns the paragraphs of running text in a file."""
    return [
        " ".join(paragraph.split())
        for document in documents.read_documents(path)
        for paragraph in document.paragraphs
        if not running_text.ParagraphFilter(document.headings).reason_to_drop(paragraph)
    ]


def compare(paragraphs: list[str], split: Callable[[str], list[str]]) -> list[str]:
    """Returns a splitter's figures for one row."""
    each, joined = [sentence for paragraph in paragraphs for sentence in split(paragraph)], split(" ".join(paragraphs))
    ends_right, ends_each, ends_joined = ends(paragraphs), ends(each), ends(joined)
    return [
        f"{len(each):,}",
        f"{len(joined):,}",
        f"{max(map(len, joined)):,}",
        f"{len(ends_right & ends_joined) / len(ends_right):.1%}",
        f"{len(ends_each & ends_joined) / len(ends_each):.1%}",
        f"{len(ends_each & ends_joined) / len(ends_joined):.1%}",
    ]


def main() -> None:
    """Prints a row for each file."""
    columns = ("by paragraph", "in one line", "longest", "paragraphs' ends", "same ends", "right ends")
    table = rich.table.Table("text", *columns, *(f"{name} (library)" for name in columns), title="sentences")
    for path in sys.argv[1:]:
        paragraphs = running_paragraphs(path)
        table.add_row(path.split("/")[-1], *compare(paragraphs, split_sentences), *compare(paragraphs, library_alone))
    rich.console.Console(width=220).print(table)


if __name__ == "__main__":
    main()
