"""Finds special and added tokens in a text before it is cut into pieces, as Hugging Face's tokenizers do."""

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from official_bert.text.subwords.definition import AddedToken


class Part(NamedTuple):
    """A part of a text: an added token, or text between them (`token` None)."""

    start: int
    end: int
    token: AddedToken | None


class AddedTokens:
    """The tokens to look for: at each place the longest, from the left. White space that a token takes belongs to it."""

    def __init__(self, tokens: Sequence[AddedToken]):
        self.tokens = {token.content: token for token in tokens if token.content}
        contents = sorted(self.tokens, key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, contents))) if contents else None

    def split(self, text: str) -> Iterator[Part]:
        """Yields the parts of a text, in order, none of them empty."""
        last = 0
        for match in self._pattern.finditer(text) if self._pattern else ():
            start, end, token = match.start(), match.end(), self.tokens[match.group()]
            if token.single_word and (is_letter(text[start - 1:start]) or is_letter(text[end:end + 1])):
                continue
            while token.lstrip and start > last and text[start - 1].isspace():
                start -= 1
            while token.rstrip and end < len(text) and text[end].isspace():
                end += 1
            start = max(start, last)  # white space that the token before took
            if start > last:
                yield Part(last, start, None)
            yield Part(start, end, token)
            last = end
        if last < len(text):
            yield Part(last, len(text), None)


def is_letter(char: str) -> bool:
    """Whether a character may not stand beside a token that is a whole word; "" may."""
    return char.isalnum() or char == "_"
