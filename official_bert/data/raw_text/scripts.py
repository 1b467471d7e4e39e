"""Facts about writing systems: characters that are words by themselves, and text lengths equivalent to English ones."""

import re
from typing import Literal

from official_bert.text import tokenization

Script = Literal["spaced", "ideographic", "unspaced"]

# Han, kana, bopomofo, Yi: a character says as much as half a word. Hangul has spaces.
_IDEOGRAPHIC = re.compile(
    "[\u2e80-\u2fdf\u3005-\u3007\u3040-\u312f\u31a0-\u31ff\u3400-\u4dbf\u4e00-\u9fff\ua000-\ua4cf"
    "\uf900-\ufaff\uff66-\uff9f\U00020000-\U0003ffff]"
)
# Thai, Lao, Tibetan, Burmese, Khmer, Tai Le to Tai Tham: letters in long runs, spaces between clauses or syllables at
# most.
_UNSPACED = re.compile("[\u0e00-\u0fff\u1000-\u109f\u1780-\u17ff\u1950-\u19df\u1a20-\u1aaf\uaa60-\uaadf]")
_UNMARKED = re.compile("[\u0e00-\u0eff\u1950-\u197f]")  # Thai, Lao and Tai Le, which end no sentence with a mark
LONGEST_SENTENCE = {"spaced": 1000, "ideographic": 400, "unspaced": 400}  # characters
LONGEST_UNMARKED = 160  # characters, if only spaces separate clauses


def script_of(text: str) -> Script:
    """Returns the kind of script of most of the text's letters."""
    if text.isascii() or not (_IDEOGRAPHIC.search(text) or _UNSPACED.search(text)):
        return "spaced"
    letters = sum(map(str.isalpha, text)) + 1
    for kind, pattern in (("ideographic", _IDEOGRAPHIC), ("unspaced", _UNSPACED)):
        if 2 * len(pattern.findall(text)) >= letters:
            return kind  # type: ignore[return-value]
    return "spaced"


def without_ideographs(text: str) -> tuple[str, int]:
    """Returns the text with a space for each ideograph, and how many there were."""
    return (text, 0) if text.isascii() else _IDEOGRAPHIC.subn(" ", text)


def longest_sentence(text: str) -> int:
    """Returns the most characters of a sentence in the script of `text`."""
    script = script_of(text)
    if script == "unspaced" and 2 * len(_UNMARKED.findall(text)) >= len(text.replace(" ", "")) / 2:
        return LONGEST_UNMARKED
    return LONGEST_SENTENCE[script]


class _WordTable(dict):
    """A table for `str.translate`: spaces around ideographs as in the tokenizer, and spaces in place of punctuation."""

    def __missing__(self, code: int) -> str:
        char = chr(code)
        if tokenization.is_control(char):
            self[code] = ""
        elif tokenization.is_punctuation(char) or tokenization.is_whitespace(char):
            self[code] = " "
        else:
            self[code] = f" {char} " if tokenization.is_cjk(char) else char
        return self[code]


class WordCounter:
    """Counts words as the tokenizer splits them, without punctuation: an ideograph is a word, and `don't` is two."""

    def __init__(self) -> None:
        self._table = _WordTable()

    def words(self, text: str) -> list[str]:
        """Returns the words of `text`, not lower-cased."""
        return text.translate(self._table).split()

    def __call__(self, text: str) -> int:
        return len(self.words(text))
