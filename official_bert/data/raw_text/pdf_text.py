"""Repairs words of PDFs: words hyphenated at line ends, and ligatures, which fonts draw as one character.

A hyphen goes only if the joined form occurs elsewhere in the corpus: `contamina- ción` becomes `contaminación`, while
`well- known` and German's `Ein- und Ausgabe` stay.
"""

import re
import unicodedata
from collections.abc import Iterable

import numpy as np

from official_bert.data.pretraining.yield_report import YieldReport
from official_bert.data.raw_text.deduplication import Index, hash_text

MOST_UNREPAIRED = 0.001  # a larger share of the words is told
HYPHENATED, JOINED = "words hyphenated at line ends", "words hyphenated at line ends, joined"
LIGATURES, REPLACED = "ligatures", "ligatures replaced by their letters"
_LIGATURE = re.compile("[\ufb00-\ufb06\ufb13-\ufb17]")  # Latin and Armenian: ﬁ, ﬂ, ﬗ
_MARK = re.compile(r"[-\u00ac\u00ad\u2010]\s+")
_LETTER = r"(?:[^\W\d_][\u0300-\u036f]*+)"  # with combining accents, which PDFs have after their letters
_WORD = re.compile(f"{_LETTER}++")
_DIVIDED = re.compile(rf"(?<![^\W\d_]){_LETTER}++(?:{_MARK.pattern}{_LETTER}{{2,}}+)+")
# Between two parts that share the end of a word, as in German "Ein- und Ausgabe".
_CONJUNCTIONS = {
    "and",
    "or",
    "to",
    "nor",
    "und",
    "oder",
    "bzw",
    "bis",
    "sowie",
    "et",
    "ou",
    "en",
    "of",
    "och",
    "eller",
    "og",
    "ja",
    "tai",
}


def joined_form(divided: str) -> str:
    """Returns the word that its hyphenated parts form; "" if they are several words."""
    first, *others = _MARK.split(divided)
    goes_on = all(part.islower() or (first.isupper() and part.isupper()) for part in others)
    return first + "".join(others) if goes_on and not _CONJUNCTIONS.intersection(others) else ""


def _key(word: str) -> int:
    return hash_text(unicodedata.normalize("NFC", word).casefold())


def word_keys(paragraphs: Iterable[str]) -> tuple[np.ndarray, np.ndarray]:
    """Returns the hashes of the words of a text, and of the joined forms of its divided words, each once, uint64."""
    text = with_letters("\n".join(paragraphs))
    joined_forms = filter(None, (joined_form(match[0]) for match in _DIVIDED.finditer(text)))
    return _keys(_WORD.findall(text)), _keys(joined_forms)


def _keys(words: Iterable[str]) -> np.ndarray:
    return np.array([*{_key(word) for word in {*words}}], np.uint64)


def known_joined_forms(parts: Iterable[tuple[np.ndarray, np.ndarray]]) -> frozenset[int]:
    """Returns the hashes of the joined forms that are words elsewhere in a corpus, by the `word_keys` of its parts."""
    words, joined_forms = Index(), set[int]()
    for new_words, new_forms in parts:
        words.add(new_words[~words.contains(new_words)])
        joined_forms.update(new_forms.tolist())
    keys = np.array([*joined_forms], np.uint64)
    return frozenset(keys[words.contains(keys)].tolist())


def with_letters(text: str) -> str:
    """Returns the text with ligatures replaced by letters."""
    return text if text.isascii() else _LIGATURE.sub(lambda match: unicodedata.normalize("NFKC", match[0]), text)


class WordRepair:
    """Joins hyphenated words and replaces ligatures, given the hashes of the `known` joined forms; without them, only
    counts both.
    """

    def __init__(self, known: frozenset[int] | None = None):
        self._known = known

    def __call__(self, paragraphs: list[str], report: YieldReport) -> list[str]:
        """Returns the paragraphs; one that ends within a word which is joined goes on with the next one."""
        text = "\n".join(paragraphs)
        ligatures = [] if text.isascii() else _LIGATURE.findall(text)
        if ligatures:
            report.note(LIGATURES if self._known is None else REPLACED, " ".join(ligatures), ligatures=len(ligatures))
        if self._known is not None:
            text = with_letters(text)
        if _MARK.search(text):
            text = _DIVIDED.sub(lambda match: self._joined(match[0], report), text)
        return paragraphs if self._known is None else text.split("\n")

    def _joined(self, divided: str, report: YieldReport) -> str:
        """Returns the joined form of a divided word if it is known, and counts it."""
        joined = joined_form(divided)
        is_known = bool(joined) and self._known is not None and _key(joined) in self._known
        if joined:
            report.note(JOINED if is_known else HYPHENATED, divided, words=1)
        return joined if is_known else divided


COUNTING = WordRepair()


def unrepaired_share(report: YieldReport) -> float:
    """Returns the share of a corpus's words that still have a line-end hyphen or a ligature."""
    count = sum(
        report.notes[name].amounts[unit]
        for name, unit in ((HYPHENATED, "words"), (LIGATURES, "ligatures"))
        if name in report.notes
    )
    return count / max(1, report.balance("words")["in"])
