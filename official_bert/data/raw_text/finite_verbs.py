"""Tells sentences from long headings by their finite verbs, in languages in which other signs are not enough.

A heading names something; a sentence says something, so it has a finite verb: in German the first or second part of a main clause, in
Hindi at its end. The lists are of auxiliaries, pronouns and endings, which every text has, not of the words of a subject.
"""

import re
from typing import Literal

Form = Literal["sentence", "perhaps", "phrase"]
_LEAST_WORDS: dict[str, dict[Form, int]] = {
    "de": {"sentence": 6, "perhaps": 8, "phrase": 14},
    "hi": {"sentence": 3, "perhaps": 5, "phrase": 20},
}
_DEVANAGARI = re.compile("[\u0904-\u0939]")

_GERMAN_AUXILIARY = re.compile(
    r"\b(?:ist|sind|war|waren|wird|werden|wurden?|hat|haben|habe|hatten?|kann|können|könnten?|konnten?|muss|müssen|mussten?|soll|sollen"
    r"|sollten?|darf|dürfen|will|wollen|wollten?|möchten?|würden?|wären?|gibt|gab)\b")
_GERMAN_PRONOUN = re.compile(r"\b(?:[Ee]s|[Ee]r|[Mm]an|Sie|[Ww]ir|[Ii]ch|[Dd]ies)\b")
_GERMAN_ENDING = re.compile(  # the third person in -t, without common other words and participles of the same ending
    r"\b(?!(?:mit|nicht|dort|seit|jetzt|selbst|erst|fest|weit|oft|zuletzt|direkt|möglichst|sofort|gut|wiederholt|statt|sonst|bereits|fast"
    r"|zuerst|gesamt|insgesamt)\b)(?!ge)[a-zäöüß]{2,}t\b")
_GERMAN_BEGINNING = re.compile(  # of sentences, hardly ever of headings
    r"\W*(?:Alle|Auch|Außerdem|Bisher|Dabei|Dadurch|Daher|Damals|Damit|Danach|Dann|Dazu|Deshalb|Diese[rsnm]?|Dort|Einige|Heute|Hier|Hierbei"
    r"|Jetzt|Nachdem|Obwohl|Seitdem|Später|Viele|Zudem|Zuerst)\b")
_GERMAN_CONJUNCTION = re.compile(r"\W*(?:Wie|So|Wo|Wann|Was|Warum|Wenn|Ob|Bevor)\b")
# Hindi's \w lacks the vowel signs, so words end at white space; the brackets leave out what is no part of a word.
_NO_HINDI_WORD = r"[^\w\u0900-\u0963\u0966-\u097f]*$"
_HINDI_AUXILIARY = r"(?:^|\s)(?:है|हैं|हूँ|हूं|था|थे|थी|थीं|\S*[ेएोऊू][ंँ]?ग[ाेी])"
_HINDI_LAST_AUXILIARY = re.compile(_HINDI_AUXILIARY + _NO_HINDI_WORD)
_HINDI_ANY_AUXILIARY = re.compile(_HINDI_AUXILIARY + r"(?![\w\u0900-\u0963])")
_HINDI_ENDING = re.compile(r"(?:^|\s)(?!(?:में|लिए|लिये|हुए)\W*$)(?:हो|हों|(?:हो|कर|दे|जा|सक|रह|ले|आ)त[ाेी]|\S*(?:ें|एँ|एं|ओ|ि[एय]े?|या|ये|ए|ई|यी))"
                           + _NO_HINDI_WORD)


def least_words(text: str, language: str) -> dict[Form, int] | None:
    """Returns by form the least words of a sentence that ends like a heading; None if the forms of the language are not known."""
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
