"""Tells running text from headings, lists, tables and captions, as in the paper (3.1: "we extract only the text
passages and ignore lists, tables, and headers"), in any script.

A paragraph is running text if it ends like a sentence or is long, consists mostly of letters, and does not begin like a
list item. WikiExtractor gives headings a full stop, so its paragraphs must also be as long as a sentence.
"""

import re
import unicodedata
from typing import Literal

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

Form = Literal["sentence", "perhaps", "phrase"]
_LEAST_WORDS: dict[str, dict[Form, int]] = {
    "de": {"sentence": 6, "perhaps": 8, "phrase": 14},
    "hi": {"sentence": 3, "perhaps": 5, "phrase": 20},
}
_DEVANAGARI = re.compile("[\u0904-\u0939]")

_GERMAN_AUXILIARY = re.compile(
    r"\b(?:ist|sind|war|waren|wird|werden|wurden?|hat|haben|habe|hatten?|kann|können|könnten?|konnten?|muss|müssen"
    r"|mussten?|soll|sollen"
    r"|sollten?|darf|dürfen|will|wollen|wollten?|möchten?|würden?|wären?|gibt|gab)\b"
)
_GERMAN_PRONOUN = re.compile(r"\b(?:[Ee]s|[Ee]r|[Mm]an|Sie|[Ww]ir|[Ii]ch|[Dd]ies)\b")
_GERMAN_ENDING = re.compile(  # the third person in -t, without common other words and participles of the same ending
    r"\b(?!(?:mit|nicht|dort|seit|jetzt|selbst|erst|fest|weit|oft|zuletzt|direkt|möglichst|sofort|gut|wiederholt"
    r"|statt|sonst|bereits|fast"
    r"|zuerst|gesamt|insgesamt)\b)(?!ge)[a-zäöüß]{2,}t\b"
)
_GERMAN_BEGINNING = re.compile(  # of sentences, hardly ever of headings
    r"\W*(?:Alle|Auch|Außerdem|Bisher|Dabei|Dadurch|Daher|Damals|Damit|Danach|Dann|Dazu|Deshalb|Diese[rsnm]?|Dort"
    r"|Einige|Heute|Hier|Hierbei"
    r"|Jetzt|Nachdem|Obwohl|Seitdem|Später|Viele|Zudem|Zuerst)\b"
)
_GERMAN_CONJUNCTION = re.compile(r"\W*(?:Wie|So|Wo|Wann|Was|Warum|Wenn|Ob|Bevor)\b")
# Hindi's \w lacks the vowel signs, so words end at white space; the brackets leave out what is no part of a word.
_NO_HINDI_WORD = r"[^\w\u0900-\u0963\u0966-\u097f]*$"
_HINDI_AUXILIARY = r"(?:^|\s)(?:है|हैं|हूँ|हूं|था|थे|थी|थीं|\S*[ेएोऊू][ंँ]?ग[ाेी])"
_HINDI_LAST_AUXILIARY = re.compile(_HINDI_AUXILIARY + _NO_HINDI_WORD)
_HINDI_ANY_AUXILIARY = re.compile(_HINDI_AUXILIARY + r"(?![\w\u0900-\u0963])")
_HINDI_ENDING = re.compile(
    r"(?:^|\s)(?!(?:में|लिए|लिये|हुए)\W*$)(?:हो|हों|(?:हो|कर|दे|जा|सक|रह|ले|आ)त[ाेी]|\S*(?:ें|एँ|एं|ओ|ि[एय]े?|या|ये"
    r"|ए|ई|यी))" + _NO_HINDI_WORD
)


class ParagraphFilter:
    """Decides which paragraphs of a language are kept; `headings`: the file may have headings with full stops."""

    def __init__(self, headings: bool = False, language: str = "en"):
        self._headings = headings
        self._language = language
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
        by_form = None if own_full_stop else least_words(text, self._language)
        least = by_form["phrase"] if by_form else (_HEADING_WITH_FULL_STOP if own_full_stop else _HEADING)[script]
        if script != "spaced":
            return _count_letters(text) < least
        beginning = text[:_BEGINNING]
        if beginning.isascii() and self._count_words(beginning) >= least:
            return False
        rest, ideographs = (text, 0) if own_full_stop else scripts.without_ideographs(text)
        words = self._count_words(rest) + ideographs / _IDEOGRAPHS_OF_A_WORD
        if by_form and words < least:
            least = by_form[form_of(text, self._language)]
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
    """Tells if a line ends with a sentence mark of some script and optional closing brackets or quotation marks."""
    return bool(_SENTENCE_END.search(text.rstrip()[-_TAIL:]))


def least_words(text: str, language: str) -> dict[Form, int] | None:
    """Returns by form the least words of a sentence that ends like a heading; None if the forms of the language are not
    known.
    """
    return None if language == "hi" and not _DEVANAGARI.search(text) else _LEAST_WORDS.get(language)


def form_of(text: str, language: str) -> Form:
    """Returns whether a line of German or Hindi has a finite verb, "perhaps" if other words may look the same."""
    return _german_form(text) if language == "de" else _hindi_form(text)


def _german_form(text: str) -> Form:
    """Returns the form of a German line, without a clause at its end that a verb closes, which is subordinate."""
    clause = re.sub(r"\W+$", "", text)
    verbs = list(_GERMAN_AUXILIARY.finditer(clause))
    if verbs and verbs[-1].end() == len(clause) and "," in clause:
        clause = clause.rpartition(",")[0]
        verbs = list(_GERMAN_AUXILIARY.finditer(clause))
    if _GERMAN_CONJUNCTION.match(clause) and "," not in clause and not text.endswith("?"):
        return "phrase"  # a subordinate clause alone
    if any(verb.end() < len(clause) for verb in verbs):
        return "sentence"
    has_verb = any(verb.end() < len(clause) for verb in _GERMAN_ENDING.finditer(clause))
    return "perhaps" if has_verb or _GERMAN_PRONOUN.search(clause) or _GERMAN_BEGINNING.match(clause) else "phrase"


def _hindi_form(text: str) -> Form:
    """Returns the form of a Hindi line, mostly by its last word."""
    if _HINDI_LAST_AUXILIARY.search(text):
        return "sentence"
    return "perhaps" if _HINDI_ENDING.search(text) or _HINDI_ANY_AUXILIARY.search(text) else "phrase"
