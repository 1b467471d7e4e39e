"""Exact match and F1 by the rules of MLQA's script (Lewis et al. 2020), which knows the words and articles of seven
languages.

Punctuation is Unicode's, not only ASCII's; articles are the language's; in Chinese each ideograph is a word.
"""

import functools
import re
import string
import sys
import unicodedata
from collections.abc import Mapping, Sequence

from official_bert.tasks.squad.metrics import mean_scores, questions_of

ARTICLES = {
    "en": r"\b(?:a|an|the)\b",
    "es": r"\b(?:un|una|unos|unas|el|la|los|las)\b",
    "vi": r"\b(?:của|là|cái|chiếc|những)\b",
    "de": r"\b(?:ein|eine|einen|einem|eines|einer|der|die|das|den|dem|des)\b",
    "ar": "ال",  # wherever it stands, also within a word: the script's other alternative never matches
    "hi": "",
    "zh": "",
}
SEPARATED = ("zh",)  # languages whose ideographs are words
IDEOGRAPH = re.compile(r"[\u4e00-\u9fa5]")


@functools.cache
def punctuation() -> dict[int, None]:
    """Returns a translation table that deletes the script's punctuation: Unicode's, and all of ASCII's, some of which
    Unicode classes as symbols.
    """
    codes = (code for code in range(sys.maxunicode) if unicodedata.category(chr(code)).startswith("P"))
    return dict.fromkeys([*codes, *map(ord, string.punctuation)])


def normalize(text: str, language: str) -> str:
    """Returns `text` in lower case, without punctuation and the language's articles, words between single spaces."""
    text = text.lower().translate(punctuation())
    if pattern := ARTICLES[language]:
        text = re.sub(pattern, " ", text)
    if language in SEPARATED:
        text = IDEOGRAPH.sub(r" \g<0> ", text)
    return " ".join(text.split())


def mlqa_metrics(articles: Sequence[Mapping], predictions: Mapping[str, str], language: str) -> dict[str, float]:
    """Returns `exact_match` and `f1`, from 0 to 1, of answers in a language; {} if MLQA lacks the language, or a
    question has no answer.

    Every question counts, even without a prediction; the best of several gold answers counts.
    """
    if language not in ARTICLES or not all(row.get("answers") for row in questions_of(articles)):
        return {}
    return mean_scores(articles, predictions, functools.partial(normalize, language=language))
