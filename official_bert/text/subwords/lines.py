"""Lines of text to ids by a tokenizer that is no list of WordPieces, in the form of `FastTokenizer`."""

from collections.abc import Sequence

import numpy as np

from official_bert.text.fast_tokenization import EncodedLines
from official_bert.text.subwords.host import SubwordTokenizer


def split_lines(buffer: bytes) -> list[str]:
    """Returns the lines of a UTF-8 buffer, whose last one may lack its newline. Raises UnicodeDecodeError."""
    lines = buffer.decode("utf-8").split("\n")
    return lines if lines[-1] else lines[:-1]


class LineTokenizer:
    """Turns lines of text into ids with a tokenizer's library; threads share it."""

    def __init__(self, tokenizer: SubwordTokenizer):
        self.tokenizer = tokenizer

    def encode_lines(self, lines: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        """Returns (ids int32 [tokens], lengths int32 [lines])."""
        rows = self.tokenizer.encode_all(lines)
        return np.array([index for row in rows for index in row], np.int32), np.array(
            [len(row) for row in rows], np.int32
        )

    def encode_bytes(self, buffer: bytes) -> EncodedLines:
        """Encodes the lines of a UTF-8 buffer, each ended by a newline byte (the last one may lack it); a blank line
        has no ids.

        White space at a line's ends is left out, as the lines of a corpus are sentences. Raises UnicodeDecodeError for
        other bytes.
        """
        lines = [line.strip() for line in split_lines(buffer)]
        ids, lengths = self.encode_lines(lines)
        return EncodedLines(ids, lengths, np.array([not line for line in lines], np.bool_))
