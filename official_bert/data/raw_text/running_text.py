"""Tells running text from headings, lists, tables and captions, as in the paper (3.1: "we extract only the text
passages and ignore lists, tables, and headers"), in any script.

A paragraph is running text if it ends like a sentence or is long, consists mostly of letters, and does not begin like a
list item. WikiExtractor gives headings a full stop, so its paragraphs must also be as long as a sentence.
"""

import re
import unicodedata

from official_bert.data.raw_text import scripts

# Sentence marks of the scripts that have them, with the brackets and quotation marks that may follow.
_CLOSING = r"(?:['\"”’»›)\]}＂」』】）\s]|\[\d+\])*$"
_SENTENCE_END = re.compile(rf"[.!?…。！？．｡।॥؟۔։።᙮၊။។៕།༎᱾꯫:;：；]{_CLOSING}")
_OWN_FULL_STOP = re.compile(rf"[。！？｡।॥۔։።᙮၊။។៕།༎᱾꯫]{_CLOSING}")  # WikiExtractor's headings get an ASCII one
_INNER_END = re.compile(r"[^\s.!?]{3}[.!?][\"'”’»)]*\s+\S.*\S\s+\S")
_ADDED_FULL_STOP = re.compile(r"[.:;,]\.$")  # no sentence ends so: WikiExtractor gave a heading its full stop
_LIST_MARK = re.compile(r"^\s*(BULLET::::|[*#•·▪◦‣–—-]\s|[(（]?\d{1,3}[.)）]\s|\d{1,3}、|[①-⑳㈠-㈩]|\|)")
_SECTION_NUMBER = re.compile(r"\d+(\.\d+)+\.?\s[^.!?]*\.?$")
_ASCII_OTHERS = bytes(code for code in range(128) if not chr(code).isalpha())
_NO_LETTERS = re.compile(r"[\W\d_]+")
_BEGINNING = 200  # characters that mostly show that a line is longer than a heading
_TAIL = 80  # characters in which a paragraph's end is looked for
# By script: the least characters of a paragraph; the length from which it is running text however it ends (Thai has no
# full stop); the least length of a sentence in WikiExtractor's output, where shorter lines are headings (words,
# otherwise letters), and the same for a sentence with its script's own full stop.
_SHORTEST = {"spaced": 10, "ideographic": 6, "unspaced": 10}
_LONG = {"spaced": 200, "ideographic": 60, "unspaced": 40}
_HEADING = {"spaced": 8, "ideographic": 40, "unspaced": 40}
_HEADING_WITH_FULL_STOP = {"spaced": 4, "ideographic": 8, "unspaced": 15}
_WORDS_WITH_INNER_END = 6
_IDEOGRAPHS_OF_A_WORD = _HEADING["ideographic"] / _HEADING["spaced"]  # in lines of two scripts

HEADING, LIST_ITEM, MARKUP, NO_LETTERS = "headings", "list items", "markup and tables", "mostly digits and signs"
SHORT, NO_END = "very short lines", "lines that do not end as a sentence does"
NOT_RUNNING_TEXT = (HEADING, LIST_ITEM, MARKUP, NO_LETTERS, SHORT)  # reasons that do not count as loss


class ParagraphFilter:
    """Decides which paragraphs are kept; `headings`: the file may have headings with full stops."""

    def __init__(self, headings: bool = False):
        self._headings = headings
        self._count_words = scripts.WordCounter()

    def reason_to_drop(self, paragraph: str) -> str:
        """Returns the reason why a paragraph is not running text; "" if it is."""
        text = paragraph.strip()
        script = scripts.script_of(text)
        if _LIST_MARK.match(text):
            return LIST_ITEM
        if text.startswith(("<", "{|")):
            return MARKUP
        if len(text) < _SHORTEST[script]:
            return SHORT
        if not _is_mostly_letters(text):
            return NO_LETTERS
        if self._headings and self._is_heading(text, script):
            return HEADING
        return "" if ends_as_a_sentence(text) or len(text) >= _LONG[script] else NO_END

    def _is_heading(self, text: str, script: scripts.Script) -> bool:
        """Tells whether a line of WikiExtractor's output is shorter than a sentence."""
        if _SECTION_NUMBER.match(text) or (_ADDED_FULL_STOP.search(text) and not text.endswith("...")):
            return True
        own_full_stop = _OWN_FULL_STOP.search(text[-_TAIL:])
        least = (_HEADING_WITH_FULL_STOP if own_full_stop else _HEADING)[script]
        if script != "spaced":
            return _count_letters(text) < least
        beginning = text[:_BEGINNING]
        if beginning.isascii() and self._count_words(beginning) >= least:
            return False
        rest, ideographs = (text, 0) if own_full_stop else scripts.without_ideographs(text)
        words = self._count_words(rest) + ideographs / _IDEOGRAPHS_OF_A_WORD
        return words < least and not (words >= _WORDS_WITH_INNER_END and _INNER_END.search(text))


def _count_letters(text: str) -> int:
    """Returns the number of letters in `text`, combining vowels included."""
    return sum(unicodedata.category(char)[0] in "LM" for char in text)


def _is_mostly_letters(text: str) -> bool:
    """Tells whether at least half of the characters, without white space, are letters."""
    size = len("".join(text.split()))
    # soon seen of most text in Latin letters
    if 2 * len(text.encode("ascii", "ignore").translate(None, _ASCII_OTHERS)) >= size:
        return True
    return 2 * len(_NO_LETTERS.sub("", text)) >= size or 2 * _count_letters(text) >= size


def ends_as_a_sentence(text: str) -> bool:
    """Returns whether a line ends with a sentence mark of any script and optional closing brackets or quotation
    marks.
    """
    return bool(_SENTENCE_END.search(text.rstrip()[-_TAIL:]))
