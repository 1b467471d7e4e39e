"""Filters documents of poor quality, by simple language-independent ratios, and documents in another language.

`py3langid` tells languages: a small statistical model of 97, part of the package.
"""

import collections
import dataclasses
import functools
import unicodedata

# The script of each language without Latin letters, as the first word of its characters' Unicode names.
_SCRIPTS = {
    "CYRILLIC": "ab ady alt av ba be be-tarask be-x-old bg bxr ce cu cv inh kbd kk koi krc kum kv ky lbe lez mdf mhr "
    "mk mn mrj myv os "
    "rsk ru rue sah sr tg tt tyv udm uk xal",
    "ARABIC": "acm aeb apc ar arq ary arz azb ckb fa glk ks lrc mzn pnb ps sd skr ug ur",
    "CJK": "gan hak lzh wuu yue zh zh-classical zh-yue",
    "DEVANAGARI": "anp awa bh bho dty gom hi mag mai mr ne new pi sa",
    "BENGALI": "as bn bpy ctg",
    "GURMUKHI": "pa",
    "GUJARATI": "gu",
    "ORIYA": "or",
    "TAMIL": "ta",
    "TELUGU": "te",
    "KANNADA": "kn tcy",
    "MALAYALAM": "ml",
    "SINHALA": "si",
    "THAI": "th",
    "LAO": "lo",
    "TIBETAN": "bo dz lbj",
    "KHMER": "km",
    "MYANMAR": "blk kjp ksw my mnw rki shn",
    "ETHIOPIC": "am ti tig",
    "GEORGIAN": "ka xmf",
    "ARMENIAN": "hy hyw",
    "GREEK": "el pnt",
    "HEBREW": "he yi",
    "HANGUL": "ko",
    "CANADIAN": "cr iu",
    "CHEROKEE": "chr",
    "GOTHIC": "got",
    "MEETEI": "mni",
    "NKO": "nqo",
    "OL": "sat",
    "SYLOTI": "syl",
    "SYRIAC": "arc",
    "TAI": "tdd",
    "THAANA": "dv",
    "TIFINAGH": "zgh",
    "YI": "ii",
}
_JAPANESE = ("CJK", "HIRAGANA", "KATAKANA")
CHARACTERS = 4000  # of a document are looked at, from its beginning
# Codes of Wikipedia that mean a language of the model, and languages that it takes for each other because they are
# written alike.
_ALIASES = {
    "simple": "en",
    "als": "de",
    "sh": "sr",
    "be-tarask": "be",
    "be-x-old": "be",
    "zh-classical": "zh",
    "zh-yue": "zh",
    "yue": "zh",
    "wuu": "zh",
    "lzh": "zh",
    "gan": "zh",
}
_ALIKE = ({"no", "nb", "nn"}, {"bs", "hr", "sr"}, {"id", "ms"})


@dataclasses.dataclass(frozen=True)
class QualityLimits:
    """Requirements for documents; the defaults let everything pass."""

    min_letters: float = 0.0  # share of letters among its characters, white space apart; combining vowels are letters
    max_repeated_lines: float = 1.0  # share of its sentences that occurred before in it
    min_words: int = 0
    min_script: float = 0.0  # share of its letters that are of the script of its language
    same_language: bool = False  # a model takes it for its language

    def reason_to_drop(self, sentences: list[str], words: int, language: str) -> str:
        """Returns the limit that a document with these sentences violates, "" for none."""
        if words < self.min_words:
            return f"documents of fewer than {self.min_words} words"
        if self.max_repeated_lines < 1 and 1 - len(set(sentences)) / len(sentences) > self.max_repeated_lines:
            return f"documents with more than {self.max_repeated_lines:.0%} of repeated sentences"
        if self.min_letters or self.min_script:
            letters, other_letters = _letters_by_script("".join(sentences))
            total = sum(letters.values())
            if total < self.min_letters * (total + other_letters):
                return f"documents with fewer than {self.min_letters:.0%} letters"
            if sum(letters[script] for script in scripts_of(language)) < self.min_script * total:
                return f"documents with fewer than {self.min_script:.0%} letters of their language's script"
        if self.same_language and not is_in_language(" ".join(sentences), language):
            return "documents in another language"
        return ""


def scripts_of(language: str) -> tuple[str, ...]:
    """Returns the scripts of a language, as the first words of their letters' Unicode names."""
    if language in ("ja", "ryu"):
        return _JAPANESE
    return (next((script for script, codes in _SCRIPTS.items() if language in codes.split()), "LATIN"),)


def _letters_by_script(text: str) -> tuple[collections.Counter, int]:
    """Returns the number of letters of each script in a text, and of other characters without white space."""
    letters: collections.Counter = collections.Counter()
    other_letters = 0
    for char, count in collections.Counter(text).items():
        if unicodedata.category(char)[0] in "LM":
            letters[unicodedata.name(char, "UNKNOWN").split(" ")[0]] += count
        elif not char.isspace():
            other_letters += count
    return letters, other_letters


@functools.cache
def accepted_labels(language: str) -> frozenset[str]:
    """Returns the labels of the model that mean `language`, the code of a Wikipedia.

    Raises ValueError for a language that the model does not know.
    """
    import py3langid

    label = _ALIASES.get(language, language)
    languages = {name for name, _ in py3langid.rank("")}
    if label not in languages:
        raise ValueError(
            f"--same_language: expected languages that can be told apart ({' '.join(sorted(languages))}), got "
            f"{language!r}"
        )
    return frozenset(next((group for group in _ALIKE if label in group), {label}))


def is_in_language(text: str, language: str) -> bool:
    """Returns whether the most probable language of a text is `language`. Raises what `accepted_labels` raises."""
    import py3langid

    return py3langid.classify(text[:CHARACTERS])[0] in accepted_labels(language)
