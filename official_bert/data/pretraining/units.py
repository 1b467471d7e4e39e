"""Masking units given by the text: words between separators or from a segmenter, and marked phrases and entities.

A unit is masked like a whole word although its tokens are separate words: Chinese whole words (Cui et al. 2019),
phrases and entities (ERNIE 1.0). All tokens but the first are stored as id + vocabulary size to mark that they continue
the unit; records hold the plain ids. Separators and marks are removed from the text.
"""

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Annotated, Literal

import numpy as np

from official_bert.fields import Constraint, check_fields
from official_bert.text import loading
from official_bert.text.fast_tokenization import EncodedLines, FastTokenizer
from official_bert.text.subwords.lines import LineTokenizer, split_lines

SHOWN = 40  # characters of a line in an error


class WrongMarksError(ValueError):
    """A line with unpaired phrase marks, and its byte offset in the text."""

    def __init__(self, message: str, offset: int):
        super().__init__(message)
        self.offset = offset


@dataclasses.dataclass(frozen=True, kw_only=True)
class TextUnits:
    """How units are marked in the text. None is, unless one of these is given."""

    word_separator: Annotated[
        str, Constraint("one character", lambda mark: len(mark) < 2 and mark not in ("\n", "\r"))
    ] = ""
    """Character between words."""
    phrase_marks: tuple[str, ...] = ()
    """What begins and what ends a phrase or an entity."""
    segmenter: Literal["", "jieba"] = ""
    """Library that finds the words of Chinese."""

    def __post_init__(self) -> None:
        check_fields(self, "--")
        if self.word_separator and self.segmenter:
            raise ValueError(
                f"--segmenter={self.segmenter}: expected no --word_separator with it, which gives the words, got "
                f"{self.word_separator!r}"
            )
        marks = self.phrase_marks
        if marks and (
            len(marks) != 2
            or not all(mark and mark == "".join(mark.split()) for mark in marks)
            or marks[0] == marks[1]
            or self.word_separator in marks
        ):
            raise ValueError(
                "--phrase_marks: expected two different marks without white space, such as '[[,]]', none of them the "
                f"separator, got {','.join(marks)!r}"
            )

    def __bool__(self) -> bool:
        return bool(self.word_separator or self.phrase_marks or self.segmenter)

    @property
    def described(self) -> str:
        """The flags that define the units."""
        flags = {
            "--word_separator": self.word_separator,
            "--phrase_marks": ",".join(self.phrase_marks),
            "--segmenter": self.segmenter,
        }
        return " ".join(f"{name}={value}" for name, value in flags.items() if value)

    def split_line(self, line: str) -> Iterator[tuple[str, bool]]:
        """Yields the parts of a line in order, and whether each is a unit. Raises ValueError for an unpaired mark.

        A line without a separator has no marked words, so it is no unit.
        """
        divided = bool(self.word_separator) and self.word_separator in line
        if not self.phrase_marks:
            yield from self._words(line, divided)
            return
        begin, end = self.phrase_marks
        rest_of_line = line
        while True:
            before, opened, after = rest_of_line.partition(begin)
            if end in before:
                raise ValueError(f"a phrase ends with {end} that has not begun in its line")
            yield from self._words(before, divided)
            if not opened:
                return
            inside, closed, rest_of_line = after.partition(end)
            if not closed or begin in inside:
                raise ValueError(
                    f"a phrase begins with {begin} and does not end in its line: no phrase continues in another record"
                )
            yield (inside.replace(self.word_separator, " ") if self.word_separator else inside), True

    def _words(self, text: str, divided: bool) -> Iterator[tuple[str, bool]]:
        """The parts of text without phrases, which may be `divided` by the separator."""
        if divided:
            words = text.split(self.word_separator)
        elif self.segmenter:
            words = _segmented(text)
        else:
            words = [text]
        for word in words:
            if word and not word.isspace():
                yield word, divided or bool(self.segmenter)


def _segmented(text: str) -> list[str]:
    """The words that jieba finds."""
    import jieba

    jieba.setLogLevel(60)  # it tells of its dictionary
    return jieba.lcut(text)


class UnitTokenizer:
    """Turns lines with units into ids as `FastTokenizer` does, and adds the vocabulary's size to ids that continue a
    unit.
    """

    def __init__(self, tokenizer: FastTokenizer | LineTokenizer, units: TextUnits):
        self.tokenizer, self._lines, self._units = tokenizer.tokenizer, tokenizer, units

    def encode_bytes(self, buffer: bytes) -> EncodedLines:
        """Encodes the lines of a UTF-8 buffer. Raises UnicodeDecodeError for other bytes, WrongMarksError for a line's
        marks.
        """
        lines = split_lines(buffer)
        counts, texts, are_units = [], [], []
        for number, line in enumerate(lines):
            try:
                line_parts = list(self._units.split_line(line))
            except ValueError as error:
                excerpt = line if len(line) <= SHOWN else f"{line[:SHOWN]}..."
                raise WrongMarksError(f"{error}: {excerpt!r}", len("\n".join(lines[:number] + [""]).encode())) from None
            counts.append(len(line_parts))
            texts += [text for text, _ in line_parts]
            are_units += [is_unit for _, is_unit in line_parts]
        ids, sizes = self._lines.encode_lines(texts)
        starts = np.cumsum(sizes) - sizes
        continues = np.repeat(np.array(are_units, np.bool_), sizes)
        continues[starts[sizes > 0]] = False
        ends = np.concatenate([[0], np.cumsum(sizes)])[np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)]
        blank = np.array([not line or line.isspace() for line in lines], np.bool_)
        return EncodedLines(
            (ids + self.tokenizer.size * continues).astype(np.int32), np.diff(ends).astype(np.int32), blank
        )


def units_for(
    vocab_file: str, word_separator: str, phrase_marks: Sequence[str], segmenter: Literal["", "jieba"]
) -> TextUnits:
    """Returns the definition of a text's masking units.

    Raises ValueError if the tokenizer does not split words itself, ModuleNotFoundError if the segmenter is missing.
    """
    units = TextUnits(word_separator=word_separator, phrase_marks=tuple(phrase_marks), segmenter=segmenter)
    if units and loading.lower_cases(vocab_file) is not None:
        raise ValueError(
            "--word_separator, --phrase_marks and --segmenter: expected a list of WordPieces, got "
            f"{vocab_file}: other tokenizers read the space before a word too"
        )
    if units.segmenter:
        import jieba  # noqa: F401 (now, not when the text is read)
    return units
